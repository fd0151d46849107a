"""The page that shows the story: its `text` blocks are the paragraphs of the real output, in order.

`python -m tests.cli.demo_page` plays the story and writes them anew.
"""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "story.md"
BLOCK = re.compile(r"^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def play(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kedge", "story", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


def shown(page: str) -> str:
    return "\n".join(BLOCK.findall(page))


def filled(page: str, output: str) -> str:
    paragraphs = iter(output.rstrip("\n").split("\n\n"))
    return BLOCK.sub(lambda _: f"```text\n{next(paragraphs)}\n```", page)


if __name__ == "__main__":
    result = play()
    result.check_returncode()
    PAGE.write_text(filled(PAGE.read_text(), result.stdout))

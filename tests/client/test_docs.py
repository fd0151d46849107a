"""Every example of docs/client.md, as it stands there, against a real server with a scripted model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.command import finish
from tests.server.process import ROOT, Place
from tests.support.model_control import ModelControl

PAGE = (ROOT / "docs" / "client.md").read_text()
EXAMPLES: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def first_words(example: str) -> str:
    return next(prompt for prompt in re.findall(r'"([A-Z][^"]+)"', example))[:30]


@pytest.mark.parametrize("example", EXAMPLES, ids=map(first_words, EXAMPLES))
def test_an_example_does_what_the_page_says(
    example: str, place: Place, model_control: ModelControl, tmp_path: Path
) -> None:
    model_control.plan(text="forty-two", piece=3)
    env = {**place.env, "OPENAI_BASE_URL": model_control.base_url, "OPENAI_API_KEY": "x", "KEDGE_MODEL": "openai/fake"}
    command = [sys.executable, "-W", "error", "-c", example]
    done = finish(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    assert (done.code, done.err) == (0, ""), done
    assert ("nightly" if "nightly" in example else "forty-two") in done.out

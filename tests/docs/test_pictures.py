"""The pictures of the interface can be made again, show what the pages say, and nothing of whoever made them."""

from __future__ import annotations

import html
import re
import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import all_pages
from tests.docs.pictures import ANSWER, KEPT, MODEL, MODELS, PROMPT, TITLE, make

# What was done, and not how the interface puts it: its own words are kept in `tests/tui`.
SHOWN = {
    "chat": [TITLE, MODEL, PROMPT[:40], "multiedit slugs.py", "Ran 2 tests in 0.001s", ANSWER[:40], "200k"],
    "permission": [TITLE, "multiedit", "+ from unicodedata import normalize", "words = re.findall"],
    "changes": ["slugs.py", "+ from unicodedata import normalize"],
    "models": [*MODELS, "OpenAI"],
}


async def test_the_pictures_are_made_from_the_real_thing(tmp_path: Path) -> None:
    await make(tmp_path)
    check(tmp_path)
    written = "".join(file.read_text(encoding="utf-8") for file in tmp_path.iterdir())
    assert tempfile.gettempdir() not in written
    assert "kedge-t-" not in written, "the directory that it was made in"


def test_the_pictures_of_the_pages_show_the_same() -> None:
    check(KEPT)


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_shows_the_picture(name: str) -> None:
    assert [page for page in all_pages() if f"pictures/{name}.svg)" in page.read_text(encoding="utf-8")]


def check(directory: Path) -> None:
    assert {file.stem for file in directory.glob("*.svg")} == SHOWN.keys()
    for name, texts in SHOWN.items():
        seen = text_of((directory / f"{name}.svg").read_text(encoding="utf-8"))
        assert [text for text in texts if squeezed(text) not in seen] == [], f"{name}:\n{seen}"


def text_of(svg: str) -> str:
    """What stands in its lines, from left to right."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text class="[^"]*" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        lines.setdefault(float(y), []).append((float(x), html.unescape(text)))
    return "\n".join(squeezed("".join(text for _, text in sorted(lines[y]))) for y in sorted(lines))


def squeezed(text: str) -> str:
    """Without spaces: colours cut a line into pieces anywhere."""
    return "".join(text.split())

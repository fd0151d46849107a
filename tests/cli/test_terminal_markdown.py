"""Markdown on a terminal: what is written is final, the same for all pieces, and loses nothing but marks."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.cli.terminal_markdown import MAX_HELD_CHARS, TerminalMarkdown

STYLE = re.compile(r"\x1b\[([\d;]*)m")


def cells(drawn: str) -> list[tuple[str, str]]:
    """Return each character with its style."""
    found: list[tuple[str, str]] = []
    style, at = "", 0
    for match in STYLE.finditer(drawn):
        found += [(char, style) for char in drawn[at : match.start()]]
        style, at = "" if match[1] == "0" else match[1], match.end()
    return found + [(char, style) for char in drawn[at:]]


def plain(drawn: str) -> str:
    return STYLE.sub("", drawn)


def render(*pieces: str) -> str:
    markdown = TerminalMarkdown()
    return "".join([*map(markdown.feed, pieces), markdown.finish()])


def styled(text: str) -> dict[str, str]:
    """Return the words with their styles."""
    drawn = cells(render(text))
    return {match[0]: drawn[match.start()][1] for match in re.finditer(r"\w+", "".join(char for char, _ in drawn))}


@pytest.mark.parametrize(
    ("text", "shown", "styles"),
    [
        ("# A title #\n", "A title\n", {"title": "1;36"}),
        ("a **bold** and *slanted* word", "a bold and slanted word", {"bold": "1", "slanted": "3", "word": ""}),
        ("__strong__ and _weak_ and ~~gone~~", "strong and weak and gone", {"strong": "1", "weak": "3", "gone": "9"}),
        ("***both***", "both", {"both": "1;3"}),
        ("run `ls **x**` now", "run ls **x** now", {"ls": "36", "x": "36", "now": ""}),
        ("**use `x` here**", "use x here", {"use": "1", "x": "1;36", "here": "1"}),
        ("- one\n  * two\n1. three\n", "• one\n  • two\n1. three\n", {"one": ""}),
        ("- [x] done\n- [ ] open", "☑ done\n☐ open", {}),
        ("> quoted", "▎ quoted", {"quoted": "2"}),
        ("[a page](https://example.com/x)", "a page (https://example.com/x)", {"page": "4"}),
        ("```python\na = **b\n```\n**c**", "```python\na = **b\n```\nc", {"python": "2", "b": "36", "c": "1"}),
        ("   ```\n   x_y_z\n   ```", "   ```\n   x_y_z\n   ```", {"x_y_z": "36"}),
        ("| `a` | **b** |", "| `a` | **b** |", {"a": "", "b": ""}),
        ("---", "─" * 40, {}),
    ],
)
def test_marks_become_styles(text: str, shown: str, styles: dict[str, str]) -> None:
    assert plain(render(text)) == shown
    found = styled(text)
    assert {word: found[word] for word in styles} == styles


@pytest.mark.parametrize(
    "text",
    [
        "2 * 3 * 4",
        "snake_case_name and __init__x",
        "*args, **kwargs",
        "a [0] and x[1][2]",
        "not **closed and `open",
        "\\*literal\\*",
        "5*3*2 = 30",
        "~/bin and ~user",
        "#hashtag",
        "1.5 times",
        "**",
        "a\tb",
    ],
)
def test_what_only_looks_like_a_mark_stays(text: str) -> None:
    assert plain(render(text)) == text
    assert plain(render(*text)) == text


MARKS = st.text(st.sampled_from("*_`~[]()#->|+ .1xab\n\r\t:/é\\"), max_size=60)


@given(MARKS, st.lists(st.integers(0, 60), max_size=8))
def test_the_pieces_in_which_a_text_comes_do_not_matter(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert cells(render(*pieces)) == cells(render(text)) == cells(render(*text))


@given(st.lists(st.sampled_from(["**", "*", "`", "word ", "w" * 390, "](", "[", ")", "_", "~~", "\n"]), max_size=12))
def test_the_pieces_of_long_lines_do_not_matter_either(parts: list[str]) -> None:
    assert cells(render(*parts)) == cells(render("".join(parts)))


@given(MARKS)
def test_nothing_is_left_out_but_marks(text: str) -> None:
    letters = [char for char in text if char.isalnum()]
    assert [char for char in plain(render(text)) if char.isalnum()] == letters


@given(st.text())
def test_text_cannot_drive_the_terminal(text: str) -> None:
    assert "\x1b" not in plain(render(text))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", plain(render(text)))


def test_text_is_written_as_it_comes() -> None:
    markdown = TerminalMarkdown()
    assert plain(markdown.feed("Hello ")) == "Hello "
    assert plain(markdown.feed("**bo")) == ""
    assert plain(markdown.feed("ld** wor")) == "bold wor"
    assert plain(markdown.feed("ld\n```\nco")) == "ld\n```\nco"
    assert plain(markdown.feed("de")) == "de"


def test_a_mark_without_its_counterpart_holds_little_text() -> None:
    markdown = TerminalMarkdown()
    assert markdown.feed("`" + "x" * (MAX_HELD_CHARS - 100)) == ""
    assert len(markdown.feed("x" * 200)) > MAX_HELD_CHARS


def test_a_message_leaves_nothing_open_for_the_next() -> None:
    markdown = TerminalMarkdown()
    assert plain(markdown.feed("```\nopen") + markdown.finish()) == "```\nopen"
    assert markdown.feed("**bold** x") == "\x1b[1mbold\x1b[0m x"

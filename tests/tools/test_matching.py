"""The edit matcher: one place or none, and errors that help the model to its next try."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kedge.tools.errors import ToolError
from kedge.tools.matching import find

LINES = st.lists(st.text(alphabet="ab x\t{}é😀", max_size=6), min_size=1, max_size=12)


def applied(text: str, old: str, new: str, *, replace_all: bool = False) -> str:
    for start, end, put in reversed(find(text, old, new, replace_all=replace_all, shown="f").spans):
        text = text[:start] + put + text[end:]
    return text


@given(LINES, st.data())
def test_a_unique_text_is_replaced_where_it_is_and_nowhere_else(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    old, new = text[start:end], data.draw(st.text(alphabet="ab\n", max_size=5))
    assume(old and old != new and text.count(old) == 1 and text.find(old, text.find(old) + 1) < 0)
    assert applied(text, old, new) == text.replace(old, new)


@given(LINES, st.text(alphabet="ab x", min_size=1, max_size=2))
def test_replace_all_replaces_what_python_replaces(lines: list[str], old: str) -> None:
    text = "\n".join(lines)
    assume(old in text)
    assert applied(text, old, "NEW", replace_all=True) == text.replace(old, "NEW")


@given(LINES, st.text(alphabet="ab x\n\t", max_size=8), st.text(alphabet="ab\n", max_size=3), st.booleans())
def test_whatever_is_found_is_the_same_but_for_white_space(lines: list[str], old: str, new: str, every: bool) -> None:
    text = "\n".join(lines)
    try:
        match = find(text, old, new, replace_all=every, shown="f")
    except ToolError:
        return
    for start, end, _ in match.spans:
        assert "".join(text[start:end].split()) == "".join(old.split())
    assert every or len(match.spans) == 1
    assert all(a[1] <= b[0] for a, b in zip(match.spans, match.spans[1:], strict=False))


def test_a_text_that_is_there_twice_is_refused_with_its_lines() -> None:
    with pytest.raises(ToolError, match=r"f 2 times \(lines 1, 3\).*replace_all"):
        find("x = 1\ny\nx = 1\n", "x = 1", "x = 2", replace_all=False, shown="f")


def test_other_indentation_is_forgiven_and_the_files_own_is_kept() -> None:
    text = "class A:\n    def f(self):\n        if x:\n            return 1\n"
    old = "def f(self):\n    if x:\n        return 1"
    match = find(text, old, "def f(self):\n    return 2", replace_all=False, shown="f")
    assert "indentation" in match.note
    assert applied(text, old, "def f(self):\n    return 2") == "class A:\n    def f(self):\n        return 2\n"


def test_tabs_for_spaces_are_forgiven_only_where_every_line_agrees() -> None:
    assert applied("\tif x:\n\t\ty\n", "if x:\n\ty", "if z:\n\ty") == "\tif z:\n\t\ty\n"
    with pytest.raises(ToolError, match="not in f"):
        find("\tif x:\n\t\ty\n", "  if x:\n      y", "z", replace_all=False, shown="f")


def test_white_space_at_the_ends_of_lines_is_forgiven() -> None:
    match = find("a = 1  \nb = 2\n", "a = 1\nb = 2", "a = 3\nb = 2", replace_all=False, shown="f")
    assert "ends of lines" in match.note


def test_forgiveness_never_chooses_between_two_places() -> None:
    with pytest.raises(ToolError, match="2 times"):
        find("  a\n  b\n--\n    a\n    b\n", "a\nb", "c", replace_all=False, shown="f")


def test_no_match_shows_the_nearest_lines_with_their_numbers() -> None:
    text = "import os\n\ndef total(items):\n    return sum(items)\n"
    with pytest.raises(ToolError, match=r"(?s)not in f.*3\tdef total\(items\):.*4\t    return sum\(items\)"):
        find(text, "def total(item):\n    return sum(items)", "x", replace_all=False, shown="f")


def test_no_match_and_nothing_alike_says_so() -> None:
    with pytest.raises(ToolError, match="Nothing in there is like it"):
        find("one\ntwo\n", "zzzzzzzzzzzzzz", "x", replace_all=False, shown="f")


@pytest.mark.parametrize(("old", "new", "why"), [("", "x", "empty"), ("a", "a", "the same")])
def test_an_edit_that_says_nothing_is_refused(old: str, new: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        find("a", old, new, replace_all=False, shown="f")


def test_a_blank_line_that_is_wanted_stays_where_white_space_is_forgiven() -> None:
    text = "    a\n    b\n    c\n"
    assert applied(text, "a\nb\n", "a\n\nb\n\n") == "    a\n\n    b\n\n    c\n"
    assert applied(text, "a\nb\n", "\na\nb\n") == "\n    a\n    b\n    c\n"

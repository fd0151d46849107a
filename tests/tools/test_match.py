"""The edit matcher: one place or none, and errors that help the model to its next try."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kedge.tools.errors import ToolError
from kedge.tools.text.edit_plan import MAX_PLACES, find_match

LINES = st.lists(st.text(alphabet="ab x\t{}é😀", max_size=6), min_size=1, max_size=12)


def applied(text: str, old: str, new: str, *, replace_all: bool = False) -> str:
    for start, end, put in reversed(find_match(text, old, new, replace_all=replace_all, shown="f").spans):
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
        match = find_match(text, old, new, replace_all=every, shown="f")
    except ToolError:
        return
    for start, end, _ in match.spans:
        assert "".join(text[start:end].split()) == "".join(old.split())
    assert every or len(match.spans) == 1
    assert all(a[1] <= b[0] for a, b in zip(match.spans, match.spans[1:], strict=False))


def test_a_text_that_is_there_twice_is_refused_with_its_lines() -> None:
    with pytest.raises(ToolError, match=r"f 2 times \(lines 1, 3\).*replace_all"):
        find_match("x = 1\ny\nx = 1\n", "x = 1", "x = 2", replace_all=False, shown="f")


def test_other_indentation_is_forgiven_and_the_files_own_is_kept() -> None:
    text = "class A:\n    def f(self):\n        if x:\n            return 1\n"
    old = "def f(self):\n    if x:\n        return 1"
    match = find_match(text, old, "def f(self):\n    return 2", replace_all=False, shown="f")
    assert "indentation" in match.note
    assert applied(text, old, "def f(self):\n    return 2") == "class A:\n    def f(self):\n        return 2\n"


def test_tabs_for_spaces_are_forgiven_only_where_every_line_agrees() -> None:
    assert applied("\tif x:\n\t\ty\n", "if x:\n\ty", "if z:\n\ty") == "\tif z:\n\t\ty\n"
    with pytest.raises(ToolError, match="not in f"):
        find_match("\tif x:\n\t\ty\n", "  if x:\n      y", "z", replace_all=False, shown="f")


def test_white_space_at_the_ends_of_lines_is_forgiven() -> None:
    match = find_match("a = 1  \nb = 2\n", "a = 1\nb = 2", "a = 3\nb = 2", replace_all=False, shown="f")
    assert "ends of lines" in match.note


def test_forgiveness_never_chooses_between_two_places() -> None:
    with pytest.raises(ToolError, match="2 times"):
        find_match("  a\n  b\n--\n    a\n    b\n", "a\nb", "c", replace_all=False, shown="f")


def test_no_match_shows_the_nearest_lines_with_their_numbers() -> None:
    text = "import os\n\ndef total(items):\n    return sum(items)\n"
    with pytest.raises(ToolError, match=r"(?s)not in f.*3\tdef total\(items\):.*4\t    return sum\(items\)"):
        find_match(text, "def total(item):\n    return sum(items)", "x", replace_all=False, shown="f")


def test_no_match_and_nothing_alike_says_so() -> None:
    with pytest.raises(ToolError, match=r"not in f\. Nothing"):
        find_match("one\ntwo\n", "zzzzzzzzzzzzzz", "x", replace_all=False, shown="f")


@pytest.mark.parametrize(("old", "new", "why"), [("", "x", "empty"), ("a", "a", "the same")])
def test_an_edit_that_says_nothing_is_refused(old: str, new: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        find_match("a", old, new, replace_all=False, shown="f")


def test_a_blank_line_that_is_wanted_stays_where_white_space_is_forgiven() -> None:
    text = "    a\n    b\n    c\n"
    assert applied(text, "a\nb\n", "a\n\nb\n\n") == "    a\n\n    b\n\n    c\n"
    assert applied(text, "a\nb\n", "\na\nb\n") == "\n    a\n    b\n    c\n"


HOSTILE = {
    "one line of 1 MB, nearly the same": ("ab" * 500_000, "ab" * 400_000 + "c"),
    "one line of 10 MB": ("ab" * 5_000_000, "abc" * 1_000),
    "20,000 long lines, nearly the same": (("ab" * 250 + "\n") * 20_000, "ab" * 240 + "c" * 30),
    "a million lines of a file of five million, but for the last": ("a\n" * 5_000_000, " a\n" * 1_000_000 + "b"),
    "the same lines everywhere": ("a\n" * 150_000, " a\n" * 10_000),
    "the same lines everywhere, with deep margins": ((" " * 50 + "a\n") * 150_000, "a\n" * 100),
}


@pytest.mark.timeout(15)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("replace_all", [False, True])
def test_an_edit_that_is_made_to_be_slow_is_refused_in_seconds(name: str, replace_all: bool) -> None:
    text, old = HOSTILE[name]
    with pytest.raises(ToolError):
        find_match(text, old, "new", replace_all=replace_all, shown="f")


def test_more_places_than_memory_should_hold_are_refused() -> None:
    text = "a" * (MAX_PLACES + 1)
    with pytest.raises(ToolError, match="too often"):
        find_match(text, "a", "b", replace_all=True, shown="f")
    assert len(find_match(text[1:], "a", "b", replace_all=True, shown="f").spans) == MAX_PLACES


def test_a_long_line_is_not_shown_whole_when_it_is_the_nearest() -> None:
    with pytest.raises(ToolError, match=r"… \(1,000,001 characters\)") as caught:
        find_match("x" * 1_000_000 + "y", "x" * 1_000_000 + "z", "new", replace_all=False, shown="f")
    assert len(caught.value.text) < 5_000

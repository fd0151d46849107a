"""The edit matcher: one place or none, and errors that help the model to its next try."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kedge.tools.errors import ToolError
from kedge.tools.text.matching import MAX_PLACES, find_match

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
    assume(old[0] not in " \t")  # indentation has tests of its own
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


MARGINS = st.sampled_from(["", "  ", "    ", "      ", "        ", "\t", "\t\t"])
CODE = st.sampled_from(["if a:", "b()", "c()", "return d"])
# A depth and a line of code for each line. The first line is at the margin, and none at the ends is blank.
Block = list[tuple[int, str]]


def make_block(first: str, inner: Block, last: tuple[int, str]) -> Block:
    return [(0, first), *inner, last]


DEPTH = st.integers(0, 2)
BLOCK = st.builds(make_block, CODE, st.lists(st.tuples(DEPTH, CODE | st.just("")), max_size=3), st.tuples(DEPTH, CODE))


def write_block(block: Block, margin: str, unit: str) -> str:
    return "\n".join(margin + unit * depth + line if line else "" for depth, line in block)


@settings(max_examples=1000)
@given(
    BLOCK, BLOCK, MARGINS, MARGINS, MARGINS, st.sampled_from(["", "def f():\n", "x\n\n"]), st.booleans(), st.booleans()
)
def test_an_edit_with_another_indentation_is_refused_or_written_as_the_file_is_indented(
    old: Block,
    new: Block,
    there: str,
    old_margin: str,
    new_margin: str,
    before: str,
    with_line_end: bool,
    is_one_line: bool,
) -> None:
    """The file has its own margin and unit of indentation; the model's texts have others, together or each its own."""
    old = old[:1] if is_one_line else old
    unit = "\t" if "\t" in there else "    "
    end = "\n" if with_line_end else ""
    text = f"{before}{write_block(old, there, unit)}\nlast\n"
    wanted = f"{before}{write_block(new, there, unit)}\nlast\n"
    given_old = write_block(old, old_margin, "\t" if "\t" in old_margin else "    ") + end
    given_new = write_block(new, new_margin, "\t" if "\t" in new_margin else "    ") + end
    try:
        match = find_match(text, given_old, given_new, replace_all=False, shown="f")
    except ToolError:
        return
    if given_old not in text:
        assert match.note
    is_literal = not match.note and (old_margin == there or not given_old.startswith((" ", "\t")))
    expected = text.replace(given_old, given_new) if is_literal else wanted
    assert applied(text, given_old, given_new) == expected


def test_a_new_text_with_the_files_own_indentation_is_not_moved_further() -> None:
    text = "def f():\n        if x:\n            a()\n"
    with pytest.raises(ToolError, match="indentation"):
        find_match(text, "if x:\n    a()", "        if x:\n            b()", replace_all=False, shown="f")


def test_a_new_text_that_is_indented_less_than_the_old_one_does_not_fall_to_the_margin() -> None:
    text = "def f():\n        if x:\n            a()\n"
    with pytest.raises(ToolError, match="indentation"):
        find_match(text, "    if x:\n        a()", "if x:\n    b()", replace_all=False, shown="f")


def test_a_line_with_part_of_its_margin_stands_for_the_whole_line() -> None:
    text = "def f():\n        a()\n"
    assert applied(text, "    a()", "    b()\n    c()") == "def f():\n        b()\n        c()\n"
    with pytest.raises(ToolError, match="indentation"):
        find_match("        a(x)\n", "    a(", "    b(\n    c(", replace_all=False, shown="f")


@pytest.mark.parametrize("margin", ["", "\t", "    "])
def test_a_file_is_not_indented_in_two_ways(margin: str) -> None:
    """The new text is indented by two spaces more, and nothing in the file is."""
    text = f"f:\n{margin}a()\n"
    with pytest.raises(ToolError, match="in another way"):
        find_match(text, "  a()\n", "  if x:\n    a()\n", replace_all=False, shown="f")


def number(text: str, first: int = 1) -> str:
    return "\n".join(f"{first + i:>6}\t{line}" for i, line in enumerate(text.split("\n")))


def test_line_numbers_of_view_are_removed() -> None:
    text = "def f():\n    a()\n\n    b()\n"
    old, new = "    a()\n\n    b()", "    a()\n    c()"
    wanted = "def f():\n    a()\n    c()\n"
    assert applied(text, number(old, 2), number(new, 2)) == wanted
    assert applied(text, number(old, 2), new) == wanted
    assert applied(text, number(old, 2) + "\n", number(new, 2) + "\n") == wanted
    assert "line numbers" in find_match(text, number(old, 2), new, replace_all=False, shown="f").note


def test_numbers_that_are_in_the_file_stay() -> None:
    table = "     1\tone\n     2\ttwo\n"
    assert applied(table, "     1\tone", "     1\teins") == "     1\teins\n     2\ttwo\n"
    with pytest.raises(ToolError, match="is not in"):
        find_match("one\ntwo\n", "     1\tone\n     7\ttwo", "x", replace_all=False, shown="f")
    with pytest.raises(ToolError, match="line numbers"):
        find_match("one\ntwo\n", number("one\ntwo"), "     1\tone\nnew", replace_all=False, shown="f")


def test_a_column_of_numbers_is_not_taken_for_line_numbers() -> None:
    text = "id\tname\n1\tfoo\n"
    match = find_match(text, "     2\t1\tfoo", "1\tfoo2", replace_all=False, shown="a.tsv")
    [(start, end, new)] = match.spans
    assert text[:start] + new + text[end:] == "id\tname\n1\tfoo2\n"
    with pytest.raises(ToolError):
        find_match("a = 3\nabc\n", "3\tabc", "3\txyz", replace_all=False, shown="a.py")


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

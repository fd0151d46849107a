"""Diffs: line numbers, one column or two, and no line left out."""

from __future__ import annotations

import difflib
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from kedge.tui.chat.diffs import DiffView, draw_diff, parse_diff
from kedge.tui.chat.lines import width_of
from kedge.tui.chat.word_changes import ChangedLine, find_word_changes
from tests.tui.chat.support import DIFF, PALETTE, texts

FILES = st.lists(st.sampled_from(["a", "b", "--- x", "+++ y", "@@ -1 +1 @@", "", "def f():", "漢"]), max_size=12)


def test_one_column_has_the_line_numbers_of_the_new_file() -> None:
    assert texts(draw_diff(DIFF, 40, PALETTE)) == [
        " 10   def drop(depth):",
        " 11 -     return depth",
        " 11 +     # seven times the depth",
        " 12 +     return depth * 7",
        " 13   # below",
        " 14   class Anchor:",
        " 15       pass",
        "    ⋯",
        " 41   a = 1",
        " 41 - b = 2",
        " 42 + b = 3",
        " 43   c = 4",
    ]


def test_two_columns_put_replaced_lines_side_by_side() -> None:
    lines = texts(draw_diff(DIFF, 61, PALETTE, split=True))
    assert lines[1:3] == [
        " 11 -     return depth        │ 11 +     # seven times the de",
        "                              │      pth",
    ]
    assert lines[3] == "                              │ 12 +     return depth * 7"


def test_heads_name_each_file_and_count() -> None:
    two = DIFF + "--- b.txt\n+++ b.txt\n@@ -1 +1 @@\n-x\n+y\n"
    heads = [line for line in texts(draw_diff(two, 40, PALETTE, heads=True)) if line and not line.startswith(" ")]
    assert heads == ["src/anchor.py  +3 -2", "b.txt  +1 -1"]


def test_text_that_is_not_a_diff_is_shown_unchanged() -> None:
    assert texts(draw_diff("--- a\n+++ a\n(too many lines to compare)\n", 40, PALETTE)) == [
        "    (too many lines to compare)"
    ]
    assert draw_diff("", 40, PALETTE) == []


@given(FILES, FILES, st.integers(8, 60), st.booleans())
def test_every_line_of_a_diff_is_there_and_fits(old: list[str], new: list[str], width: int, is_split: bool) -> None:
    text = "\n".join(difflib.unified_diff(old, new, "x.py", "x.py", lineterm=""))
    diffs = parse_diff(text)
    assert len(diffs) == (old != new)
    for diff in diffs:
        assert [row.text for row in diff.rows if row.kind == "added"] == [
            line[1:] for line in text.split("\n")[2:] if line.startswith("+")
        ]
    assert all(width_of(line) == width for line in draw_diff(text, width, PALETTE, split=is_split))


def marked(old: str, new: str) -> list[str]:
    """Return the texts with the changed words in brackets."""
    lines = [ChangedLine(0, "removed", old), ChangedLine(1, "added", new)]
    found = find_word_changes(lines)
    drawn: list[str] = []
    for line in lines:
        text = line.text
        for start, end in reversed(found.get(line.at, [])):
            text = f"{text[:start]}[{text[start:end]}]{text[end:]}"
        drawn.append(text)
    return drawn


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    return depth", "    return depth[ * 7]"),
        ("a = [1] + b", "a = [2] + b"),
        ("call(one)", "call(one[, two])"),
        ("[first second] third fourth", "[neither] third fourth"),
        ("漢字 は [x]", "漢字 は [y]"),
    ],
)
def test_the_words_that_changed_in_a_line_are_marked(old: str, new: str) -> None:
    plain = [each.replace("[", "").replace("]", "") for each in (old, new)]
    assert marked(*plain) == [old, new]


def test_lines_that_have_nothing_in_common_are_not_marked() -> None:
    assert marked("import os", "def first(a, b, c): pass") == ["import os", "def first(a, b, c): pass"]


def test_a_line_is_compared_with_the_one_that_it_became() -> None:
    found = find_word_changes(
        [
            ChangedLine(3, "removed", "    return depth"),
            ChangedLine(4, "added", "    # a remark about something else"),
            ChangedLine(5, "added", "    return depth * 7"),
        ]
    )
    assert (found.get(4), found[5]) == (None, [(16, 20)])


@pytest.mark.parametrize("is_split", [False, True])
def test_changed_words_have_another_background(is_split: bool) -> None:
    text = "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-one two three\n+one four three\n"
    grounds = {
        segment.text: segment.style.bgcolor
        for line in draw_diff(text, 80, PALETTE, split=is_split)
        for segment in line
        if segment.style
    }
    assert grounds["two"] not in (None, grounds["one "])
    assert grounds["four"] not in (None, grounds["two"])


@pytest.mark.slow
@pytest.mark.parametrize("line", ["word " * 90, "(" * 450, "x = f(a, b); " * 30, "a b " * 5000])
def test_a_large_diff_is_compared_in_bounded_time(line: str) -> None:
    count = 4000
    changed = [ChangedLine(i, "removed" if i < count else "added", f"{i} {line} {i}") for i in range(2 * count)]
    begun = time.process_time()
    find_word_changes(changed)
    assert time.process_time() - begun < 2  # 0.2 s where nothing else runs


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(st.lists(st.tuples(st.sampled_from(["removed", "added"]), st.text("ab (漢", max_size=12)), max_size=12))
def test_marked_ranges_are_within_their_lines_and_ascend(lines: list[tuple[str, str]]) -> None:
    changed = [ChangedLine(index, kind, text) for index, (kind, text) in enumerate(lines)]
    for index, spans in find_word_changes(changed).items():
        edges = [edge for span in spans for edge in span]
        assert edges == sorted(set(edges))
        assert not edges or (edges[0] >= 0 and edges[-1] <= len(changed[index].text))


class Viewer(App[None]):
    def compose(self) -> ComposeResult:
        yield DiffView(DIFF)


async def test_the_view_scrolls_and_splits_where_there_is_room() -> None:
    app = Viewer()
    async with app.run_test(size=(140, 6)) as pilot:
        view = app.query_one(DiffView)
        assert view.is_split
        view.toggle_split()
        await pilot.pause()
        assert not view.is_split
        assert view.virtual_size.height == 13
        view.focus()
        await pilot.press("end")
        await pilot.pause()
        await pilot.wait_for_animation()
        assert view.render_line(5).text.rstrip() == " 43   c = 4"
        view.show("")
        await pilot.pause()
        assert view.render_line(0).text.strip() == ""

"""Diffs: line numbers, one column or two, and no line left out."""

from __future__ import annotations

import difflib

from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from kedge.tui.chat.diffs import DiffView, draw_diff, parse_diff
from kedge.tui.chat.lines import width_of
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

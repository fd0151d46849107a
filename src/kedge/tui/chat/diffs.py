"""Parses unified diffs and draws them with line numbers and syntax highlighting, in one column or side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, pairwise, zip_longest
from typing import Literal, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kedge.protocol import text_safety
from kedge.protocol.text_safety import visible
from kedge.tui.chat.code import highlight_file
from kedge.tui.chat.lines import Line, blank, chop, make_strip, make_strips
from kedge.tui.chat.palette import Palette, get_palette
from kedge.tui.chat.word_changes import ChangedLine, Spans, find_word_changes

RowKind = Literal["same", "added", "removed", "gap"]

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class Row(NamedTuple):
    kind: RowKind
    text: str
    old: int | None = None  # line number in the old file
    new: int | None = None


class Diff(NamedTuple):
    path: str
    rows: tuple[Row, ...]
    added: int
    removed: int


def parse_diff(text: str) -> list[Diff]:
    """Return a `Diff` for each file. Text that is not a diff becomes one without a path, so that nothing is hidden."""
    diffs: list[Diff] = []
    path, rows = "", list[Row]()
    old = new = old_left = new_left = 0
    for line in text.removesuffix("\n").split("\n") if text else ():
        if old_left <= 0 and new_left <= 0 and line.startswith(("--- ", "+++ ", "diff ", "index ")):
            if rows:
                diffs.append(_make_diff(path, rows))
                path, rows = "", []
            if line.startswith(("--- ", "+++ ")):
                path = _read_path(line) or path
        elif hunk := _HUNK.match(line):
            if rows:
                rows.append(Row("gap", ""))
            old, new = int(hunk[1]), int(hunk[3])
            old_left, new_left = int(hunk[2] or 1), int(hunk[4] or 1)
        elif line.startswith("+") and new_left > 0:
            rows.append(Row("added", line[1:], None, new))
            new, new_left = new + 1, new_left - 1
        elif line.startswith("-") and old_left > 0:
            rows.append(Row("removed", line[1:], old, None))
            old, old_left = old + 1, old_left - 1
        elif (old_left > 0 or new_left > 0) and line[:1] in ("", " "):  # else a remark that the diff was cut
            rows.append(Row("same", line[1:], old, new))
            old, new, old_left, new_left = old + 1, new + 1, old_left - 1, new_left - 1
        elif not line.startswith("\\"):  # `\ No newline at end of file`
            rows.append(Row("gap", line))
    if rows or path:
        diffs.append(_make_diff(path, rows))
    return diffs


def pair_rows(rows: Sequence[Row]) -> list[tuple[Row | None, Row | None]]:
    """Return the rows for the left and right side: removed lines stand beside the added lines that replace them."""
    pairs: list[tuple[Row | None, Row | None]] = []
    removed: list[Row] = []
    added: list[Row] = []

    def flush() -> None:
        pairs.extend(zip_longest(removed, added))
        removed.clear()
        added.clear()

    for row in rows:
        if row.kind == "removed":
            if added:
                flush()
            removed.append(row)
        elif row.kind == "added":
            added.append(row)
        else:
            flush()
            pairs.append((row, row))
    flush()
    return pairs


def shorten_blank_runs(diff: Diff) -> Diff:
    """Replace long runs of blank lines or spaces by a mark with their number: they could push text off the screen."""
    rows: list[Row] = []
    for (kind, is_blank), run in groupby(diff.rows, lambda row: (row.kind, not row.text.strip())):
        group = list(run)
        if is_blank and kind != "gap" and len(group) > text_safety.MOST_BLANK_LINES:
            rows.append(group[0]._replace(text=text_safety.blank_lines_mark(len(group))))
        else:
            rows += [row._replace(text=text_safety.without_blank_runs(row.text)) for row in group]
    return diff._replace(rows=tuple(rows))


def _make_diff(path: str, rows: list[Row]) -> Diff:
    kinds = [row.kind for row in rows]
    return Diff(path, tuple(rows), kinds.count("added"), kinds.count("removed"))


def _read_path(line: str) -> str:
    name = line[4:].split("\t")[0].strip()
    return "" if name == "/dev/null" else name.removeprefix("a/" if line[0] == "-" else "b/")


MIN_SPLIT = 120  # columns needed for two files side by side

_CHANGED = ("removed", "added")
_MARKS = {"same": " ", "added": "+", "removed": "-", "gap": " "}


def draw_counts(added: int, removed: int, palette: Palette) -> Line:
    return [Segment(f"+{added}", palette.success), Segment(f" -{removed}", palette.error)]


def draw_diff(text: str, width: int, palette: Palette, *, split: bool = False, heads: bool = False) -> list[Line]:
    """Draw lines of exactly that width. `heads` puts each file's name and counts above its lines."""
    lines: list[Line] = []
    for diff in map(shorten_blank_runs, parse_diff(visible(text))):
        if heads:
            if lines:
                lines.append(list(make_strip([], width)))
            head = [Segment(f"{diff.path or 'changes'}  ", palette.text + Style(bold=True))]
            lines.append(list(make_strip([*head, *draw_counts(diff.added, diff.removed, palette)], width)))
        lines += _FileDiff(diff, palette).draw_split(width) if split else _FileDiff(diff, palette).draw_unified(width)
    return lines


class _FileDiff:
    def __init__(self, diff: Diff, palette: Palette) -> None:
        self._diff = diff
        self._palette = palette
        self._old = self._highlight("removed")
        self._new = self._highlight("added")
        changed = [ChangedLine(i, row.kind, row.text) for i, row in enumerate(diff.rows) if row.kind in _CHANGED]
        self._words = find_word_changes(changed)
        numbers = [number for row in diff.rows for number in (row.old, row.new) if number is not None]
        self._digits = max(3, len(str(max(numbers, default=0))))

    def draw_unified(self, width: int) -> list[Line]:
        lines: list[Line] = []
        for index, row in enumerate(self._diff.rows):
            number = row.old if row.kind == "removed" else row.new
            lines += self._draw_row(index, row, number, width)
        return lines

    def draw_split(self, width: int) -> list[Line]:
        left = (width - 1) // 2
        right = width - 1 - left
        bar = Segment("│", self._palette.muted)
        get_index = {id(row): index for index, row in enumerate(self._diff.rows)}
        lines: list[Line] = []
        for old, new in pair_rows(self._diff.rows):
            olds = self._draw_row(get_index[id(old)], old, old.old, left) if old else []
            news = self._draw_row(get_index[id(new)], new, new.new, right) if new else []
            for one, two in zip_longest(olds, news):
                lines.append([*(one or make_strip([], left)), bar, *(two or make_strip([], right))])
        return lines

    def _draw_row(self, index: int, row: Row, number: int | None, width: int) -> list[Line]:
        palette = self._palette
        if row.kind == "gap":
            mark = row.text or "⋯"
            return [list(make_strip([Segment(f"{' ' * self._digits} {mark}", palette.muted)], width))]
        fill, ink, word = Style.null(), palette.muted, Style.null()
        if row.kind == "added":
            fill, ink, word = palette.added, palette.success, palette.added_word
        elif row.kind == "removed":
            fill, ink, word = palette.removed, palette.error, palette.removed_word
        head = Segment(f"{number if number is not None else '':>{self._digits}} {_MARKS[row.kind]} ", ink + fill)
        rest = Segment(" " * len(head.text), ink + fill)
        code = (self._old if row.kind == "removed" else self._new)[index]
        painted = [Segment(text, (style or palette.text) + fill) for text, style, _ in code]
        if spans := self._words.get(index):
            painted = _mark_words(painted, spans, word)
        lines = chop(painted, max(1, width - len(head.text)))
        return [list(make_strip([rest if i else head, *each], width, fill)) for i, each in enumerate(lines)]

    def _highlight(self, kind: str) -> dict[int, Line]:
        """Highlight one side as a whole: a single line may be the middle of a string. Returns lines by row index."""
        seen = [(i, row) for i, row in enumerate(self._diff.rows) if row.kind in ("same", kind)]
        if not seen:
            return {}
        lines = highlight_file("\n".join(row.text for _, row in seen), self._diff.path, self._palette)
        return {index: line for (index, _), line in zip(seen, lines, strict=True)}


def _mark_words(line: Line, spans: Spans, style: Style) -> Line:
    """Add a style to ranges of characters, which ascend."""
    marked: Line = []
    at = 0
    for text, own, _ in line:
        cuts = {0, len(text)}
        cuts |= {edge - at for span in spans for edge in span if 0 < edge - at < len(text)}
        edges = sorted(cuts)
        for start, end in pairwise(edges):
            is_changed = any(first <= at + start < last for first, last in spans)
            marked.append(Segment(text[start:end], (own or Style.null()) + style if is_changed else own))
        at += len(text)
    return marked


class DiffView(ScrollView, can_focus=True):
    """A diff that can be scrolled; side by side if the width allows it, until the user toggles that."""

    def __init__(self, text: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.styles.overflow_x = "hidden"
        self.styles.scrollbar_size_vertical = 1
        self._text = text
        self._is_split: bool | None = None
        self._strips: list[Strip] = []
        self._drawn_for: tuple[object, ...] = ()

    def show(self, text: str) -> None:
        self._text = text
        self._draw()

    @property
    def is_split(self) -> bool:
        return self.size.width >= MIN_SPLIT if self._is_split is None else self._is_split

    def toggle_split(self) -> None:
        self._is_split = not self.is_split
        self._draw()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def render_line(self, y: int) -> Strip:
        at = self.scroll_offset.y + y
        strip = self._strips[at] if at < len(self._strips) else blank(self.size.width)
        return strip.apply_style(get_palette(self).ground)

    def _draw(self) -> None:
        width = self.size.width
        palette = get_palette(self)
        wanted = (self._text, width, self.is_split, palette)
        if not width or wanted == self._drawn_for:
            return
        self._drawn_for = wanted
        lines = draw_diff(self._text, width, palette, split=self.is_split, heads=True)
        self._strips = make_strips(lines, width)
        self.virtual_size = Size(width, len(self._strips))
        self.refresh()

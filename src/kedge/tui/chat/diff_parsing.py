"""A unified diff as rows: which line of which side, and which belong side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, zip_longest
from typing import Literal, NamedTuple

from kedge.protocol import text_safety

RowKind = Literal["same", "added", "removed", "gap"]

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class Row(NamedTuple):
    kind: RowKind
    text: str
    old: int | None = None  # its number in the file before
    new: int | None = None


class Diff(NamedTuple):
    path: str
    rows: tuple[Row, ...]
    added: int
    removed: int


def parse(text: str) -> list[Diff]:
    """One for each file. Text that is no diff is a diff without a path, its lines unchanged: nothing is hidden."""
    diffs: list[Diff] = []
    path, rows = "", list[Row]()
    old = new = old_left = new_left = 0
    for line in text.removesuffix("\n").split("\n") if text else ():
        if old_left <= 0 and new_left <= 0 and line.startswith(("--- ", "+++ ", "diff ", "index ")):
            if rows:
                diffs.append(_diff(path, rows))
                path, rows = "", []
            if line.startswith(("--- ", "+++ ")):
                path = _path(line) or path
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
        elif old_left > 0 or new_left > 0:
            rows.append(Row("same", line[1:], old, new))
            old, new, old_left, new_left = old + 1, new + 1, old_left - 1, new_left - 1
        elif not line.startswith("\\"):  # `\ No newline at end of file`
            rows.append(Row("gap", line))
    if rows or path:
        diffs.append(_diff(path, rows))
    return diffs


def pairs(rows: Sequence[Row]) -> list[tuple[Row | None, Row | None]]:
    """What stands left and right: removed lines beside the added ones that took their place."""
    paired: list[tuple[Row | None, Row | None]] = []
    removed: list[Row] = []
    added: list[Row] = []

    def flush() -> None:
        paired.extend(zip_longest(removed, added))
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
            paired.append((row, row))
    flush()
    return paired


def without_blank_runs(diff: Diff) -> Diff:
    """Long runs of blank lines or spaces become a mark with their number, so that they push nothing out of sight."""
    rows: list[Row] = []
    for (kind, is_blank), run in groupby(diff.rows, lambda row: (row.kind, not row.text.strip())):
        group = list(run)
        if is_blank and kind != "gap" and len(group) > text_safety.MOST_BLANK_LINES:
            rows.append(group[0]._replace(text=text_safety.blank_lines_mark(len(group))))
        else:
            rows += [row._replace(text=text_safety.without_blank_runs(row.text)) for row in group]
    return diff._replace(rows=tuple(rows))


def _diff(path: str, rows: list[Row]) -> Diff:
    added = sum(row.kind == "added" for row in rows)
    return Diff(path, tuple(rows), added, sum(row.kind == "removed" for row in rows))


def _path(line: str) -> str:
    name = line[4:].split("\t")[0].strip()
    return "" if name == "/dev/null" else name.removeprefix("a/" if line[0] == "-" else "b/")

"""What an edit changes, as people and models read it."""

from __future__ import annotations

import difflib
from typing import NamedTuple

MAX_DIFF_CHARS = 20_000  # in a result or a request; the files themselves have the rest
MAX_DIFF_LINES = 20_000  # difflib takes quadratic time: a file that large is only counted


class Diff(NamedTuple):
    text: str
    added: int
    removed: int

    @property
    def counts(self) -> str:
        return f"+{self.added} -{self.removed}"


def diff(before: str, after: str, name: str) -> Diff:
    """A unified diff. The lines that both begin and end with are left out first, so that a large file costs little."""
    old, new = _lines(before), _lines(after)
    head = _same_at_start(old, new)
    tail = min(_same_at_start(old[::-1], new[::-1]), len(old) - head, len(new) - head)
    context = 3
    start, skipped_end = max(0, head - context), max(0, tail - context)
    old_part, new_part = old[start : len(old) - skipped_end], new[start : len(new) - skipped_end]
    if len(old_part) + len(new_part) > MAX_DIFF_LINES:
        removed, added = len(old) - head - tail, len(new) - head - tail
        return Diff(f"--- {name}\n+++ {name}\n(too many lines to compare)\n", added, removed)
    lines = _moved(list(difflib.unified_diff(old_part, new_part, name, name, n=context, lineterm="")), start)
    body = lines[2:]
    added = sum(line.startswith("+") for line in body)
    removed = sum(line.startswith("-") for line in body)
    text = "\n".join(lines) + "\n" if lines else ""
    if len(text) > MAX_DIFF_CHARS:
        shown = text[: text.rfind("\n", 0, MAX_DIFF_CHARS) + 1]
        left_out = text.count("\n") - shown.count("\n")
        text = f"{shown}(cut: {left_out} more lines)\n"
    return Diff(text, added, removed)


def _lines(text: str) -> list[str]:
    """As files and editors count them: a form feed or a Unicode separator, where `str.splitlines` parts, ends none. Nor
    does a carriage return alone: a shell or an interpreter reads on, and whoever is asked must see that."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _same_at_start(old: list[str], new: list[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _moved(lines: list[str], by: int) -> list[str]:
    """The hunks' line numbers, counted from the file's first line instead of the part's."""
    if not by:
        return lines
    return [_moved_hunk(line, by) if line.startswith("@@ ") else line for line in lines]


def _moved_hunk(line: str, by: int) -> str:
    _, old, new, _ = line.split(" ", 3)
    return f"@@ {_moved_range(old, by)} {_moved_range(new, by)} @@"


def _moved_range(given: str, by: int) -> str:
    start, comma, count = given[1:].partition(",")
    return f"{given[0]}{int(start) + by}{comma}{count}"

"""Line diffs for people and models, in bounded time."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple, TypeVar

from kedge.files.blobs import Blobs
from kedge.files.states import State

MAX_DIFF_CHARS = 400_000  # longer diffs are cut, with a line that says so
MAX_RESULT_CHARS = 20_000  # in a tool result
MAX_DIFF_LINES = 20_000  # more lines are not compared: all old ones count as removed, all new ones as added
MAX_STEPS = 5_000_000  # of the comparison: a second at most; rewriting a real file of 8,000 lines takes under a million
CONTEXT = 3
MAX_COUNTED_BYTES = 1024 * 1024  # a larger file is not text that people read

T = TypeVar("T", bound=Hashable)


class TooMuchWork(Exception):
    """The comparison took more steps than allowed."""


class BoundedMatcher(difflib.SequenceMatcher[T]):
    """`difflib.SequenceMatcher` that raises `TooMuchWork` after `max_steps`, because its time can be cubic.

    A step is a pair of equal elements that the matcher compares: some five million take a second.
    """

    a: Sequence[T]
    b2j: dict[T, list[int]]
    max_steps = 0
    _steps = 0
    _pairs: list[int] | None = None  # pairs of equal elements before each index of the first sequence

    def set_seq1(self, a: Sequence[T]) -> None:
        super().set_seq1(a)
        self._pairs = None

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        if self._pairs is None:
            counts = (1 + len(self.b2j.get(element, ())) for element in self.a)
            self._pairs = list(accumulate(counts, initial=0))
        end = len(self.a) if ahi is None else ahi
        self._steps += self._pairs[end] - self._pairs[alo]
        if self._steps > self.max_steps:
            raise TooMuchWork
        return super().find_longest_match(alo, ahi, blo, bhi)


class Diff(NamedTuple):
    text: str
    added: int
    removed: int
    hunks: Sequence[tuple[int, int]] = ()  # first and last changed line in the new text; last < first: only removed

    @property
    def counts(self) -> str:
        return f"+{self.added} -{self.removed}"


def diff(before: str, after: str, name: str) -> Diff:
    """Return a unified diff. Common lines at the start and end are skipped first, so that a large file costs little.

    If the smallest diff would take too long to find, all lines between them count as removed and added.
    """
    old, new = _split_lines(before), _split_lines(after)
    if old == new:
        return Diff("", 0, 0)
    head = _count_common_start(old, new)
    tail = min(_count_common_start(old[::-1], new[::-1]), len(old) - head, len(new) - head)
    start, skipped_end = max(0, head - CONTEXT), max(0, tail - CONTEXT)
    old_part, new_part = old[start : len(old) - skipped_end], new[start : len(new) - skipped_end]
    context = (head - start, tail - skipped_end)
    if len(old_part) + len(new_part) > MAX_DIFF_LINES:
        group = _replace_all(old_part, new_part, *context)
        lines = list(islice(_hunk(group, old_part, new_part, start), MAX_DIFF_LINES))
        missing = 1 + len(old_part) + len(new_part) - sum(context) - len(lines)
        text = cut_diff("\n".join([f"--- {name}", f"+++ {name}", *lines]) + "\n", MAX_DIFF_CHARS, missing)
        return Diff(text, len(new) - head - tail, len(old) - head - tail, [(head + 1, len(new) - tail)])
    groups = _groups(old_part, new_part, *context)
    lines = [line for group in groups for line in _hunk(group, old_part, new_part, start)]
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    text = "\n".join([f"--- {name}", f"+++ {name}", *lines]) + "\n"
    return Diff(cut_diff(text, MAX_DIFF_CHARS), added, removed, [_changed_lines(group, start) for group in groups])


def cut_diff(text: str, max_chars: int, missing: int = 0) -> str:
    """Cut a diff at a line end, and say how many lines are missing; `missing` are missing already."""
    if len(text) > max_chars:
        shown = text[: text.rfind("\n", 0, max_chars) + 1]
        missing += text.count("\n") - shown.count("\n")
        text = shown
    return f"{text}(cut: {missing} more lines)\n" if missing else text


Operation = tuple[str, int, int, int, int]


def _groups(old: list[str], new: list[str], head: int, tail: int) -> list[list[Operation]]:
    matcher = BoundedMatcher(None, old, new)
    matcher.max_steps = MAX_STEPS
    try:
        return list(matcher.get_grouped_opcodes(CONTEXT))
    except TooMuchWork:
        return [_replace_all(old, new, head, tail)]


def _replace_all(old: list[str], new: list[str], head: int, tail: int) -> list[Operation]:
    old_end, new_end = len(old) - tail, len(new) - tail
    return [
        ("equal", 0, head, 0, head),
        ("replace", head, old_end, head, new_end),
        ("equal", old_end, len(old), new_end, len(new)),
    ]


def _hunk(group: list[Operation], old: list[str], new: list[str], start: int) -> Iterator[str]:
    """Yield the lines of a hunk. `old` and `new` begin `start` lines after the first line of the file."""
    _, first_old, _, first_new, _ = group[0]
    _, _, end_old, _, end_new = group[-1]
    yield f"@@ -{_range(first_old, end_old, start)} +{_range(first_new, end_new, start)} @@"
    for kind, i1, i2, j1, j2 in group:
        if kind == "equal":
            yield from (f" {line}" for line in old[i1:i2])
        else:
            yield from (f"-{line}" for line in old[i1:i2])
            yield from (f"+{line}" for line in new[j1:j2])


def _changed_lines(group: list[Operation], start: int) -> tuple[int, int]:
    changed = [(j1, j2) for kind, _, _, j1, j2 in group if kind != "equal"]
    return changed[0][0] + start + 1, changed[-1][1] + start


def _range(first: int, end: int, start: int) -> str:
    """Format a line range like `diff -u`, where an empty range names the line before it."""
    count = end - first
    at = first + start + (1 if count else 0)
    return f"{at}" if count == 1 else f"{at},{count}"


def _split_lines(text: str) -> list[str]:
    """Split at line feeds only. `str.splitlines` also splits at form feeds, Unicode separators, lone carriage returns,
    where a shell or an interpreter does not: the person who approves a diff must see that."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _count_common_start(old: list[str], new: list[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def count_lines(before: State, after: State, blobs: Blobs) -> tuple[int, int]:
    """Return how many lines were added and removed. Fast for thousands of files: ignores the order of lines. Blocks."""
    old, new = _count_each_line(before, blobs), _count_each_line(after, blobs)
    return (new - old).total(), (old - new).total()


def _count_each_line(state: State, blobs: Blobs) -> Counter[bytes]:
    if state.kind != "file" or state.size > MAX_COUNTED_BYTES:
        return Counter()
    data = blobs.get(state.digest) or b""
    return Counter() if b"\0" in data else Counter(data.splitlines())

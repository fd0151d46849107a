"""Finds the words that differ between a removed line and the added line that replaces it, in bounded time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Spans = list[tuple[int, int]]  # ranges of characters

MAX_LINE_CHARS = 500  # longer lines are not compared
MAX_WORD_PAIRS = 10_000  # of two lines, without the words that both begin and end with
MAX_TOTAL_PAIRS = 200_000  # of a whole diff: takes about a tenth of a second
MAX_LINE_PAIRS = 64  # of a block, for finding the lines that belong together
MIN_SHARED = 0.4  # of the characters: lines that share less have nothing to do with each other

_WORD = re.compile(r"\w+|\s+|[^\w\s]")


class ChangedLine(NamedTuple):
    at: int  # its row in the diff
    kind: str
    text: str


def find_word_changes(lines: Sequence[ChangedLine]) -> dict[int, Spans]:
    """Return the changed ranges of removed and added lines, by index. `lines` are the removed and added ones."""
    found: dict[int, Spans] = {}
    left = MAX_TOTAL_PAIRS
    for removed, added in _find_blocks(lines):
        for old, new in _pair_lines(removed, added):
            left -= len(old.text) + len(new.text)
            if left < 0:
                return found
            if max(len(old.text), len(new.text)) > MAX_LINE_CHARS:
                continue
            spans, cost = _compare(_split(old.text), _split(new.text))
            left -= cost
            if spans is not None:
                found[old.at], found[new.at] = spans
    return found


def _find_blocks(lines: Sequence[ChangedLine]) -> Iterator[tuple[list[ChangedLine], list[ChangedLine]]]:
    """Yield runs of removed lines with the added lines that follow them at once."""
    removed, added = list[ChangedLine](), list[ChangedLine]()
    last = -1
    for line in lines:
        if line.at != last + 1 or (line.kind == "removed" and added):
            if removed and added:
                yield removed, added
            removed, added = [], []
        (removed if line.kind == "removed" else added).append(line)
        last = line.at
    if removed and added:
        yield removed, added


def _pair_lines(
    removed: Sequence[ChangedLine], added: Sequence[ChangedLine]
) -> Iterator[tuple[ChangedLine, ChangedLine]]:
    """Pair lines in order: one by one if there are as many, else those that are most alike."""
    if len(removed) == len(added) or len(removed) * len(added) > MAX_LINE_PAIRS:
        yield from zip(removed, added, strict=False)
        return
    shorter, longer = sorted((removed, added), key=len)
    words = [Counter(_WORD.findall(line.text.strip()[:MAX_LINE_CHARS])) for line in longer]
    first = 0
    for at, line in enumerate(shorter):
        last = len(longer) - (len(shorter) - at)  # the lines behind it need partners, too
        own = Counter(_WORD.findall(line.text.strip()[:MAX_LINE_CHARS]))
        best = max(range(first, last + 1), key=lambda other: _measure(own, words[other]))
        first = best + 1
        yield (line, longer[best]) if shorter is removed else (longer[best], line)


def _measure(one: Counter[str], other: Counter[str]) -> float:
    """Return how alike two lines are, by the words that both have."""
    return 2 * (one & other).total() / max(one.total() + other.total(), 1)


def _split(text: str) -> list[str]:
    return _WORD.findall(text)


def _compare(old: list[str], new: list[str]) -> tuple[tuple[Spans, Spans] | None, int]:
    """Return the ranges that differ, or None if the lines are too different; and how much work it was."""
    most = min(len(old), len(new))
    start = next((at for at in range(most) if old[at] != new[at]), most)
    end = next((at for at in range(most - start) if old[-1 - at] != new[-1 - at]), most - start)
    old_middle, new_middle = old[start : len(old) - end], new[start : len(new) - end]
    cost = len(old_middle) * len(new_middle)
    if cost > MAX_WORD_PAIRS:
        return None, 0
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(None, old_middle, new_middle, autojunk=False)
    old_words, new_words = set[int](), set[int]()
    for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        if kind != "equal":
            old_words.update(range(start + old_from, start + old_to))
            new_words.update(range(start + new_from, start + new_to))
    total = max(_count_chars(old, ()), _count_chars(new, ()))
    shared = _count_chars(old, old_words)
    if not total or shared < MIN_SHARED * total:
        return None, cost
    return (_find_spans(old, old_words), _find_spans(new, new_words)), cost


def _count_chars(words: Sequence[str], without: set[int] | tuple[()]) -> int:
    return sum(len(word) for at, word in enumerate(words) if at not in without and not word.isspace())


def _find_spans(words: Sequence[str], changed: set[int]) -> Spans:
    """Return the ranges of the changed words; two that only a space separates are one."""
    spans: Spans = []
    column = 0
    for at, word in enumerate(words):
        is_between = word.isspace() and at - 1 in changed and at + 1 in changed
        if at in changed or is_between:
            if spans and spans[-1][1] == column:
                spans[-1] = (spans[-1][0], column + len(word))
            else:
                spans.append((column, column + len(word)))
        column += len(word)
    return spans

"""Which names somebody means who typed a few characters of one: the best first.

What is typed stands in the name in its order, with anything between (upper and lower case are alike). Better is what
was typed in one piece, at the start of the last word of a path or of any word in it, and in a shorter name.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from typing import NamedTuple

_MAX_TYPED = 4_096  # no path is longer
_WORD = re.compile(r"(?:^|[/_\-. ])([^/_\-. ])")


class Rank(NamedTuple):
    """Lower is better."""

    how: int
    gaps: int  # characters between those that were typed
    length: int
    name: str


def best(names: Sequence[str], typed: str, count: int) -> list[str]:
    """The names that fit, at most `count` of them. Names of directories end with a slash."""
    wanted = typed.casefold()
    if len(wanted) > _MAX_TYPED:
        return []
    if not wanted:
        return heapq.nsmallest(count, names, key=lambda name: (name.count("/", 0, -1), name.casefold()))
    # Each character where it is first found: a pattern that may go back takes for ever for names made for that.
    fits = re.compile("".join(f"(?>.*?{re.escape(char)})" for char in wanted), re.DOTALL).match
    found = (Rank(*_how(low, wanted), len(name), name) for name in names if fits(low := name.casefold()))
    return [rank.name for rank in heapq.nsmallest(count, found)]


def _how(name: str, typed: str) -> tuple[int, int]:
    path = name.removesuffix("/")
    last = path[path.rfind("/") + 1 :]
    for offset, text in ((0, path), (0, last)) if "/" in typed else ((0, last), (4, path)):
        if (at := text.find(typed)) >= 0:
            if text == typed:
                return offset, 0
            if at == 0:
                return offset + 1, 0
            return offset + (2 if _starts_word(text, typed) else 3), 0
    if typed == name:
        return 0, 0
    if _is_spread(typed, "".join(_WORD.findall(last))):
        return 7, 0
    if (span := _span(last, typed)) is not None:
        return 8, span - len(typed)
    span = _span(name, typed)
    return 9, len(name) if span is None else span - len(typed)


def _starts_word(text: str, typed: str) -> bool:
    at = text.find(typed)
    while at > 0:
        if text[at - 1] in "/_-. ":
            return True
        at = text.find(typed, at + 1)
    return False


def _is_spread(typed: str, text: str) -> bool:
    rest = iter(text)
    return all(char in rest for char in typed)


def _span(text: str, typed: str) -> int | None:
    """The shortest piece that ends where what was typed is first complete."""
    at = -1
    for char in typed:
        at = text.find(char, at + 1)
        if at < 0:
            return None
    start = at + 1
    for char in reversed(typed):
        start = text.rfind(char, 0, start)
    return at + 1 - start

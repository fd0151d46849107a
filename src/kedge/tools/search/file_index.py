"""File names of a workspace for completion: listed once for many keystrokes, ranked by a fuzzy match.

The typed characters must occur in the name in order, ignoring case. Better are matches in one piece, at the start of
the last part of a path or of a word in it, and in a shorter name. Ignored files are left out.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

MAX_FILES = 100_000  # ranking more takes longer than a person waits after a keystroke
LIST_S = 2.0
# A listing is used for at least FRESH_S, and for 10 times as long as it took: new files appear soon, slow trees are not
# listed all the time.
FRESH_S = 3.0
_FRESH_FACTOR = 10
_MAX_LISTINGS = 8  # workspaces


class FileMatches(NamedTuple):
    names: list[str]
    is_cut: bool  # the listing is incomplete


class _Listing(NamedTuple):
    names: list[str]
    is_cut: bool
    fresh_until: float


class FileIndex:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listings: dict[Path, _Listing] = {}  # ordered by last use
        self._locks: dict[Path, asyncio.Lock] = {}

    async def find(self, directory: Path, typed: str, count: int) -> FileMatches:
        """Return the best matches among the files and directories below `directory`."""
        async with self._locks.setdefault(directory, asyncio.Lock()):
            listing = self._listings.pop(directory, None)
            if listing is None or listing.fresh_until < self._clock():
                listing = await self._list(directory)
            self._listings[directory] = listing
        while len(self._listings) > _MAX_LISTINGS:
            oldest = next(iter(self._listings))
            del self._listings[oldest]
            self._locks.pop(oldest, None)
        return FileMatches(await asyncio.to_thread(rank_names, listing.names, typed, count), listing.is_cut)

    async def _list(self, directory: Path) -> _Listing:
        began = self._clock()
        files, is_cut = await _list_files(directory)
        names = await asyncio.to_thread(_add_directories, files)
        now = self._clock()
        return _Listing(names, is_cut, now + max(FRESH_S, (now - began) * _FRESH_FACTOR))


async def _list_files(directory: Path) -> tuple[list[bytes], bool]:
    from kedge.tools.errors import ToolError
    from kedge.tools.search import ripgrep

    found: list[bytes] = []
    options = ["--files", "--null"]
    try:
        async with (
            asyncio.timeout(LIST_S),
            aclosing(
                ripgrep.run_ripgrep(directory, os.environ, options, separator=b"\0", workspace=directory)
            ) as search,
        ):
            async for records in search:
                found += records
                if len(found) >= MAX_FILES:
                    return found[:MAX_FILES], True
    except (TimeoutError, ToolError):
        return found, True
    except OSError:  # the directory was deleted
        return [], False
    return found, False


def _add_directories(files: list[bytes]) -> list[str]:
    """Return the printable names as text, and the directories above them."""
    names = [name for file in files if (name := file.decode("utf-8", "replace")).isprintable() and "\ufffd" not in name]
    directories: set[str] = set()
    for name in names:
        at = name.rfind("/")
        while at > 0 and (parent := name[: at + 1]) not in directories:
            directories.add(parent)
            at = name.rfind("/", 0, at)
    return [*names, *directories]


_MAX_TYPED = 4_096  # the longest possible path
_WORD = re.compile(r"(?:^|[/_\-. ])([^/_\-. ])")


class Rank(NamedTuple):
    """Lower is better."""

    quality: int
    gaps: int  # characters between the typed ones
    length: int
    name: str


def rank_names(names: Sequence[str], typed: str, count: int) -> list[str]:
    """Return the best `count` names that match. Names of directories end with a slash."""
    wanted = typed.casefold()
    if len(wanted) > _MAX_TYPED:
        return []
    if not wanted:
        return heapq.nsmallest(count, names, key=lambda name: (name.count("/", 0, -1), name.casefold()))
    # Atomic groups: with backtracking, crafted names would take exponential time.
    fits = re.compile("".join(f"(?>.*?{re.escape(char)})" for char in wanted), re.DOTALL).match
    found = (Rank(*_rate(low, wanted), len(name), name) for name in names if fits(low := name.casefold()))
    return [rank.name for rank in heapq.nsmallest(count, found)]


def _rate(name: str, typed: str) -> tuple[int, int]:
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
    if _is_subsequence(typed, "".join(_WORD.findall(last))):
        return 7, 0
    if (span := _find_span(last, typed)) is not None:
        return 8, span - len(typed)
    span = _find_span(name, typed)
    return 9, len(name) if span is None else span - len(typed)


def _starts_word(text: str, typed: str) -> bool:
    at = text.find(typed)
    while at > 0:
        if text[at - 1] in "/_-. ":
            return True
        at = text.find(typed, at + 1)
    return False


def _is_subsequence(typed: str, text: str) -> bool:
    rest = iter(text)
    return all(char in rest for char in typed)


def _find_span(text: str, typed: str) -> int | None:
    """Return the length of the shortest piece that contains the typed characters and ends at their first occurrence."""
    at = -1
    for char in typed:
        at = text.find(char, at + 1)
        if at < 0:
            return None
    start = at + 1
    for char in reversed(typed):
        start = text.rfind(char, 0, start)
    return at + 1 - start

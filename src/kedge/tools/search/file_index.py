"""The names of a workspace's files, for whoever types one: walked once for many keys, never for longer than a moment.

Ignored files are left out, as in every search. Only names are told, never what is in a file.
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

MAX_FILES = 100_000  # more, and finding one takes longer than somebody waits after a key
WALK_S = 2.0
# How long a walk serves: a file that was just made is found soon, and a tree that is slow to walk is not walked always.
FRESH_S = 3.0
_FRESH_FACTOR = 10
_MAX_KNOWN = 8  # workspaces whose names are kept


class Found(NamedTuple):
    names: list[str]
    is_cut: bool  # not all files were looked at


class _Walk(NamedTuple):
    names: list[str]
    is_cut: bool
    good_until: float


class Names:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._walks: dict[Path, _Walk] = {}  # the one that was asked for last is the last
        self._walking: dict[Path, asyncio.Lock] = {}

    async def find(self, directory: Path, typed: str, count: int) -> Found:
        """The files and directories below `directory` that fit what was typed, the best first."""
        async with self._walking.setdefault(directory, asyncio.Lock()):
            walk = self._walks.pop(directory, None)
            if walk is None or walk.good_until < self._clock():
                walk = await self._walk(directory)
            self._walks[directory] = walk
        while len(self._walks) > _MAX_KNOWN:
            forgotten = next(iter(self._walks))
            del self._walks[forgotten]
            self._walking.pop(forgotten, None)
        return Found(await asyncio.to_thread(best, walk.names, typed, count), walk.is_cut)

    async def _walk(self, directory: Path) -> _Walk:
        began = self._clock()
        files, is_cut = await _files(directory)
        names = await asyncio.to_thread(_with_directories, files)
        now = self._clock()
        return _Walk(names, is_cut, now + max(FRESH_S, (now - began) * _FRESH_FACTOR))


async def _files(directory: Path) -> tuple[list[bytes], bool]:
    from kedge.tools.errors import ToolError
    from kedge.tools.search import ripgrep

    found: list[bytes] = []
    options = ["--files", "--null"]
    try:
        async with (
            asyncio.timeout(WALK_S),
            aclosing(ripgrep.search(directory, os.environ, options, separator=b"\0", workspace=directory)) as search,
        ):
            async for records in search:
                found += records
                if len(found) >= MAX_FILES:
                    return found[:MAX_FILES], True
    except (TimeoutError, ToolError):
        return found, True
    except OSError:  # the directory is gone
        return [], False
    return found, False


def _with_directories(files: list[bytes]) -> list[str]:
    """As text, with the directories that they are in. What cannot be typed cannot be completed."""
    names = [name for file in files if (name := file.decode("utf-8", "replace")).isprintable() and "\ufffd" not in name]
    directories: set[str] = set()
    for name in names:
        at = name.rfind("/")
        while at > 0 and (parent := name[: at + 1]) not in directories:
            directories.add(parent)
            at = name.rfind("/", 0, at)
    return [*names, *directories]


# --- Which names somebody means who typed a few characters of one: the best first.

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

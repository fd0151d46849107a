"""The names of a workspace's files, for whoever types one: walked once for many keys, never for longer than a moment.

Ignored files are left out, as in every search. Only names are told, never what is in a file.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from kedge.tools.fuzzy import best

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
    from kedge.tools import ripgrep  # nothing that a starting server should wait for
    from kedge.tools.errors import ToolError

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

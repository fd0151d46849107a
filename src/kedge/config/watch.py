"""Watch directories with inotify (Linux only), through the C library.

`docs/adr/0026-toml-editing-and-inotify.md` says why this is not a library.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MAX_LINKS = 40  # as in the kernel; more are a loop
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x08, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _ONLYDIR = 0x400, 0x800, 0x0100_0000
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 * 1024  # several hundred events; an event needs at most 272

WatchPoint = tuple[Path, str]
"""A directory and a name in it."""


class DirectoryEvent(NamedTuple):
    """A change of `name` in `directory`. An empty name: the directory itself changed. None: events were lost."""

    directory: Path | None
    name: str


def is_available() -> bool:
    return sys.platform == "linux"


class Inotify:
    """One inotify descriptor, read by the event loop."""

    def __init__(self, on_event: Callable[[DirectoryEvent], None]) -> None:
        self._on_event = on_event
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._check(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")
        self._paths: dict[int, Path] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    @property
    def watched(self) -> set[Path]:
        return set(self._paths.values())

    def watch(self, directory: Path) -> None:
        """Raises OSError if this directory cannot be watched."""
        name = os.fsencode(directory)
        self._paths[self._check(self._libc.inotify_add_watch(self._fd, name, _MASK), str(directory))] = directory

    def unwatch(self, directory: Path) -> None:
        for number in [number for number, path in self._paths.items() if path == directory]:
            del self._paths[number]
            self._libc.inotify_rm_watch(self._fd, number)  # fails if the directory, and its watch, are gone

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._paths.clear()

    def _check(self, result: int, what: str) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), what)
        return result

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return
            raise
        at = 0
        while at < len(data):
            number, mask, _, length = _HEAD.unpack_from(data, at)
            name = os.fsdecode(data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0"))
            at += _HEAD.size + length
            path = self._paths.pop(number, None) if mask & _IGNORED else self._paths.get(number)
            if mask & _OVERFLOW:
                self._on_event(DirectoryEvent(None, ""))
            elif path is not None:
                is_itself = mask & (_DELETE_SELF | _MOVE_SELF | _IGNORED)
                self._on_event(DirectoryEvent(path, "" if is_itself else name))


def find_watch_points(path: Path) -> set[WatchPoint]:
    """Return the names whose change may change the file at `path`: the file, links on the way, or a missing part."""
    points: set[WatchPoint] = set()
    here, rest, links = Path(path.anchor), list(path.parts[1:]), 0
    while rest:
        name = rest.pop(0)
        if name == "..":
            here = here.parent
            continue
        target = here / name
        try:
            mode = target.lstat().st_mode
        except OSError:
            return points | {(here, name)}  # it may be created
        if stat.S_ISLNK(mode):
            points.add((here, name))
            links += 1
            if links > MAX_LINKS:
                return points
            to = target.readlink()
            rest = [*(to.parts[1:] if to.is_absolute() else to.parts), *rest]
            here = Path(to.anchor) if to.is_absolute() else here
        elif rest and stat.S_ISDIR(mode):
            here = target
        else:
            return points | {(here, name)}
    return points

"""The kernel's word that something happened in a directory: inotify, through the C library. Linux only."""

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

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x08, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _ONLYDIR = 0x400, 0x800, 0x0100_0000
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 * 1024  # several hundred events; an event needs at most 272


class Happened(NamedTuple):
    """Something happened to a name in a watched directory. Without a name: to the directory, or too much to tell."""

    directory: Path | None
    name: str


def is_available() -> bool:
    return sys.platform == "linux"


class Inotify:
    """One descriptor, read by the loop. `OSError` from `watch` means: this one cannot be watched."""

    def __init__(self, tell: Callable[[Happened], None]) -> None:
        self._tell = tell
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")
        self._paths: dict[int, Path] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    @property
    def watched(self) -> set[Path]:
        return set(self._paths.values())

    def watch(self, directory: Path) -> None:
        name = os.fsencode(directory)
        self._paths[self._checked(self._libc.inotify_add_watch(self._fd, name, _MASK), str(directory))] = directory

    def unwatch(self, directory: Path) -> None:
        for number in [number for number, path in self._paths.items() if path == directory]:
            del self._paths[number]
            self._libc.inotify_rm_watch(self._fd, number)  # fails if the directory is gone, and the watch with it

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._paths.clear()

    def _checked(self, result: int, what: str) -> int:
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
                self._tell(Happened(None, ""))
            elif path is not None:
                self._tell(Happened(path, "" if mask & (_DELETE_SELF | _MOVE_SELF | _IGNORED) else name))


# Which directories must be watched to learn that a file came, went or changed, also behind links.


MAX_LINKS = 40  # as the kernel; more are a loop

# In this directory, what happens to this name may change the file.
Point = tuple[Path, str]


def points(path: Path) -> set[Point]:
    """The places whose change can change what `path` is: the file itself, each link on the way, or what is missing."""
    found: set[Point] = set()
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
            return found | {(here, name)}  # it, or what it is in, may come
        if stat.S_ISLNK(mode):
            found.add((here, name))
            links += 1
            if links > MAX_LINKS:
                return found
            to = target.readlink()
            rest = [*(to.parts[1:] if to.is_absolute() else to.parts), *rest]
            here = Path(to.anchor) if to.is_absolute() else here
        elif rest and stat.S_ISDIR(mode):
            here = target
        else:
            return found | {(here, name)}
    return found

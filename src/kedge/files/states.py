"""What a path is at one moment: a file with its content and mode, a link, an empty directory, or nothing.

A directory that holds something is no state of its own: it is there because of what is in it. Whatever is neither file,
link nor directory is never opened.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Literal, NamedTuple

import msgspec

# Sources and small pictures are far below it. What is larger is mostly made by a program, and can be made again.
MAX_KEPT_BYTES = 32 * 1024 * 1024

Kind = Literal["absent", "file", "link", "directory", "large", "special"]


class State(NamedTuple):
    """`digest` is that of the content, or of a link's target. Of what is not kept it only tells two states apart."""

    kind: Kind
    digest: str = ""
    mode: int = 0
    size: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether it has content that can be found again by its digest."""
        return self.kind in ("file", "link")


ABSENT = State("absent")
DIRECTORY = State("directory")

_decode = msgspec.json.Decoder(State).decode


class Observed(NamedTuple):
    state: State
    data: bytes | None = None  # of what is kept
    status: os.stat_result | None = None


def encode(state: State) -> bytes:
    return msgspec.json.encode(state)


def decode(data: bytes) -> State:
    return _decode(data)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def observe(path: bytes) -> Observed:
    """What is at a path now. Never follows a link, and waits for nobody. Blocks: not for the loop."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)  # noqa: PTH115 - a path is bytes here, as the file system has it
            return Observed(State("link", digest_of(target), 0, len(target)), target, status)
        if stat.S_ISDIR(status.st_mode):
            return Observed(DIRECTORY if _is_empty(path) else ABSENT, None, status)
        if not stat.S_ISREG(status.st_mode):
            return Observed(_known_by_stamp("special", status), None, status)
        return _read(path)
    except (FileNotFoundError, NotADirectoryError):
        return Observed(ABSENT)


def hollow_above(root: bytes, path: bytes) -> bytes | None:
    """The empty directory that a new file will be in, if there is one; never the root itself."""
    parent = os.path.dirname(path)  # noqa: PTH120
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)  # noqa: PTH120
    return parent if parent != root and observe(parent).state == DIRECTORY else None


def _read(path: bytes) -> Observed:
    try:
        # Something else may be there by now: neither a pipe nor a link may lead us on.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        status = os.lstat(path)
        return Observed(_known_by_stamp("special", status), None, status)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return Observed(_known_by_stamp("special", status), None, status)
        if status.st_size > MAX_KEPT_BYTES:
            return Observed(_known_by_stamp("large", status), None, status)
        data = file.read(MAX_KEPT_BYTES + 1)
    if len(data) > MAX_KEPT_BYTES:  # it grew meanwhile
        return Observed(_known_by_stamp("large", status), None, status)
    return Observed(State("file", digest_of(data), stat.S_IMODE(status.st_mode), len(data)), data, status)


def _known_by_stamp(kind: Kind, status: os.stat_result) -> State:
    stamp = f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}"
    return State(kind, stamp, stat.S_IMODE(status.st_mode), status.st_size)


def _is_empty(path: bytes) -> bool:
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except PermissionError:
        return False

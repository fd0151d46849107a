"""The state of a path: a file with content and mode, a link, an empty directory, or nothing.

A directory with content has no state of its own: it exists because of its files. Sockets, pipes and devices ("special")
are never opened.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Generator
from typing import Literal, NamedTuple

import msgspec

from kedge.files.safe_open import PathChanged, open_directory

# Larger files are mostly generated, and can be generated again.
MAX_STORED_BYTES = 32 * 1024 * 1024

Kind = Literal["absent", "file", "link", "directory", "large", "special"]


class State(NamedTuple):
    """`digest` is that of the content or of a link's target. If neither is stored, it only distinguishes two states."""

    kind: Kind
    digest: str = ""
    mode: int = 0
    size: int = 0

    @property
    def is_stored(self) -> bool:
        """Whether the content can be found by its digest."""
        return self.kind in ("file", "link")


ABSENT = State("absent")
DIRECTORY = State("directory")
UNREADABLE = State("special", "unseen")  # something is or was there, and could not be read

encode_state = msgspec.json.Encoder().encode
decode_state = msgspec.json.Decoder(State).decode


class Observation(NamedTuple):
    state: State
    data: bytes | None = None  # if `state.is_stored`
    status: os.stat_result | None = None


def compute_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def observe(path: bytes, at: int | None = None) -> Observation:
    """Return the current state of a path, relative to the directory `at`. Follows no link, opens no pipe. Blocks."""
    try:
        status = os.stat(path, dir_fd=at, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(path, dir_fd=at)
            return Observation(State("link", compute_digest(target), 0, len(target)), target, status)
        if stat.S_ISDIR(status.st_mode):
            return Observation(DIRECTORY if _is_empty(path, at) else ABSENT, None, status)
        if not stat.S_ISREG(status.st_mode):
            return Observation(_state_from_stat("special", status), None, status)
        return _read(path, at, status)
    except (FileNotFoundError, NotADirectoryError):
        return Observation(ABSENT)
    except PermissionError:  # of a directory above it
        return Observation(UNREADABLE)


def observe_below(root: bytes, path: bytes) -> Observation:
    """Like `observe`, but the path counts as absent if a link has replaced a directory above it."""
    with open_parent(root, path) as at:
        return Observation(ABSENT) if at is None else observe(os.path.basename(path), at)


def observe_resolved(path: bytes) -> Observation:
    """Like `observe`, for a resolved path. Raises `PathChanged` if a link has replaced it or a directory above it."""
    try:
        with open_directory(os.path.dirname(path)) as at:
            seen = observe(os.path.basename(path), at)
    except (FileNotFoundError, NotADirectoryError):
        return Observation(ABSENT)
    except PermissionError:
        return Observation(UNREADABLE)
    if seen.state.kind == "link":
        raise PathChanged(path)
    return seen


@contextlib.contextmanager
def open_parent(root: bytes, path: bytes, *, create: bool = False) -> Generator[int | None]:
    """Open the directory of a path without following links below `root`; yields None if it does not exist.

    With `create` it is created, or OSError raised. Of a path outside `root`, no part may be a link.
    """
    top = root if path.startswith(root + b"/") else b"/"
    with contextlib.ExitStack() as opened:
        try:
            at = opened.enter_context(open_directory(os.path.dirname(path), top=top, create=create))
        except OSError as error:
            if create or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            at = None
        yield at


def find_empty_parent(root: bytes, path: bytes) -> bytes | None:
    """Return the nearest existing directory above a new file if it is empty, and not the root; else None."""
    parent = os.path.dirname(path)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    return parent if parent != root and observe(parent).state == DIRECTORY else None


def _read(path: bytes, at: int | None, status: os.stat_result) -> Observation:
    try:
        # The file may have been replaced by a pipe or a link meanwhile.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except PermissionError:
        return Observation(_state_from_stat("special", status), None, status)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return Observation(_state_from_stat("special", status), None, status)
        if status.st_size > MAX_STORED_BYTES:
            return Observation(_state_from_stat("large", status), None, status)
        data = file.read(MAX_STORED_BYTES + 1)
    if len(data) > MAX_STORED_BYTES:  # it grew meanwhile
        return Observation(_state_from_stat("large", status), None, status)
    return Observation(State("file", compute_digest(data), stat.S_IMODE(status.st_mode), len(data)), data, status)


def _state_from_stat(kind: Kind, status: os.stat_result) -> State:
    stamp = f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}"
    return State(kind, stamp, stat.S_IMODE(status.st_mode), status.st_size)


def _is_empty(path: bytes, at: int | None) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except PermissionError:
        return False
    try:
        with os.scandir(fd) as entries:
            return next(entries, None) is None
    finally:
        os.close(fd)

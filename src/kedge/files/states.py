"""What a path is at one moment: a file with its content and mode, a link, an empty directory, or nothing.

A directory that holds something is no state of its own: it is there because of what is in it. Whatever is neither file,
link nor directory is never opened.
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
UNSEEN = State("special", "unseen")  # something is or was there, and nobody could look

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


def observe(path: bytes, at: int | None = None) -> Observed:
    """What is at a path now, from the directory `at` if that is given. Never follows a link, and waits for nobody.

    Blocks: not for the loop.
    """
    try:
        status = os.stat(path, dir_fd=at, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(path, dir_fd=at)
            return Observed(State("link", digest_of(target), 0, len(target)), target, status)
        if stat.S_ISDIR(status.st_mode):
            return Observed(DIRECTORY if _is_empty(path, at) else ABSENT, None, status)
        if not stat.S_ISREG(status.st_mode):
            return Observed(_known_by_stamp("special", status), None, status)
        return _read(path, at, status)
    except (FileNotFoundError, NotADirectoryError):
        return Observed(ABSENT)
    except PermissionError:  # a directory on the way that is closed to us
        return Observed(UNSEEN)


def observe_below(root: bytes, path: bytes) -> Observed:
    """As `observe`, but a link in the place of a directory leads nowhere: what is behind it is not this path."""
    with directory_of(root, path) as at:
        return Observed(ABSENT) if at is None else observe(os.path.basename(path), at)


def observe_resolved(path: bytes) -> Observed:
    """As `observe`, of a resolved path. Raises `PathChanged` where a link took a place on the way, or its own."""
    try:
        with open_directory(os.path.dirname(path)) as at:
            seen = observe(os.path.basename(path), at)
    except (FileNotFoundError, NotADirectoryError):
        return Observed(ABSENT)
    except PermissionError:
        return Observed(UNSEEN)
    if seen.state.kind == "link":
        raise PathChanged(path)
    return seen


@contextlib.contextmanager
def directory_of(root: bytes, path: bytes, *, makes: bool = False) -> Generator[int | None]:
    """The directory that a path is in, opened without following any link below `root`; None: there is none.

    `makes` it. Then there is one, or an error. A path elsewhere is one without links, from the top.
    """
    top = root if path.startswith(root + b"/") else b"/"
    with contextlib.ExitStack() as opened:
        try:
            at = opened.enter_context(open_directory(os.path.dirname(path), top=top, makes=makes))
        except OSError as error:
            if makes or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            at = None
        yield at


def hollow_above(root: bytes, path: bytes) -> bytes | None:
    """The empty directory that a new file will be in, if there is one; never the root itself."""
    parent = os.path.dirname(path)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    return parent if parent != root and observe(parent).state == DIRECTORY else None


def _read(path: bytes, at: int | None, status: os.stat_result) -> Observed:
    try:
        # Something else may be there by now: neither a pipe nor a link may lead us on.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except PermissionError:
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

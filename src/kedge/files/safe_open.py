"""Functions that open resolved paths without following links.

After a path is resolved and checked, another process may replace any part of it by a link. So each directory is opened
relative to the one above it, and a link raises `PathChanged`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
from collections.abc import Generator

_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_DIRECTORY = (errno.ENOTDIR, errno.ELOOP)  # the errors of opening a link on Linux and macOS

StrPath = str | bytes | os.PathLike[str]


class PathChanged(OSError):
    """A part of a resolved path was replaced by a link."""

    def __init__(self, path: bytes) -> None:
        super().__init__(errno.ELOOP, "replaced by a link", os.fsdecode(path))


@contextlib.contextmanager
def open_directory(path: StrPath, *, top: bytes = b"/", create: bool = False) -> Generator[int]:
    """Yield a descriptor of a directory. Raises OSError.

    Links are refused below `top`, a prefix of the path. With `create`, missing directories are created.
    """
    name = os.fsencode(path)
    at = os.open(top, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for part in name[len(top) :].split(b"/"):
            if part:
                below = _enter(at, part, name, create=create)
                os.close(at)
                at = below
        yield at
    finally:
        os.close(at)


def open_file(path: StrPath, flags: int, mode: int = 0o666) -> int:
    """Like `os.open`, for a resolved path. Raises `PathChanged` for a link."""
    directory, name = os.path.split(os.fsencode(path))
    with open_directory(directory) as at:
        try:
            return os.open(name or b".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=at)
        except OSError as error:
            if error.errno in _NO_DIRECTORY and _is_link(name, at):
                raise PathChanged(os.fsencode(path)) from error
            raise


def stat_resolved(path: StrPath) -> os.stat_result | None:
    """Return the stat result of a resolved path, None if it does not exist. Raises `PathChanged` for a link."""
    directory, name = os.path.split(os.fsencode(path))
    try:
        with open_directory(directory) as at:
            status = os.stat(name or b".", dir_fd=at, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(status.st_mode):
        raise PathChanged(os.fsencode(path))
    return status


def is_directory(path: StrPath) -> bool:
    """Return whether a resolved path is a reachable directory, and not a link."""
    try:
        status = stat_resolved(path)
    except OSError:
        return False
    return status is not None and stat.S_ISDIR(status.st_mode)


def _enter(at: int, name: bytes, path: bytes, *, create: bool) -> int:
    try:
        try:
            return os.open(name, _DIRECTORY, dir_fd=at)
        except FileNotFoundError:
            if not create:
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=at)
        return os.open(name, _DIRECTORY, dir_fd=at)
    except OSError as error:
        if error.errno in _NO_DIRECTORY and _is_link(name, at):
            raise PathChanged(path) from error
        raise


def _is_link(name: bytes, at: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except OSError:
        return True  # it is being changed


def read_regular_file(path: StrPath, limit: int) -> bytes | None:
    """Return the content of a regular file of at most `limit` bytes, else None: a pipe would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        return file.read(limit)


def remove_tree(path: StrPath) -> None:
    """Remove a directory tree of any depth. `shutil.rmtree` is recursive and fails for deep ones."""
    subprocess.run(["/bin/rm", "-rf", "--", os.fspath(path)], stderr=subprocess.DEVNULL, check=False)

"""Atomic replacement of a file's content, keeping its mode, owner, extended attributes and links to it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from kedge.files.safe_open import open_directory
from kedge.tools.errors import ToolError

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def replace(path: Path, data: bytes, before: os.stat_result | None, shown: str) -> None:
    """Write `data` to a resolved path. `before` is the stat result of the file when it was read; None for a new file.

    Works relative to one opened directory, so that a link that replaces a part of the path is not followed.
    """
    try:
        with open_directory(path.parent, create=before is None) as at:
            if before is None or _can_replace(at, before):
                _write_beside(path.name, at, data, before, shown)
            else:
                _write_in_place(path.name, at, data, before, shown)
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror}. Nothing was changed.") from error


def publish(temporary: str, name: str, at: int) -> None:
    """Give a temporary file of the directory `at` its final name. Raises `FileExistsError` if the name is taken.

    Uses a hard link, because a rename would overwrite.
    """
    try:
        os.link(temporary, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)


def _can_replace(at: int, before: os.stat_result) -> bool:
    """Return whether we own the file and may write its directory; otherwise it is overwritten in place."""
    is_owner = before.st_uid == os.geteuid() or os.geteuid() == 0
    return is_owner and os.access(".", os.W_OK | os.X_OK, dir_fd=at)


def _write_beside(name: str, at: int, data: bytes, before: os.stat_result | None, shown: str) -> None:
    temporary = f".{name[:100]}.{secrets.token_hex(6)}.kedge"
    # A new file gets the user's umask. A replacement stays private until it has the mode of the old file.
    mode = 0o666 if before is None else 0o600
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=at)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if before is not None:
                _copy_metadata(file.fileno(), name, at, before)
            file.flush()
            os.fsync(file.fileno())
        if before is None:
            try:
                publish(temporary, name, at)
            except FileExistsError:
                raise ToolError(
                    f"{shown} was created by somebody else in the meantime.", "View it before you change it."
                ) from None
        else:
            _check_unchanged(name, at, before, shown)
            os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=at)


def _write_in_place(name: str, at: int, data: bytes, before: os.stat_result, shown: str) -> None:
    _check_unchanged(name, at, before, shown)
    fd = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at)
    try:
        with os.fdopen(fd, "wb") as file:
            _check_same(os.fstat(fd), before, shown)
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ToolError(
            f"{shown} was written only partly: {error.strerror}.", "Write it again when there is space."
        ) from error


def _copy_metadata(fd: int, name: str, at: int, before: os.stat_result) -> None:
    """Copy owner, mode and extended attributes. The owner first: changing it clears some bits of the mode."""
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):  # we are not in that group
            os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))
    if hasattr(os, "listxattr"):
        _copy_attributes(fd, name, at)


def _copy_attributes(fd: int, name: str, at: int) -> None:
    """Copy extended attributes, like access lists. Attributes of the kernel cannot be copied."""
    with contextlib.suppress(OSError):
        old = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at)
        try:
            for attribute in os.listxattr(old):
                with contextlib.suppress(OSError):
                    os.setxattr(fd, attribute, os.getxattr(old, attribute))
        finally:
            os.close(old)


def _check_unchanged(name: str, at: int, before: os.stat_result, shown: str) -> None:
    try:
        now = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        raise ToolError(f"{shown} was deleted in the meantime. Nothing was written.") from None
    _check_same(now, before, shown)


def _check_same(now: os.stat_result, before: os.stat_result, shown: str) -> None:
    same = ("st_ino", "st_dev", "st_size", "st_mtime_ns")
    if any(getattr(now, name) != getattr(before, name) for name in same):
        raise ToolError(
            f"{shown} was changed by somebody else in the meantime.", "View it again, then repeat the edit."
        )

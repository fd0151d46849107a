"""A file is replaced whole or not at all, and stays what it was: mode, owner, attributes, and a link to it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from kedge.files.safe_open import open_directory
from kedge.tools.errors import ToolError

_WITHOUT_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})  # file systems


def replace(path: Path, data: bytes, before: os.stat_result | None, shown: str) -> None:
    """Write `data` to a resolved path. `before` is what the file was when it was read; None: there is none yet.

    All of it happens in one opened directory: a link that takes the place of anything on the way is not followed.
    """
    try:
        with open_directory(path.parent, create=before is None) as at:
            if before is None or _is_ours_to_replace(at, before):
                _write_beside(path.name, at, data, before, shown)
            else:
                _write_in_place(path.name, at, data, before, shown)
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror}. It is as it was.") from error


def publish(temporary: str, name: str, at: int) -> None:
    """Give a file of the directory `at` its name. Raises `FileExistsError` if somebody else made that file meanwhile.

    A rename would take its place, where a link does not.
    """
    try:
        os.link(temporary, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)


def _is_ours_to_replace(at: int, before: os.stat_result) -> bool:
    """Another's file, or one in a directory that we may not write, can only be changed where it is."""
    is_owner = before.st_uid == os.geteuid() or os.geteuid() == 0
    return is_owner and os.access(".", os.W_OK | os.X_OK, dir_fd=at)


def _write_beside(name: str, at: int, data: bytes, before: os.stat_result | None, shown: str) -> None:
    temporary = f".{name[:100]}.{secrets.token_hex(6)}.kedge"
    # For a new file the kernel applies the user's mask; another file's mode is set before anybody can open this one.
    mode = 0o666 if before is None else 0o600
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=at)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if before is not None:
                _dress(file.fileno(), name, at, before)
            file.flush()
            os.fsync(file.fileno())
        if before is None:
            try:
                publish(temporary, name, at)
            except FileExistsError:
                raise ToolError(
                    f"{shown} was created by somebody else meanwhile. View it before you change it."
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
        # Room may have run out in the middle, and there was no way to write beside it.
        raise ToolError(
            f"{shown} was written only in part: {error.strerror}. Write it again when there is room."
        ) from error


def _dress(fd: int, name: str, at: int, before: os.stat_result) -> None:
    """Owner first: a change of owner takes some bits of the mode away."""
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):  # a group that we are not in
            os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))
    if hasattr(os, "listxattr"):
        _copy_attributes(fd, name, at)


def _copy_attributes(fd: int, name: str, at: int) -> None:
    """Access lists are among them. What the kernel keeps to itself cannot be copied."""
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
        raise ToolError(f"{shown} was deleted meanwhile. Nothing was written.") from None
    _check_same(now, before, shown)


def _check_same(now: os.stat_result, before: os.stat_result, shown: str) -> None:
    same = ("st_ino", "st_dev", "st_size", "st_mtime_ns")
    if any(getattr(now, name) != getattr(before, name) for name in same):
        raise ToolError(f"{shown} was changed by somebody else meanwhile. View it again, then repeat the edit.")

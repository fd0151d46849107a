"""A file is replaced whole or not at all, and stays what it was: mode, owner, attributes, and a link to it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from kedge.tools.errors import ToolError

_WITHOUT_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})  # file systems


def replace(path: Path, data: bytes, before: os.stat_result | None, shown: str) -> None:
    """Write `data` to a resolved path. `before` is what the file was when it was read; None: there is none yet."""
    try:
        if before is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_beside(path, data, None, shown)
        elif _is_ours_to_replace(path, before):
            _write_beside(path, data, before, shown)
        else:
            _write_in_place(path, data, before, shown)
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror}. It is as it was.") from error


def publish(temporary: Path, path: Path) -> None:
    """Unlike a rename, a link never takes the place of a file that somebody else made meanwhile: `FileExistsError`."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        temporary.replace(path)


def _is_ours_to_replace(path: Path, before: os.stat_result) -> bool:
    """Another's file, or one in a directory that we may not write, can only be changed where it is."""
    is_owner = before.st_uid == os.geteuid() or os.geteuid() == 0
    return is_owner and os.access(path.parent, os.W_OK | os.X_OK)


def _write_beside(path: Path, data: bytes, before: os.stat_result | None, shown: str) -> None:
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.kedge")
    # For a new file the kernel applies the user's mask; another file's mode is set before anybody can open this one.
    mode = 0o666 if before is None else 0o600
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if before is not None:
                _dress(file.fileno(), path, before)
            file.flush()
            os.fsync(file.fileno())
        if before is None:
            try:
                publish(temporary, path)
            except FileExistsError:
                raise ToolError(
                    f"{shown} was created by somebody else meanwhile. View it before you change it."
                ) from None
        else:
            _check_unchanged(path, before, shown)
            temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _write_in_place(path: Path, data: bytes, before: os.stat_result, shown: str) -> None:
    _check_unchanged(path, before, shown)
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # Room may have run out in the middle, and there was no way to write beside it.
        raise ToolError(
            f"{shown} was written only in part: {error.strerror}. Write it again when there is room."
        ) from error


def _dress(fd: int, path: Path, before: os.stat_result) -> None:
    """Owner first: a change of owner takes some bits of the mode away."""
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):  # a group that we are not in
            os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))
    if hasattr(os, "listxattr"):
        _copy_attributes(fd, path)


def _copy_attributes(fd: int, path: Path) -> None:
    """Access lists are among them. What the kernel keeps to itself cannot be copied."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(path):
            with contextlib.suppress(OSError):
                os.setxattr(fd, name, os.getxattr(path, name))


def _check_unchanged(path: Path, before: os.stat_result, shown: str) -> None:
    try:
        now = path.lstat()
    except FileNotFoundError:
        raise ToolError(f"{shown} was deleted meanwhile. Nothing was written.") from None
    same = ("st_ino", "st_dev", "st_size", "st_mtime_ns")
    if any(getattr(now, name) != getattr(before, name) for name in same):
        raise ToolError(f"{shown} was changed by somebody else meanwhile. View it again, then repeat the edit.")

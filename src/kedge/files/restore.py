"""Restoring paths to an earlier state. Each step is atomic, and repeating it changes nothing.

A step first checks that the path is still in the state that the plan saw; what was changed since is not overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from kedge import failpoints
from kedge.files.states import ABSENT, State, observe, open_parent

ReadBlob = Callable[[str], bytes | None]
"""Return the content with this digest, or None if it is not stored any more."""


class Step(NamedTuple):
    """One path of a plan: its state now, and the state to restore."""

    path: bytes
    now: State
    then: State


class ChangedMeanwhile(Exception):
    """A path was changed by somebody else while the plan was executed."""

    def __init__(self, path: bytes) -> None:
        super().__init__(os.fsdecode(path))
        self.path = path


def restore_all(steps: Sequence[Step], read_blob: ReadBlob, mark: str, stop: bytes) -> None:
    """Execute all steps, or raise `ChangedMeanwhile` or `OSError` in the middle. Blocks.

    `stop` is the directory that is never removed. `mark` is part of the names of temporary files, so that a retry after
    a crash finds them.
    """
    for step in sort_steps(steps):
        restore(step, read_blob, mark, stop)
        failpoints.hit("undo.path")


def sort_steps(steps: Sequence[Step]) -> list[Step]:
    """Removals first, the deepest first, so that they make room for the paths that are created."""
    removed = [step for step in steps if step.then.kind == "absent"]
    created = [step for step in steps if step.then.kind != "absent"]
    return sorted(removed, key=lambda step: step.path, reverse=True) + sorted(created, key=lambda step: step.path)


def restore(step: Step, read_blob: ReadBlob, mark: str, stop: bytes) -> None:
    """Execute one step. Links are never followed, even if one replaces a directory during the step."""
    path, then = step.path, step.then
    name, temporary = os.path.basename(path), _temporary_name(path, mark)
    with open_parent(stop, path) as at:
        current = ABSENT
        if at is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=at)  # left by a server that was killed here
            current = observe(name, at).state
        if current != then:
            _check_unchanged(step, current)
            if then.kind == "absent" and at is not None:
                _remove(name, at)
                failpoints.hit("undo.removed")
    if then.kind == "absent":
        _remove_empty_parents(path, stop)
    elif current != then:
        with _make_parent(stop, path) as at:
            _put_in_place(name, at, current, then, read_blob, temporary)


def _check_unchanged(step: Step, current: State) -> None:
    # A step that was interrupted may have removed an empty directory, or a file in place of a directory.
    empty = ("absent", "directory")
    is_half_done = current.kind in empty and (step.now.kind in empty or step.then.kind == "directory")
    if current != step.now and not is_half_done:
        raise ChangedMeanwhile(step.path)


@contextlib.contextmanager
def _make_parent(stop: bytes, path: bytes) -> Generator[int]:
    """Open the directory of a path, creating it if necessary."""
    with contextlib.ExitStack() as opened:
        try:
            if not os.path.isdir(stop):
                raise ChangedMeanwhile(path)  # the whole workspace was removed: it is not created again
            at = opened.enter_context(open_parent(stop, path, create=True))
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise ChangedMeanwhile(path) from error  # a file or link has replaced a directory
            raise
        assert at is not None
        yield at


def _put_in_place(name: bytes, at: int, current: State, then: State, read_blob: ReadBlob, temporary: bytes) -> None:
    match then.kind:
        case "directory":
            if current.kind in ("file", "link", "special"):
                os.unlink(name, dir_fd=at)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=at)
        case "link":
            _make_room(name, at)
            os.symlink(_read_content(read_blob, then), temporary, dir_fd=at)
            failpoints.hit("undo.written")
            os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
        case "file" if current.kind == "file" and current.digest == then.digest:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
            try:
                os.fchmod(fd, then.mode)
            finally:
                os.close(fd)
        case "file":
            _write(name, at, temporary, _read_content(read_blob, then), then.mode)
        case _:
            raise ValueError(f"a path of kind {then.kind} cannot be restored")  # no plan contains one


def _write(name: bytes, at: int, temporary: bytes, data: bytes, mode: int) -> None:
    _make_room(name, at)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, 0o600, dir_fd=at)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        _copy_owner_and_attributes(fd, name, at)
        os.fchmod(fd, mode)
        file.flush()
        os.fsync(fd)
    failpoints.hit("undo.written")
    os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)


def _copy_owner_and_attributes(fd: int, name: bytes, at: int) -> None:
    """Keep owner and extended attributes (like access lists) of the file that is replaced: they have no versions."""
    with contextlib.suppress(OSError):
        old = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        try:
            status = os.fstat(old)
            if not stat.S_ISREG(status.st_mode):
                return
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, status.st_uid, status.st_gid)
            if hasattr(os, "listxattr"):
                for attribute in os.listxattr(old):
                    with contextlib.suppress(OSError):
                        os.setxattr(fd, attribute, os.getxattr(old, attribute))
        finally:
            os.close(old)


def _make_room(name: bytes, at: int) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.rmdir(name, dir_fd=at)  # only if the directory is empty


def _remove(name: bytes, at: int) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        os.rmdir(name, dir_fd=at)
    else:
        os.unlink(name, dir_fd=at)


def _remove_empty_parents(path: bytes, stop: bytes) -> None:
    parent = os.path.dirname(path)
    while parent not in (stop, b"/", b"") and not (stop + b"/").startswith(parent + b"/"):
        with open_parent(stop, parent) as at:
            if at is not None:
                try:
                    os.rmdir(os.path.basename(parent), dir_fd=at)
                except FileNotFoundError:
                    pass
                except OSError:
                    return
        parent = os.path.dirname(parent)


def _read_content(read_blob: ReadBlob, state: State) -> bytes:
    data = read_blob(state.digest)
    if data is None:
        raise FileNotFoundError(2, "the stored content was removed a moment ago")
    return data


def _temporary_name(path: bytes, mark: str) -> bytes:
    return b"." + os.path.basename(path)[:100] + b"." + mark.encode() + b".kedge"

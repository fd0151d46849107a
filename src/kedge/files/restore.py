"""Bringing paths from one state to another. Each step is whole or not done, and doing it twice changes nothing.

A step first looks whether the path still is what it was when the plan was made: what somebody changed since is theirs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from kedge import failpoints
from kedge.files.states import ABSENT, State, directory_of, observe

Content = Callable[[str], bytes | None]
"""What has this digest; None: it is not kept any more."""


class Step(NamedTuple):
    """One path of a plan: what it is now, and what it will be."""

    path: bytes
    now: State
    then: State


class Changed(Exception):
    """Somebody changed a path while the plan was carried out."""

    def __init__(self, path: bytes) -> None:
        super().__init__(os.fsdecode(path))
        self.path = path


def carry_out(steps: Sequence[Step], content: Content, mark: str, stop: bytes) -> None:
    """Do all of it, or raise `Changed` or `OSError` in the middle. `stop` is the directory that never goes.

    First what has to go, the deepest first, so that what takes its place finds room; `mark` is in the names of files on
    the way, so that whoever goes on after a crash knows them. Blocks: not for the loop.
    """
    for step in ordered(steps):
        restore(step, content, mark, stop)
        failpoints.hit("undo.path")


def ordered(steps: Sequence[Step]) -> list[Step]:
    going = [step for step in steps if step.then.kind == "absent"]
    coming = [step for step in steps if step.then.kind != "absent"]
    return sorted(going, key=lambda step: step.path, reverse=True) + sorted(coming, key=lambda step: step.path)


def restore(step: Step, content: Content, mark: str, stop: bytes) -> None:
    """No link is followed on the way, whoever puts one there and when: what is behind it is none of ours."""
    path, then = step.path, step.then
    name, temporary = os.path.basename(path), _temporary(path, mark)
    with directory_of(stop, path) as at:
        current = ABSENT
        if at is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=at)  # of one who was killed here
            current = observe(name, at).state
        if current != then:
            _check(step, current)
            if then.kind == "absent" and at is not None:
                _remove(name, at)
                failpoints.hit("undo.removed")
    if then.kind == "absent":
        _prune(path, stop)
    elif current != then:
        with _made(stop, path) as at:
            _bring(name, at, current, then, content, temporary)


def _check(step: Step, current: State) -> None:
    # An empty directory that fell away, or what made room for one, is no change by somebody else.
    hollow = ("absent", "directory")
    is_half_done = current.kind in hollow and (step.now.kind in hollow or step.then.kind == "directory")
    if current != step.now and not is_half_done:
        raise Changed(step.path)


@contextlib.contextmanager
def _made(stop: bytes, path: bytes) -> Generator[int]:
    """The directory of a path, made if need be."""
    with contextlib.ExitStack() as opened:
        try:
            if not os.path.isdir(stop):
                raise Changed(path)  # somebody took the whole tree away: it is not made again
            at = opened.enter_context(directory_of(stop, path, makes=True))
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise Changed(path) from error  # something has the place of a directory
            raise
        assert at is not None
        yield at


def _bring(name: bytes, at: int, current: State, then: State, content: Content, temporary: bytes) -> None:
    match then.kind:
        case "directory":
            if current.kind in ("file", "link", "special"):
                os.unlink(name, dir_fd=at)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=at)
        case "link":
            _make_room(name, at)
            os.symlink(_needed(content, then), temporary, dir_fd=at)
            failpoints.hit("undo.written")
            os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
        case "file" if current.kind == "file" and current.digest == then.digest:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
            try:
                os.fchmod(fd, then.mode)
            finally:
                os.close(fd)
        case "file":
            _write(name, at, temporary, _needed(content, then), then.mode)
        case _:
            raise ValueError("what was not kept cannot be brought back")  # no plan has it


def _write(name: bytes, at: int, temporary: bytes, data: bytes, mode: int) -> None:
    _make_room(name, at)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, 0o600, dir_fd=at)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        _dress(fd, name, at)
        os.fchmod(fd, mode)
        file.flush()
        os.fsync(fd)
    failpoints.hit("undo.written")
    os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)


def _dress(fd: int, name: bytes, at: int) -> None:
    """Owner, access lists and the like are no versions: they stay what they are."""
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
        os.rmdir(name, dir_fd=at)  # only an empty directory goes


def _remove(name: bytes, at: int) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        os.rmdir(name, dir_fd=at)
    else:
        os.unlink(name, dir_fd=at)


def _prune(path: bytes, stop: bytes) -> None:
    """Directories that hold nothing any more were there for what was in them."""
    parent = os.path.dirname(path)
    while parent not in (stop, b"/", b"") and not (stop + b"/").startswith(parent + b"/"):
        with directory_of(stop, parent) as at:
            if at is not None:
                try:
                    os.rmdir(os.path.basename(parent), dir_fd=at)
                except FileNotFoundError:
                    pass
                except OSError:
                    return
        parent = os.path.dirname(parent)


def _needed(content: Content, state: State) -> bytes:
    data = content(state.digest)
    if data is None:
        raise FileNotFoundError(2, "a content that was kept a moment ago is gone")
    return data


def _temporary(path: bytes, mark: str) -> bytes:
    """Beside the path."""
    return b"." + os.path.basename(path)[:100] + b"." + mark.encode() + b".kedge"

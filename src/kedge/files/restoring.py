"""Bringing paths from one state to another. Each step is whole or not done, and doing it twice changes nothing.

A step first looks whether the path still is what it was when the plan was made: what somebody changed since is theirs.
"""

# ruff: noqa: PTH101, PTH103, PTH105, PTH106, PTH108, PTH112, PTH114, PTH118, PTH120, PTH211
# A path is bytes here, as the file system has it.
from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kedge import failpoints
from kedge.files.states import State, observe

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
    path, then = step.path, step.then
    temporary = _temporary(path, mark)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(temporary)  # of one who was killed here
    current = observe(path).state
    if current == then:
        if then.kind == "absent":
            _prune(path, stop)
        return
    # An empty directory that fell away, or what made room for one, is no change by somebody else.
    hollow = ("absent", "directory")
    is_half_done = current.kind in hollow and (step.now.kind in hollow or then.kind == "directory")
    if current != step.now and not is_half_done:
        raise Changed(path)
    match then.kind:
        case "absent":
            _remove(path)
            failpoints.hit("undo.removed")
            _prune(path, stop)
        case "directory":
            if current.kind in ("file", "link", "special"):
                os.unlink(path)
            os.makedirs(path, exist_ok=True)
        case "link":
            _make_room(path)
            os.symlink(_needed(content, then), temporary)
            failpoints.hit("undo.written")
            os.replace(temporary, path)
        case "file" if current.kind == "file" and current.digest == then.digest:
            os.chmod(path, then.mode)
        case "file":
            _write(path, temporary, _needed(content, then), then.mode)
        case "large" | "special":
            raise ValueError("what was not kept cannot be brought back")  # no plan has it


def _write(path: bytes, temporary: bytes, data: bytes, mode: int) -> None:
    _make_room(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        _dress(fd, path)
        os.fchmod(fd, mode)
        file.flush()
        os.fsync(fd)
    failpoints.hit("undo.written")
    os.replace(temporary, path)


def _dress(fd: int, path: bytes) -> None:
    """Owner, access lists and the like are no versions: they stay what they are."""
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            return
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(fd, status.st_uid, status.st_gid)
        if hasattr(os, "listxattr"):
            for name in os.listxattr(path, follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.setxattr(fd, name, os.getxattr(path, name, follow_symlinks=False))


def _make_room(path: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)  # only an empty one goes


def _remove(path: bytes) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.rmdir(path)
    else:
        os.unlink(path)


def _prune(path: bytes, stop: bytes) -> None:
    """Directories that hold nothing any more were there for what was in them."""
    parent = os.path.dirname(path)
    while parent not in (stop, b"/", b"") and not (stop + b"/").startswith(parent + b"/"):
        try:
            os.rmdir(parent)
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
    directory, name = os.path.split(path)
    return os.path.join(directory, b"." + name[:100] + b"." + mark.encode() + b".kedge")

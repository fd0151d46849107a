"""Restoring files to an earlier state: a plan of steps and obstacles, then the steps.

A file is restored only from the state in which a recorded change left it; any other state is another author's work. A
file whose recorded changes may all be the user's own or a background job's (`unsure`) stays as it is. Each step is
atomic, and repeating it changes nothing. It checks first that the path is still in the state that the plan saw.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple, get_args

import msgspec

from kedge import failpoints
from kedge.files.blobs import Blobs
from kedge.files.states import ABSENT, DIRECTORY, State, find_empty_parent, observe, observe_below, open_parent
from kedge.protocol.files import FileStatus, Obstacle, Unsure

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


_EMPTY = ("absent", "directory")  # kinds without content


class Change(NamedTuple):
    """A recorded change. `unsure` says why it may be the user's own."""

    path: bytes
    before: State
    after: State
    unsure: Unsure | None = None


class Target(NamedTuple):
    """Restore `path` to `then`, if it is `expected` now and only we changed it since (`is_ours`).

    With `unsure` the path stays as it is, because none of its changes is certainly ours.
    """

    path: bytes
    expected: State
    then: State
    is_ours: bool = True
    unsure: Unsure | None = None


class PlannedStep(NamedTuple):
    step: Step
    obstacle: Obstacle | None


class Plan(NamedTuple):
    steps: list[PlannedStep]

    def list_steps(self) -> list[Step]:
        """Return the steps of a forced restore: all but those that are impossible or would lose data."""
        return [each.step for each in self.steps if _is_executed(each)]

    @property
    def has_obstacles(self) -> bool:
        return any(blocks_restore(obstacle) for _, obstacle in self.steps)


def blocks_restore(obstacle: Obstacle | None) -> bool:
    """Return whether the obstacle prevents that any file is restored."""
    return obstacle is not None and obstacle not in get_args(Unsure)


def _is_executed(planned: PlannedStep) -> bool:
    return planned.obstacle in (None, "changed")


encode_steps = msgspec.msgpack.Encoder().encode
decode_steps = msgspec.msgpack.Decoder(list[Step]).decode


def reverse_steps(steps: Iterable[Step]) -> list[Step]:
    return [Step(step.path, step.then, step.now) for step in steps]


def find_targets(changes: Iterable[Change], *, include_unsure: bool = False) -> list[Target]:
    """Return the targets that undo all these changes, given oldest first.

    With `include_unsure`, changes that may be the user's own are treated as ours.
    """
    chains: dict[bytes, list[Change]] = {}
    for change in changes:
        chain = chains.setdefault(change.path, [])
        if not chain or not _is_duplicate(chain[-1], change):
            chain.append(change._replace(unsure=None) if include_unsure else change)
    return [_find_target(chain) for chain in chains.values()]


def _is_duplicate(last: Change, change: Change) -> bool:
    """Return whether a change was recorded twice, because a crash came before the scan that found it was saved."""
    return last[:3] == change[:3] and not (last.unsure and not change.unsure)


def _find_target(chain: Sequence[Change]) -> Target:
    ours = [change for change in chain if not change.unsure]
    if not ours:
        return Target(chain[0].path, chain[-1].after, chain[0].before, unsure=chain[-1].unsure)
    path, then, expected, _ = ours[0]
    is_ours = True
    for change in ours[1:]:
        # If the file was back in its first state in between (`git checkout`), the chain starts again with this change.
        is_ours = change.before == then or (is_ours and change.before == expected)
        expected = change.after
    return Target(path, expected, then, is_ours)


def make_plan(targets: Sequence[Target], blobs: Blobs, root: bytes, *, stores_current: bool) -> Plan:
    """Compare the targets with the disk. `stores_current` stores the current contents for a redo. Blocks."""
    steps: list[PlannedStep] = []
    for target in targets:
        seen = observe_below(root, target.path)
        # Not ours and in the expected state: we overwrote somebody's work, which the restore would not bring back.
        if seen.state == target.then and (target.is_ours or seen.state != target.expected):
            continue
        if stores_current and seen.data is not None:
            blobs.put([seen.data])
        obstacle = _find_obstacle(target, seen.state, blobs)
        steps.append(PlannedStep(Step(target.path, seen.state, target.then), obstacle))
    # A redo makes directories empty again that get a file now.
    known = {target.path for target in targets}
    created = [step.path for step, _ in steps if step.now.kind == "absent" and step.then.is_stored]
    parents = {above for path in created if (above := find_empty_parent(root, path)) is not None and above not in known}
    steps += [PlannedStep(Step(path, DIRECTORY, ABSENT), None) for path in sorted(parents)]
    removed = {each.step.path for each in steps if each.step.then.kind == "absent" and _is_executed(each)}
    return Plan([PlannedStep(step, _combine(obstacle, _find_blocker(step, removed, root))) for step, obstacle in steps])


def get_status(before: State, after: State) -> FileStatus:
    if before.kind in _EMPTY:
        return "created"
    return "deleted" if after.kind in _EMPTY else "modified"


def is_empty_directory_change(before: State, after: State) -> bool:
    """Return whether only an empty directory appeared or disappeared, which is not shown to people as a change."""
    return before.kind in _EMPTY and after.kind in _EMPTY


def _find_obstacle(target: Target, now: State, blobs: Blobs) -> Obstacle | None:
    if target.unsure is not None:
        return target.unsure
    if "large" in (target.then.kind, now.kind):
        return "too_large"
    if target.then.kind == "special":
        return "special"
    if target.then.is_stored and not blobs.has(target.then.digest):
        return "not_kept"
    # Whether a directory is empty depends on the files in it, which are other targets.
    is_expected = now == target.expected or (now.kind in _EMPTY and target.expected.kind in _EMPTY)
    return None if is_expected and target.is_ours else "changed"


def _combine(obstacle: Obstacle | None, blocker: Obstacle | None) -> Obstacle | None:
    """A changed file can be overwritten, a blocked path cannot: the blocker wins over "changed"."""
    return blocker or obstacle if obstacle in (None, "changed") else obstacle


def _find_blocker(step: Step, removed: set[bytes], root: bytes) -> Obstacle | None:
    """Return "in_the_way" if a directory with other content, or a file in place of a parent directory, stays."""
    if step.then.kind == "absent":
        return None
    if os.path.isdir(step.path) and not os.path.islink(step.path) and not _is_emptied(step.path, removed):
        return None if step.then.kind == "directory" else "in_the_way"
    parent = os.path.dirname(step.path)
    while parent not in (root, b"/", b""):
        is_directory = os.path.isdir(parent) and not os.path.islink(parent)
        if os.path.lexists(parent) and not is_directory and parent not in removed:
            return "in_the_way"
        parent = os.path.dirname(parent)
    return None


def _is_emptied(directory: bytes, removed: set[bytes]) -> bool:
    """Return whether the steps remove everything in a directory."""
    for parent, directories, names in os.walk(directory):
        paths = [os.path.join(parent, name) for name in (*directories, *names)]
        if not paths and parent not in (directory, *removed):
            return False
        if any(path not in removed and (os.path.islink(path) or not os.path.isdir(path)) for path in paths):
            return False
    return True

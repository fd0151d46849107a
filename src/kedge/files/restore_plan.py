"""Plans for restoring files: the steps, and the obstacles, before anything is changed.

A file is restored only from the state in which a recorded change left it; any other state is somebody else's work. A
file whose recorded changes may all be the user's own or a background job's (`unsure`) stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple, get_args

import msgspec

from kedge.files.blobs import Blobs
from kedge.files.restore import Step
from kedge.files.states import ABSENT, DIRECTORY, State, find_empty_parent, observe_below
from kedge.protocol.files import FileStatus, Obstacle, Unsure

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


_decode_steps = msgspec.msgpack.Decoder(list[Step]).decode


def encode_steps(steps: Sequence[Step]) -> bytes:
    return msgspec.msgpack.encode(steps)


def decode_steps(data: bytes) -> list[Step]:
    return _decode_steps(data)


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
    """Return the target for the changes of one path."""
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

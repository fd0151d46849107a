"""What bringing files back would do, and what is in its way, before anything is touched.

A file goes back only from the state that our own change left it in. Any other is somebody's work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from kedge.files.blobs import Blobs
from kedge.files.restoring import Step
from kedge.files.states import ABSENT, DIRECTORY, State, hollow_above, observe_below
from kedge.protocol.files import FileStatus, Obstacle


class Wish(NamedTuple):
    """Bring `path` to `then`; it should be `expected` now, and nobody else should have changed it on the way there."""

    path: bytes
    expected: State
    then: State
    is_ours: bool = True


class Planned(NamedTuple):
    step: Step
    obstacle: Obstacle | None


class Plan(NamedTuple):
    steps: list[Planned]

    def to_do(self) -> list[Step]:
        """What is done where somebody insists: all but what cannot be brought back, or not without a loss."""
        return [step for step, obstacle in self.steps if obstacle in (None, "changed")]

    @property
    def has_obstacles(self) -> bool:
        return any(obstacle is not None for _, obstacle in self.steps)


_decode_steps = msgspec.msgpack.Decoder(list[Step]).decode


def encode_steps(steps: Sequence[Step]) -> bytes:
    return msgspec.msgpack.encode(steps)


def decode_steps(data: bytes) -> list[Step]:
    return _decode_steps(data)


def reversed_steps(steps: Iterable[Step]) -> list[Step]:
    return [Step(step.path, step.then, step.now) for step in steps]


def wishes_of(changes: Iterable[tuple[bytes, State, State]]) -> list[Wish]:
    """Back to before all of these changes, which are in their order: path, before, after."""
    found: dict[bytes, Wish] = {}
    last: dict[bytes, tuple[State, State]] = {}
    for path, before, after in changes:
        known = found.get(path)
        is_known = last.get(path) == (before, after)  # recorded twice: a crash came before it could be forgotten
        last[path] = before, after
        if known is None:
            found[path] = Wish(path, after, before)
        elif not is_known:
            found[path] = Wish(path, after, known.then, known.is_ours and known.expected == before)
    return list(found.values())


def plan(wishes: Sequence[Wish], blobs: Blobs, root: bytes, *, keeps: bool) -> Plan:
    """`keeps`: what is there now is kept, so that it can come back. Blocks: not for the loop."""
    steps: list[Planned] = []
    for wish in wishes:
        seen = observe_below(root, wish.path)
        if seen.state == wish.then:
            continue
        if keeps and seen.data is not None:
            blobs.put([seen.data])
        steps.append(Planned(Step(wish.path, seen.state, wish.then), _obstacle(wish, seen.state, blobs)))
    # A directory that is empty only now is so again when this is taken back.
    known = {wish.path for wish in wishes}
    coming = [step.path for step, _ in steps if step.now.kind == "absent" and step.then.is_kept]
    hollow = {above for path in coming if (above := hollow_above(root, path)) is not None and above not in known}
    steps += [Planned(Step(path, DIRECTORY, ABSENT), None) for path in sorted(hollow)]
    going = {step.path for step, _ in steps if step.then.kind == "absent"}
    return Plan([Planned(step, _worse(obstacle, _in_the_way(step, going, root))) for step, obstacle in steps])


def status_of(before: State, after: State) -> FileStatus:
    nothing = ("absent", "directory")
    if before.kind in nothing:
        return "created"
    return "deleted" if after.kind in nothing else "modified"


def is_hollow(before: State, after: State) -> bool:
    """Only a directory that became empty, or is no longer: nothing that people call a change."""
    return {before.kind, after.kind} <= {"absent", "directory"}


def _obstacle(wish: Wish, now: State, blobs: Blobs) -> Obstacle | None:
    for state in (wish.then, now):
        if state.kind == "large":
            return "too_large"
    if wish.then.kind == "special":
        return "special"
    if wish.then.is_kept and not blobs.has(wish.then.digest):
        return "not_kept"
    hollow = ("absent", "directory")  # whether a directory is empty depends on what is in it, which is another's wish
    is_expected = now == wish.expected or (now.kind in hollow and wish.expected.kind in hollow)
    return None if is_expected and wish.is_ours else "changed"


def _worse(obstacle: Obstacle | None, place: Obstacle | None) -> Obstacle | None:
    """What was changed can be overwritten; what has the place of another cannot."""
    return place or obstacle if obstacle in (None, "changed") else obstacle


def _in_the_way(step: Step, going: set[bytes], root: bytes) -> Obstacle | None:
    """Whether something has its place that does not go: what a directory holds, or a file where a directory was."""
    if step.then.kind == "absent":
        return None
    if os.path.isdir(step.path) and not os.path.islink(step.path) and not _is_going(step.path, going):
        return None if step.then.kind == "directory" else "in_the_way"
    parent = os.path.dirname(step.path)
    while parent not in (root, b"/", b""):
        is_directory = os.path.isdir(parent) and not os.path.islink(parent)
        if os.path.lexists(parent) and not is_directory and parent not in going:
            return "in_the_way"
        parent = os.path.dirname(parent)
    return None


def _is_going(directory: bytes, going: set[bytes]) -> bool:
    for parent, directories, names in os.walk(directory):
        held = [os.path.join(parent, name) for name in (*directories, *names)]
        if not held and parent not in (directory, *going):
            return False
        if any(path not in going and (os.path.islink(path) or not os.path.isdir(path)) for path in held):
            return False
    return True

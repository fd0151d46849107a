"""What bringing files back would do, and what is in its way, before anything is touched.

A file goes back only from the state that our own change left it in. Any other is somebody's work. One that a background
job or the user changed, and surely none of our commands, is left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple, get_args

import msgspec

from kedge.files.blobs import Blobs
from kedge.files.restore import Step
from kedge.files.states import ABSENT, DIRECTORY, State, hollow_above, observe_below
from kedge.protocol.files import FileStatus, Obstacle, Unsure


class Change(NamedTuple):
    """`unsure`: why it may be the user's own change."""

    path: bytes
    before: State
    after: State
    unsure: Unsure | None = None


class Wish(NamedTuple):
    """Bring `path` to `then`; it should be `expected` now, and nobody else should have changed it on the way there.

    `unsure`: it is left as it is, because none of its changes is surely ours.
    """

    path: bytes
    expected: State
    then: State
    is_ours: bool = True
    unsure: Unsure | None = None


class Planned(NamedTuple):
    step: Step
    obstacle: Obstacle | None


class Plan(NamedTuple):
    steps: list[Planned]

    def to_do(self) -> list[Step]:
        """What is done where somebody insists: all but what cannot be brought back, or not without a loss."""
        return [each.step for each in self.steps if _is_done(each)]

    @property
    def has_obstacles(self) -> bool:
        return any(is_refusal(obstacle) for _, obstacle in self.steps)


def is_refusal(obstacle: Obstacle | None) -> bool:
    """Whether it keeps the other files from being restored, too."""
    return obstacle is not None and obstacle not in get_args(Unsure)


def _is_done(planned: Planned) -> bool:
    return planned.obstacle in (None, "changed")


_decode_steps = msgspec.msgpack.Decoder(list[Step]).decode


def encode_steps(steps: Sequence[Step]) -> bytes:
    return msgspec.msgpack.encode(steps)


def decode_steps(data: bytes) -> list[Step]:
    return _decode_steps(data)


def reversed_steps(steps: Iterable[Step]) -> list[Step]:
    return [Step(step.path, step.then, step.now) for step in steps]


def wishes_of(changes: Iterable[Change], *, include_unsure: bool = False) -> list[Wish]:
    """Back to before all of these changes, which are in their order; `include_unsure`: those count as ours, too."""
    chains: dict[bytes, list[Change]] = {}
    for change in changes:
        chain = chains.setdefault(change.path, [])
        if not chain or not _is_recorded_twice(chain[-1], change):
            chain.append(change._replace(unsure=None) if include_unsure else change)
    return [_wish(chain) for chain in chains.values()]


def _is_recorded_twice(last: Change, change: Change) -> bool:
    """A crash came before it could be noted that the first one is on record."""
    return last[:3] == change[:3] and not (last.unsure and not change.unsure)


def _wish(chain: Sequence[Change]) -> Wish:
    """For the changes of one path."""
    ours = [change for change in chain if not change.unsure]
    if not ours:
        return Wish(chain[0].path, chain[-1].after, chain[0].before, unsure=chain[-1].unsure)
    path, then, expected, _ = ours[0]
    is_ours = True
    for change in ours[1:]:
        # Somebody may have brought it back in between (as `git checkout` does): with this change it begins anew.
        is_ours = change.before == then or (is_ours and change.before == expected)
        expected = change.after
    return Wish(path, expected, then, is_ours)


def plan(wishes: Sequence[Wish], blobs: Blobs, root: bytes, *, keeps: bool) -> Plan:
    """`keeps`: what is there now is kept, so that it can come back. Blocks: not for the loop."""
    steps: list[Planned] = []
    for wish in wishes:
        seen = observe_below(root, wish.path)
        # If we left it so ourselves, after somebody else had changed it, then their work is not there any more.
        if seen.state == wish.then and (wish.is_ours or seen.state != wish.expected):
            continue
        if keeps and seen.data is not None:
            blobs.put([seen.data])
        steps.append(Planned(Step(wish.path, seen.state, wish.then), _obstacle(wish, seen.state, blobs)))
    # A directory that is empty only now is so again when this is taken back.
    known = {wish.path for wish in wishes}
    coming = [step.path for step, _ in steps if step.now.kind == "absent" and step.then.is_kept]
    hollow = {above for path in coming if (above := hollow_above(root, path)) is not None and above not in known}
    steps += [Planned(Step(path, DIRECTORY, ABSENT), None) for path in sorted(hollow)]
    going = {each.step.path for each in steps if each.step.then.kind == "absent" and _is_done(each)}
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
    if wish.unsure is not None:
        return wish.unsure
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

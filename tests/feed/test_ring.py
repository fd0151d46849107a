"""The ring against a list that never forgets anything."""

from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kedge.feed.feed import Ring

MAX_BYTES = 40
SESSIONS = ["a", "b"]


class Pushed(NamedTuple):
    frame: bytes
    session_id: str
    seq: int | None


class RingMachine(RuleBasedStateMachine):
    """Pushes, trims and reads in any order; the model keeps all frames, and looks at them one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(0)
        self.pushed: list[Pushed] = []
        self.first_head = 0

    @initialize(head=st.integers(0, 5))
    def made(self, head: int) -> None:
        self.ring = Ring(head, MAX_BYTES)
        self.first_head = head

    @rule(size=st.integers(1, 60), session_id=st.sampled_from(SESSIONS), is_logged=st.booleans())
    def push(self, size: int, session_id: str, is_logged: bool) -> None:
        seq = self.newest_before(len(self.pushed)) + 1 if is_logged else None
        frame = (b"%d." % len(self.pushed)).ljust(size, b"x")
        self.ring.push(frame, session_id, seq)
        self.pushed.append(Pushed(frame, session_id, seq))

    @rule()
    def clear(self) -> None:
        self.ring.clear()
        assert self.ring.start == self.ring.end

    @rule(missing=st.integers(1, 3))
    def skip(self, missing: int) -> None:
        """Events that never came are like one frame that is gone: nobody reads on without them."""
        seq = self.newest_before(len(self.pushed)) + missing
        self.ring.skip_to(seq)
        self.pushed.append(Pushed(b"", "", seq))
        assert self.ring.start == self.ring.end

    @precondition(lambda self: self.ring.start < self.ring.end)
    @rule(
        data=st.data(),
        max_bytes=st.integers(0, 100),
        session_id=st.sampled_from([None, *SESSIONS]),
        logged_only=st.booleans(),
    )
    def take(self, data: st.DataObject, max_bytes: int, session_id: str | None, logged_only: bool) -> None:
        position = data.draw(st.integers(self.ring.start, self.ring.end - 1))
        chunk, after = self.ring.take(position, max_bytes, session_id=session_id, logged_only=logged_only)
        taken = self.pushed[position:after]
        assert taken, "a frame that is larger than the budget goes alone"
        assert len(taken) == 1 or size_of(taken) <= max_bytes
        assert after == self.ring.end or size_of(self.pushed[position : after + 1]) > max_bytes, "no more would fit"
        wanted = [
            pushed.frame
            for pushed in taken
            if session_id in (None, pushed.session_id) and (pushed.seq is not None or not logged_only)
        ]
        assert chunk == b"".join(wanted)

    @rule(data=st.data())
    def follow(self, data: st.DataObject) -> None:
        """A reader that asks for all events after a seq gets exactly those, or is told that they are not here."""
        seq = data.draw(st.integers(0, self.ring.head))
        gone = [pushed.seq for pushed in self.pushed[: self.ring.start] if pushed.seq is not None]
        assert self.ring.reaches(seq) == (seq >= max([self.first_head, *gone]))
        if not self.ring.reaches(seq):
            return
        position = self.ring.position_after(seq)
        seen: list[bytes] = []
        while position < self.ring.end:
            chunk, position = self.ring.take(position, 20, logged_only=True)
            seen.append(chunk)
        expected = [pushed.frame for pushed in self.pushed if pushed.seq is not None and pushed.seq > seq]
        assert b"".join(seen) == b"".join(expected)

    @invariant()
    def check(self) -> None:
        assert self.ring.end == len(self.pushed), "positions count all frames that ever were"
        assert self.ring.head == self.newest_before(len(self.pushed))
        for position in range(self.ring.start, self.ring.end + 1):
            assert self.ring.seq_at(position) == self.newest_before(position)
        held = self.pushed[self.ring.start :]
        assert self.ring.size_bytes == size_of(held)
        needs_all = size_of(held[1:]) < MAX_BYTES  # without its oldest frame it would hold too little
        assert self.ring.size_bytes <= MAX_BYTES * 5 // 4 or needs_all

    def newest_before(self, position: int) -> int:
        return max([self.first_head, *(pushed.seq or 0 for pushed in self.pushed[:position])])


@pytest.mark.slow
def test_the_ring_is_a_list_that_forgets_its_oldest() -> None:
    run_state_machine_as_test(RingMachine)


def size_of(frames: list[Pushed]) -> int:
    return sum(len(pushed.frame) for pushed in frames)


def test_readers_that_keep_up_are_handed_the_same_bytes() -> None:
    """What is joined once is not joined again for a hundred readers."""
    ring = Ring(0)
    for i in range(10):
        ring.push(b"frame %d" % i, "a", i + 1)
    first, _ = ring.take(3, 1 << 20)
    second, _ = ring.take(3, 1 << 20)
    assert first is second


def test_a_frame_larger_than_the_ring_is_kept_until_the_next_ones() -> None:
    ring = Ring(0, max_bytes=10)
    ring.push(b"x" * 100, "a", 1)
    assert ring.take(0, 1)[0] == b"x" * 100
    for seq in range(2, 14):
        ring.push(b"y", "a", seq)
    assert not ring.reaches(0)
    assert ring.reaches(1)
    assert ring.size_bytes == 12


def test_pushing_a_long_story_costs_little_on_average() -> None:
    """Trimming works in bites: a ring at its bound does not move all its frames for each new one."""
    ring = Ring(0, max_bytes=1000)
    trims = 0
    for seq in range(1, 10_001):
        before = ring.start
        ring.push(b"x" * 10, "a", seq)
        trims += ring.start > before
    assert trims <= 10_000 / 20

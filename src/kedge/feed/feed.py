"""One workspace's feed: committed events and deltas are encoded once, and all readers get the same bytes."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from itertools import compress

from kedge.feed.open_items import OpenItems
from kedge.protocol.events import LiveType, SkillsChanged, encode, frame
from kedge.protocol.messages import Delta
from kedge.store.port import Committed, WorkspaceState

# Some minutes of a busy workspace. Readers that are further behind read the store.
RING_BYTES = 4 * 1024 * 1024


class Ring:
    """A bounded buffer of the newest encoded frames of a workspace, shared by all its readers.

    A position counts frames since the ring was created, so it always means the same frame. Frames below `start` are
    dropped: a reader there has to read the store.
    """

    def __init__(self, head: int, max_bytes: int = RING_BYTES) -> None:
        self.head = head  # seq of the newest event
        self.start = 0  # position of the oldest frame
        self._max_bytes = max_bytes
        self._before_seq = head  # seq of the newest dropped event
        self._frames: list[bytes] = []
        self._seqs: list[int] = []  # for each frame: seq of the newest event up to it
        self._is_logged: list[bool] = []
        self._sessions: list[str] = []
        self._ends: list[int] = []  # for each frame: bytes up to its end, since the ring was created
        self._total = 0
        self._joined: tuple[tuple[int, int], bytes] = ((0, 0), b"")  # the last result of `_join`

    @property
    def end(self) -> int:
        return self.start + len(self._frames)

    @property
    def size_bytes(self) -> int:
        return self._total - (self._ends[0] - len(self._frames[0])) if self._frames else 0

    def push(self, frame: bytes, session_id: str, seq: int | None = None) -> None:
        if seq is not None:
            self.head = seq
        self._total += len(frame)
        self._frames.append(frame)
        self._seqs.append(self.head)
        self._is_logged.append(seq is not None)
        self._sessions.append(session_id)
        self._ends.append(self._total)
        if self.size_bytes > self._max_bytes * 5 // 4:  # many at once: a push costs little on average
            self._drop(bisect_right(self._ends, self._total - self._max_bytes, hi=len(self._ends) - 1))

    def clear(self) -> None:
        self._drop(len(self._frames))

    def skip_to(self, seq: int) -> None:
        """Drop all frames because events up to `seq` are missing: readers have to read the store."""
        self.clear()
        self.start += 1  # the position of the missing events: also readers at the end are now below `start`
        self.head = self._before_seq = seq

    def reaches(self, seq: int) -> bool:
        """Whether the ring has every event after `seq`."""
        return seq >= self._before_seq

    def position_after(self, seq: int) -> int:
        return self.start + bisect_right(self._seqs, seq)

    def seq_at(self, position: int) -> int:
        """Return the seq of the newest event before `position`."""
        index = position - self.start
        return self._seqs[index - 1] if index > 0 else self._before_seq

    def take(
        self, position: int, max_bytes: int, *, session_id: str | None = None, logged_only: bool = False
    ) -> tuple[bytes, int]:
        """Return joined frames from `position` on, at least one and as many as fit, and the position after them."""
        first = position - self.start
        budget = (self._ends[first] - len(self._frames[first])) + max_bytes
        last = max(first + 1, bisect_right(self._ends, budget, lo=first))
        if session_id is None and not logged_only:
            return self._join(first, last), self.start + last
        chosen = [
            (self._is_logged[i] or not logged_only) and session_id in (None, self._sessions[i])
            for i in range(first, last)
        ]
        return b"".join(compress(self._frames[first:last], chosen)), self.start + last

    def _join(self, first: int, last: int) -> bytes:
        """Join frames; the result is cached, because readers that keep up all ask for the same ones."""
        key = (self.start + first, self.start + last)
        if self._joined[0] != key:
            self._joined = (key, b"".join(self._frames[first:last]))
        return self._joined[1]

    def _drop(self, count: int) -> None:
        if count == 0:
            return
        self._before_seq = self._seqs[count - 1]
        self.start += count
        for column in (self._frames, self._seqs, self._is_logged, self._sessions, self._ends):
            del column[:count]
        self._joined = ((0, 0), b"")


log = logging.getLogger(__name__)

# Pause between two wake-ups for deltas, times the number of readers: so waking takes a tenth of the loop's time at
# most. One reader gets text at once; a hundred get it fifty times a second.
WAKE_PAUSE_S = 0.0002
MAX_HOMES = 100  # whose skills are compared


class Cursor:
    def __init__(self) -> None:
        self.seq = 0  # all events up to here were delivered
        self.position = 0  # in the ring, while the reader is live


class Feed:
    def __init__(self, state: WorkspaceState, ring_bytes: int = RING_BYTES) -> None:
        self.workspace = state.workspace
        self.workspace_id = state.workspace.id
        self.path = state.workspace.path
        self.log_id = state.log_id
        self.ring = Ring(state.head, ring_bytes)
        self.open_items = OpenItems(state.pending)
        self.is_closed = False
        self.skips_permissions = False  # for the whole workspace, until the server ends
        self.cursors: set[Cursor] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._pause_until = 0.0
        self._skills_states: dict[str, str] = {}
        self._next_wake: asyncio.TimerHandle | None = None

    @property
    def lag(self) -> int:
        """The number of events that the slowest reader has not got yet."""
        return max((self.ring.head - cursor.seq for cursor in self.cursors), default=0)

    def publish(self, event: Committed) -> None:
        """Add an event. A repeated one is ignored and a gap skipped: both are bugs, but the rest is delivered."""
        if event.seq <= self.ring.head:
            log.error("workspace %s: event %d came after %d", self.workspace_id, event.seq, self.ring.head)
            return
        if event.seq > self.ring.head + 1:
            log.error("workspace %s: a gap before event %d, after %d", self.workspace_id, event.seq, self.ring.head)
            self.ring.skip_to(event.seq - 1)
        self.ring.push(event.frame, event.session_id, event.seq)
        self.open_items.apply(event)

    def publish_delta(self, delta: Delta) -> None:
        """Add text of an open part. Readers get it at once, or with other deltas of the same pause."""
        self.open_items.append_text(delta)
        self.ring.push(frame("message_delta", "created", encode(delta)), delta.session_id)
        if self._next_wake is None:
            self._next_wake = asyncio.get_running_loop().call_at(self._pause_until, self.wake)

    def publish_live(self, type: LiveType, payload: object) -> None:
        """Add an event that is not in the log. It belongs to no session."""
        self.ring.push(frame(type, "updated", encode(payload)), "")
        self.wake()

    def publish_skills(self, state: str, home: str) -> None:
        """Publish `skills_event` if the state of the workspace's skills differs from that of the last call.

        `home` tells callers apart whose own skills are in different places: they do not see each other's as changes.
        """
        if self._skills_states.setdefault(home, state) != state:
            self.publish_live("skills_event", SkillsChanged(self.workspace_id))
        if len(self._skills_states) > MAX_HOMES:
            self._skills_states.clear()
        self._skills_states[home] = state

    def wake(self) -> None:
        if self._next_wake is not None:
            self._next_wake.cancel()
            self._next_wake = None
        waiters, self._waiters = self._waiters, set()
        self._pause_until = asyncio.get_running_loop().time() + WAKE_PAUSE_S * len(waiters)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, until: float) -> None:
        """Return when there may be something new, or at `until` (the loop's clock)."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_at(until, lambda: waiter.done() or waiter.set_result(None))
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def close(self) -> None:
        """End the streams after everything that is in the feed now."""
        self.is_closed = True
        self.wake()

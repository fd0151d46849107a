"""One workspace's feed: committed events and deltas are encoded once, and all readers get the same bytes."""

from __future__ import annotations

import asyncio
import logging

from kedge.feed.open_items import OpenItems
from kedge.feed.ring import RING_BYTES, Ring
from kedge.protocol.events import encode, frame
from kedge.protocol.messages import Delta, Part
from kedge.store.port import Committed, WorkspaceState

log = logging.getLogger(__name__)

# Pause between two wake-ups for deltas, times the number of readers: so waking takes a tenth of the loop's time at
# most. One reader gets text at once; a hundred get it fifty times a second.
WAKE_PAUSE_S = 0.0002


class Cursor:
    """The position of one reader."""

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

    def open_part(self, message_id: str, part: int, head: Part) -> None:
        """Start a part of a message; `head` is the part without its text."""
        self.open_items.open_part(message_id, part, head)

    def publish_delta(self, delta: Delta) -> None:
        """Add text of an open part. Readers get it at once, or with other deltas of the same pause."""
        self.open_items.append_text(delta)
        self.ring.push(frame("message_delta", "created", encode(delta)), delta.session_id)
        if self._next_wake is None:
            self._next_wake = asyncio.get_running_loop().call_at(self._pause_until, self.wake)

    def wake(self) -> None:
        """Wake all waiting readers."""
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

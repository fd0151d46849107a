"""One workspace's feed: committed events and live deltas go in once, and every subscriber reads the same bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence

from kedge.feed.open_items import OpenItems
from kedge.feed.ring import RING_BYTES, Ring
from kedge.feed.stream import FeedReader, stream
from kedge.protocol.events import encode, frame
from kedge.protocol.messages import Delta, Part
from kedge.store.port import Committed, Store, WorkspaceState

log = logging.getLogger(__name__)

# What all workspaces together may keep in memory; those quiet for longest give up theirs first.
ALL_RINGS_BYTES = 16 * RING_BYTES
# How long a reader that was woken is left to what it has before more deltas wake it, times the number of readers: so
# waking takes a tenth of the loop's time at most. One reader waits for no text; a hundred see it fifty times a second.
REST_S = 0.0002


class Feed:
    def __init__(self, state: WorkspaceState, ring_bytes: int = RING_BYTES) -> None:
        self.workspace = state.workspace
        self.workspace_id = state.workspace.id
        self.path = state.workspace.path
        self.log_id = state.log_id
        self.ring = Ring(state.head, ring_bytes)
        self.open_items = OpenItems(state.pending)
        self.is_closed = False
        self.skips_permissions = False  # of the workspace, as long as this server lives
        self.readers: set[FeedReader] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._rest_until = 0.0
        self._next_wake: asyncio.TimerHandle | None = None

    @property
    def lag(self) -> int:
        """How many events the slowest reader has still to get."""
        return max((self.ring.head - reader.seq for reader in self.readers), default=0)

    def publish(self, event: Committed) -> None:
        """Events come one after the other. If they do not, that is a bug, but no reason to lose those that come."""
        if event.seq <= self.ring.head:
            log.error("the story of %s repeats itself: event %d after %d", self.workspace_id, event.seq, self.ring.head)
            return
        if event.seq > self.ring.head + 1:
            log.error("the story of %s has a gap: event %d after %d", self.workspace_id, event.seq, self.ring.head)
            self.ring.skip_to(event.seq - 1)
        self.ring.push(event.frame, event.session_id, event.seq)
        self.open_items.apply(event)

    def open_part(self, message_id: str, part: int, head: Part) -> None:
        """A part of a message begins to be written: `head` is the part without its text."""
        self.open_items.open_part(message_id, part, head)

    def publish_delta(self, delta: Delta) -> None:
        """Show a slice_of of text of an open part: at once after a pause, else with those that follow it closely."""
        self.open_items.append_text(delta)
        self.ring.push(frame("message_delta", "created", encode(delta)), delta.session_id)
        if self._next_wake is None:
            self._next_wake = asyncio.get_running_loop().call_at(self._rest_until, self.wake)

    def wake(self) -> None:
        """Tell all readers that wait that there is something new."""
        if self._next_wake is not None:
            self._next_wake.cancel()
            self._next_wake = None
        waiters, self._waiters = self._waiters, set()
        self._rest_until = asyncio.get_running_loop().time() + REST_S * len(waiters)
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
        """End the streams, after what is still to be read."""
        self.is_closed = True
        self.wake()


class Feeds:
    """The feeds of all workspaces of a store, within one budget of memory."""

    def __init__(self, store: Store, *, ring_bytes: int = RING_BYTES, all_bytes: int = ALL_RINGS_BYTES) -> None:
        self._store = store
        self._ring_bytes = ring_bytes
        self._all_bytes = all_bytes
        self._feeds: dict[str, Feed] = {}  # the one that was quiet for longest first

    def open(self, state: WorkspaceState) -> None:
        if state.workspace.id not in self._feeds:
            self._feeds[state.workspace.id] = Feed(state, self._ring_bytes)

    def all(self) -> list[Feed]:
        return list(self._feeds.values())

    def get(self, workspace_id: str) -> Feed | None:
        return self._feeds.get(workspace_id)

    def publish(self, events: Sequence[Committed]) -> None:
        """One group of the store, of any workspaces. Nobody reads one that has no feed: it is new, or just deleted."""
        touched: dict[str, Feed] = {}
        for event in events:
            if feed := self._feeds.get(event.workspace_id):
                feed.publish(event)
                touched[event.workspace_id] = feed
        for workspace_id, feed in touched.items():
            self._feeds[workspace_id] = self._feeds.pop(workspace_id)
            feed.wake()
        self._keep_within_budget()

    def subscribe(
        self, feed: Feed, *, after: int | None = None, log_id: str | None = None, session_id: str | None = None
    ) -> AsyncGenerator[bytes]:
        """Frames, in chunks, as fast as they are asked for, in the order of section 4 of the contract."""
        return stream(feed, self._store, after=after, log_id=log_id, session_id=session_id)

    def remove(self, workspace_id: str) -> None:
        if feed := self._feeds.pop(workspace_id, None):
            feed.close()

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def _keep_within_budget(self) -> None:
        size = sum(feed.ring.size_bytes for feed in self._feeds.values())
        for feed in self._feeds.values():
            if size <= self._all_bytes:
                return
            size -= feed.ring.size_bytes
            feed.ring.clear()

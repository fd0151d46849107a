"""The feeds of all workspaces, within one memory budget, and the event streams of their subscribers.

A stream pulls: a subscriber that stops reading costs two numbers (P11). Its order: `connected`, the log after the
cursor, open items, `caught_up`, then live frames (section 4 of the contract). A reader that falls behind the ring reads
the log again, and gets the open items and `caught_up` again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from kedge.feed.feed import RING_BYTES, Cursor, Feed
from kedge.feed.open_items import slice_of, split_chunks
from kedge.protocol.errors import NotFound, StoreUnavailable
from kedge.protocol.events import CaughtUp, Connected, Heartbeat, ResetReason, StreamReset, control_frame
from kedge.store.port import Committed, Store, WorkspaceState

# Memory for the rings of all workspaces; those without events for the longest time are cleared first.
ALL_RINGS_BYTES = 16 * RING_BYTES


class Feeds:
    def __init__(self, *, ring_bytes: int = RING_BYTES, all_bytes: int = ALL_RINGS_BYTES) -> None:
        self._ring_bytes = ring_bytes
        self._all_bytes = all_bytes
        self._feeds: dict[str, Feed] = {}  # by workspace; the one without events for the longest time first

    def open(self, state: WorkspaceState) -> None:
        if state.workspace.id not in self._feeds:
            self._feeds[state.workspace.id] = Feed(state, self._ring_bytes)

    def all(self) -> list[Feed]:
        return list(self._feeds.values())

    def require(self, workspace_id: str) -> Feed:
        """Return the workspace's feed; raises `NotFound`."""
        feed = self._feeds.get(workspace_id)
        if feed is None:
            raise NotFound("workspace", workspace_id)
        return feed

    def publish(self, events: Sequence[Committed]) -> None:
        """Add one commit's events, of any workspaces. One without a feed is new or just deleted, and has no readers."""
        touched: dict[str, Feed] = {}
        for event in events:
            if feed := self._feeds.get(event.workspace_id):
                feed.publish(event)
                touched[event.workspace_id] = feed
        for workspace_id, feed in touched.items():
            self._feeds[workspace_id] = self._feeds.pop(workspace_id)
            feed.wake()
        self._free_memory()

    def remove(self, workspace_id: str) -> None:
        if feed := self._feeds.pop(workspace_id, None):
            feed.close()

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def _free_memory(self) -> None:
        size = sum(feed.ring.size_bytes for feed in self._feeds.values())
        for feed in self._feeds.values():
            if size <= self._all_bytes:
                return
            size -= feed.ring.size_bytes
            feed.ring.clear()


HEARTBEAT_S = 9.0  # the contract says at least every 10 s
# Memory for one write to one client. A larger event is sent alone, since its bytes are shared; snapshots are cut
# anywhere.
CHUNK_BYTES = 256 * 1024
PAGE_EVENTS = 500


async def stream(
    feed: Feed, store: Store, *, after: int | None, log_id: str | None, session_id: str | None
) -> AsyncGenerator[bytes]:
    """Yield frames in chunks, as fast as the reader takes them, in the order of section 4 of the contract."""
    reader = FeedReader(feed, store, session_id)
    feed.cursors.add(reader.cursor)
    try:
        async for chunk in reader.frames(after, log_id):
            yield chunk
    finally:
        feed.cursors.discard(reader.cursor)


class FeedReader:
    def __init__(self, feed: Feed, store: Store, session_id: str | None) -> None:
        self.feed = feed
        self.store = store
        self.session_id = session_id
        self.cursor = Cursor()

    async def frames(self, after: int | None, log_id: str | None) -> AsyncGenerator[bytes]:
        yield self._connect(after, log_id)
        try:
            while not self.feed.is_closed or self.cursor.seq < self.feed.ring.head:
                async for chunk in self._catch_up():
                    yield chunk
                async for chunk in self._live():
                    yield chunk
        except NotFound:
            return  # the workspace was deleted, and its log with it
        except StoreUnavailable:
            if not self.feed.is_closed:
                raise
            # The server has stopped: the next one sends the rest.

    def _connect(self, after: int | None, log_id: str | None) -> bytes:
        ring = self.feed.ring
        self.cursor.seq = ring.head if after is None else after
        first = control_frame("connected", Connected(self.feed.log_id, ring.head, self.cursor.seq))
        if after is not None and log_id not in (None, self.feed.log_id):
            return first + self._reset("other_log")
        if self.cursor.seq > ring.head:
            return first + self._reset("ahead")
        return first

    def _reset(self, reason: ResetReason) -> bytes:
        self.cursor.seq = self.feed.ring.head
        return control_frame("stream_reset", StreamReset(reason, self.cursor.seq))

    async def _catch_up(self) -> AsyncGenerator[bytes]:
        """Yield the events up to the head, then the open items of the same moment. The reader is then live."""
        ring = self.feed.ring
        while self.cursor.seq < ring.head:
            if not ring.reaches(self.cursor.seq):
                if page := await self._page():
                    yield page
                continue
            position = ring.position_after(self.cursor.seq)
            chunk, position = ring.take(position, CHUNK_BYTES, session_id=self.session_id, logged_only=True)
            self.cursor.seq = ring.seq_at(position)
            if chunk:
                yield chunk
        self.cursor.position = ring.end
        open_now = [
            *self.feed.open_items.frames(self.session_id),
            slice_of(control_frame("caught_up", CaughtUp(self.cursor.seq))),
        ]
        for chunk in split_chunks(open_now, CHUNK_BYTES):
            yield chunk

    async def _page(self) -> bytes:
        page = await self.store.read_log(self.feed.workspace_id, self.cursor.seq, PAGE_EVENTS, self.session_id)
        if self.cursor.seq < page.floor:
            return self._reset("retention")
        # The store may have a commit that is not published yet: its events come from the ring.
        shown = [event for event in page.events if event.seq <= self.feed.ring.head]
        self.cursor.seq = min(page.upto, self.feed.ring.head)
        return b"".join(event.frame for event in shown)

    async def _live(self) -> AsyncGenerator[bytes]:
        """Yield everything new, until the reader falls behind the ring or the feed is closed."""
        ring = self.feed.ring
        loop = asyncio.get_running_loop()
        heartbeat_at = loop.time() + HEARTBEAT_S
        while self.cursor.position >= ring.start:
            if loop.time() >= heartbeat_at:
                heartbeat_at = loop.time() + HEARTBEAT_S
                yield control_frame("heartbeat", Heartbeat(self.cursor.seq))
            elif self.cursor.position < ring.end:
                chunk, self.cursor.position = ring.take(self.cursor.position, CHUNK_BYTES, session_id=self.session_id)
                self.cursor.seq = ring.seq_at(self.cursor.position)
                if chunk:
                    yield chunk
            elif self.feed.is_closed:
                return
            else:
                await self.feed.wait(until=heartbeat_at)

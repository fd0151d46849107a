"""A subscriber: a cursor that pulls. One that stops reading holds two numbers and delays nobody (P11).

Order: `connected`, the log after the cursor, what is still open, `caught_up`, then live (section 4 of the contract). A
reader that fell off the ring goes through the log again, and is told the open things and `caught_up` again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from kedge.feed.open_items import slice_of, split_chunks
from kedge.protocol.errors import NotFound, StoreUnavailable
from kedge.protocol.events import CaughtUp, Connected, Heartbeat, ResetReason, StreamReset, control_frame
from kedge.store.port import Store

if TYPE_CHECKING:
    from kedge.feed.feed import Feed

HEARTBEAT_S = 9.0  # the contract says at least every 10 s
# What one write to one client may hold in memory. A larger event goes alone, since its bytes are shared; a snapshot is
# cut anywhere.
CHUNK_BYTES = 256 * 1024
PAGE_EVENTS = 500


async def stream(
    feed: Feed, store: Store, *, after: int | None, log_id: str | None, session_id: str | None
) -> AsyncGenerator[bytes]:
    reader = FeedReader(feed, store, session_id)
    feed.readers.add(reader)
    try:
        async for chunk in reader.frames(after, log_id):
            yield chunk
    finally:
        feed.readers.discard(reader)


class FeedReader:
    def __init__(self, feed: Feed, store: Store, session_id: str | None) -> None:
        self.feed = feed
        self.store = store
        self.session_id = session_id
        self.seq = 0  # all events up to here were delivered
        self.position = 0  # in the ring, while live

    async def frames(self, after: int | None, log_id: str | None) -> AsyncGenerator[bytes]:
        yield self._connect(after, log_id)
        try:
            while not self.feed.is_closed or self.seq < self.feed.ring.head:
                async for chunk in self._catch_up():
                    yield chunk
                async for chunk in self._live():
                    yield chunk
        except NotFound:
            return  # the workspace was deleted, and the log with it: the rest of the story is nowhere
        except StoreUnavailable:
            if not self.feed.is_closed:
                raise
            # The server has gone: the next one tells the rest.

    def _connect(self, after: int | None, log_id: str | None) -> bytes:
        ring = self.feed.ring
        self.seq = ring.head if after is None else after
        first = control_frame("connected", Connected(self.feed.log_id, ring.head, self.seq))
        if after is not None and log_id not in (None, self.feed.log_id):
            return first + self._reset("other_log")
        if self.seq > ring.head:
            return first + self._reset("ahead")
        return first

    def _reset(self, reason: ResetReason) -> bytes:
        self.seq = self.feed.ring.head
        return control_frame("stream_reset", StreamReset(reason, self.seq))

    async def _catch_up(self) -> AsyncGenerator[bytes]:
        """Events of the log, up to the head; then, at the same moment, what is open. The reader is then live."""
        ring = self.feed.ring
        while self.seq < ring.head:
            if not ring.reaches(self.seq):
                if page := await self._page():
                    yield page
                continue
            position = ring.position_after(self.seq)
            chunk, position = ring.take(position, CHUNK_BYTES, session_id=self.session_id, logged_only=True)
            self.seq = ring.seq_at(position)
            if chunk:
                yield chunk
        self.position = ring.end
        open_now = [
            *self.feed.open_items.frames(self.session_id),
            slice_of(control_frame("caught_up", CaughtUp(self.seq))),
        ]
        for chunk in split_chunks(open_now, CHUNK_BYTES):  # of that moment, however long it takes to send them
            yield chunk

    async def _page(self) -> bytes:
        page = await self.store.read_log(self.feed.workspace_id, self.seq, PAGE_EVENTS, self.session_id)
        if self.seq < page.floor:
            return self._reset("retention")
        # The store may be ahead of the feed by a commit that is not published yet: that comes from the ring.
        shown = [event for event in page.events if event.seq <= self.feed.ring.head]
        self.seq = min(page.upto, self.feed.ring.head)
        return b"".join(event.frame for event in shown)

    async def _live(self) -> AsyncGenerator[bytes]:
        """Everything new, until the reader falls off the ring or the feed is closed."""
        ring = self.feed.ring
        loop = asyncio.get_running_loop()
        heartbeat_at = loop.time() + HEARTBEAT_S
        while self.position >= ring.start:
            if loop.time() >= heartbeat_at:
                heartbeat_at = loop.time() + HEARTBEAT_S
                yield control_frame("heartbeat", Heartbeat(self.seq))
            elif self.position < ring.end:
                chunk, self.position = ring.take(self.position, CHUNK_BYTES, session_id=self.session_id)
                self.seq = ring.seq_at(self.position)
                if chunk:
                    yield chunk
            elif self.feed.is_closed:
                return
            else:
                await self.feed.wait(until=heartbeat_at)

"""The feeds of all workspaces, within one memory budget."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from kedge.feed.feed import Feed
from kedge.feed.ring import RING_BYTES
from kedge.feed.stream import stream
from kedge.protocol.errors import NotFound
from kedge.store.port import Committed, Store, WorkspaceState

# Memory for the rings of all workspaces; those without events for the longest time are cleared first.
ALL_RINGS_BYTES = 16 * RING_BYTES


class Feeds:
    def __init__(self, store: Store, *, ring_bytes: int = RING_BYTES, all_bytes: int = ALL_RINGS_BYTES) -> None:
        self._store = store
        self._ring_bytes = ring_bytes
        self._all_bytes = all_bytes
        self._feeds: dict[str, Feed] = {}  # by workspace; the one without events for the longest time first

    def open(self, state: WorkspaceState) -> None:
        if state.workspace.id not in self._feeds:
            self._feeds[state.workspace.id] = Feed(state, self._ring_bytes)

    def all(self) -> list[Feed]:
        return list(self._feeds.values())

    def get(self, workspace_id: str) -> Feed | None:
        return self._feeds.get(workspace_id)

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

    def subscribe(
        self, feed: Feed, *, after: int | None = None, log_id: str | None = None, session_id: str | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield frames in chunks, as fast as the reader takes them, in the order of section 4 of the contract."""
        return stream(feed, self._store, after=after, log_id=log_id, session_id=session_id)

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

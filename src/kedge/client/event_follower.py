"""Following a workspace's events over as many connections as it takes.

`EventFollower` makes the decisions, for `kedge run`, `Client`, `AsyncClient` and the terminal interface alike; `follow`
and `follow_async` do its I/O.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

from kedge.client.errors import Dropped, SpawnFailed
from kedge.client.event_cursor import EventCursor
from kedge.client.reconnect import ReconnectPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.async_transport import AsyncTransport
    from kedge.client.transport import Transport


class EventFollower:
    """Hands every new event to `take(event, data)`, which may raise `Dropped` to read on with a new connection."""

    def __init__(
        self, workspace_path: str, cursor: EventCursor, take: Callable[[Any, bytes], None], policy: ReconnectPolicy
    ) -> None:
        self.policy = policy
        self._workspace_path = workspace_path
        self._cursor = cursor
        self._take = take

    def begin_connection(self) -> str:
        """Return the request target that continues after the last event."""
        return f"{self._workspace_path}/events{self._cursor.begin_connection()}"

    def feed(self, chunk: bytes) -> None:
        """Take the events of a chunk. Raises `Dropped` where some are missing."""
        for type, event, data in self._cursor.feed(chunk):
            self.policy.record_contact() if type == "connected" else self.policy.record_progress()
            self._take(event, data)

    @property
    def needs_connection(self) -> bool:
        """Whether the cursor was moved back, so that the current connection is of no more use."""
        return self._cursor.is_rewound


def follow(transport: Transport, follower: EventFollower) -> Generator[None]:
    """Follow until closed. Yields after each chunk, and when the transport's waiter wants the caller to look around.

    Raises `Unreachable` when the policy gives up.
    """
    while True:
        try:
            for chunk in transport.stream(follower.begin_connection()):
                follower.feed(chunk)
                yield
                if follower.needs_connection:
                    break
        except (Dropped, SpawnFailed) as error:
            transport.back_off(follower.policy, error)
        yield


async def follow_async(
    transport: AsyncTransport,
    follower: EventFollower,
    back_off: Callable[[ReconnectPolicy, Exception], Awaitable[None]] | None = None,
) -> AsyncGenerator[None]:
    """As `follow`, on an event loop. `back_off` replaces the transport's pause after a lost connection."""
    back_off = back_off or transport.back_off
    while True:
        chunks, lost = transport.stream(follower.begin_connection()), None
        try:
            async for chunk in chunks:
                follower.feed(chunk)
                yield
                if follower.needs_connection:
                    break
        except (Dropped, SpawnFailed) as error:
            lost = error
        finally:
            await chunks.aclose()
        if lost is not None:
            await back_off(follower.policy, lost)

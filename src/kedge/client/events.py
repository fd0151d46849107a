"""Following a workspace's events over as many connections as it takes (P9, P10).

`EventCursor` is the position in the log, and `EventFollower` makes the decisions, for `kedge run`, `Client`,
`AsyncClient` and the terminal interface alike; neither does I/O. `follow` and `follow_async` do.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator

from kedge.client.errors import Dropped, SpawnFailed
from kedge.client.reconnect import ReconnectPolicy
from kedge.http.http1 import build_query
from kedge.protocol.sse import SseParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.async_transport import AsyncTransport
    from kedge.client.transport import Transport

    Event = dict[str, Any]  # a decoded envelope
    Decoded = tuple[str, int | None, dict[str, Any], Any]  # type, seq, payload (of control events), event to deliver


def decode_json(data: bytes) -> Decoded:
    """Decode an envelope to a dict. Raises ValueError, KeyError or TypeError if it is not an envelope."""
    event = json.loads(data)
    if not isinstance(event["type"], str) or not isinstance(event["payload"], dict):
        raise TypeError("not an envelope")
    return event["type"], event.get("seq"), event["payload"], event


class EventCursor:
    """Delivers each event once. With `session_id` the server filters the stream, so gaps in `seq` are expected."""

    def __init__(
        self,
        *,
        after: int | None = None,
        log_id: str | None = None,
        session_id: str | None = None,
        decode: Callable[[bytes], Decoded] = decode_json,
    ) -> None:
        self.seq = after  # last delivered event; None: start at the log's head when connecting
        self.log_id = log_id
        self.session_id = session_id
        self.is_rewound = False  # the current connection is past `seq`: open another one
        self._decode = decode
        self._parser = SseParser()
        self._stream_log_id: str | None = None

    def begin_connection(self) -> str:
        """Reset the parser for a new connection; returns the query string that continues after `seq`."""
        self._parser = SseParser()
        self._stream_log_id = None
        self.is_rewound = False
        log_id = self.log_id if self.seq is not None else None  # means nothing without a cursor
        return build_query(after=self.seq, log_id=log_id, session_id=self.session_id)

    def feed(self, chunk: bytes) -> Iterator[tuple[str, Any, bytes]]:
        """Yield the type, the decoded event and the bytes of each new event. Raises `Dropped` where events are missing:
        connect again."""
        for _, data, _ in self._parser.feed(chunk):
            try:
                type, seq, payload, event = self._decode(data)
            except (ValueError, KeyError, TypeError) as error:
                raise Dropped("the event stream is damaged") from error
            if self._is_new(type, seq, payload):
                yield type, event, data

    def rewind(self, seq: int) -> None:
        """Go back to the events after `seq`, from the next connection on."""
        self.seq = seq
        self.is_rewound = True

    def _is_new(self, type: str, seq: int | None, payload: dict[str, Any]) -> bool:
        match type:
            case "connected":
                self._stream_log_id = payload["log_id"]
                if self.seq is None or self.log_id is None:
                    self.log_id = payload["log_id"]
                if self.seq is None:
                    self.seq = payload["after"]
            case "stream_reset":
                self.seq = payload["head"]
                self.log_id = self._stream_log_id
            case "caught_up":
                self._check_delivered(payload["seq"])
            case "heartbeat":
                self._check_delivered(payload["head"])
            case _:
                return seq is None or self._advance(seq)
        return True

    def _advance(self, seq: int) -> bool:
        last = self.seq or 0
        if seq <= last:
            return False
        if seq > last + 1 and self.session_id is None:
            raise Dropped(f"the event stream has a gap between {last} and {seq}")
        self.seq = seq
        return True

    def _check_delivered(self, seq: int) -> None:
        """The server has sent everything up to `seq` on this connection."""
        last = self.seq or 0
        if seq > last and self.session_id is None:
            raise Dropped(f"the event stream has a gap after {last}")
        self.seq = max(last, seq)


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
    """Follow until closed. Yields after each chunk, and when the transport's waiter returned early.

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

"""One story over many connections: where we are in the log, what is new, what is missing (P9, P10).

Pure: the bytes of a connection go in, events that were not told before come out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from kedge.client.errors import Dropped
from kedge.client.http1 import query
from kedge.protocol.sse import SseParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Event = dict[str, Any]  # an envelope, decoded


class Story:
    """A cursor. With `session_id` the stream is filtered, and the events that are told need not follow each other."""

    def __init__(
        self,
        *,
        after: int | None = None,
        log_id: str | None = None,
        session_id: str | None = None,
        decode: Callable[[bytes], Any] = json.loads,
    ) -> None:
        self.seq = after  # everything up to here was told; None: whatever the head is when we connect
        self.log_id = log_id
        self.session_id = session_id
        self.is_rewound = False  # whether the present connection is ahead of what we want to hear
        self._decode = decode
        self._parser = SseParser()
        self._stream_log_id: str | None = None

    def connect(self) -> str:
        """Begin a new connection; returns the query that continues the story."""
        self._parser = SseParser()
        self._stream_log_id = None
        self.is_rewound = False
        # Without a cursor there is nothing that `log_id` could say something about.
        log_id = self.log_id if self.seq is not None else None
        return query(after=self.seq, log_id=log_id, session_id=self.session_id)

    def feed(self, chunk: bytes) -> Iterator[tuple[Event, bytes]]:
        """New events, each with its bytes. Raises `Dropped` where something is missing: connect again."""
        for _, data, _ in self._parser.feed(chunk):
            event = self._decoded(data)
            if self._is_news(event):
                yield event, data

    def rewind(self, seq: int) -> None:
        """Go back to what came after `seq`; takes effect with the next connection."""
        self.seq = seq
        self.is_rewound = True

    def _decoded(self, data: bytes) -> Event:
        try:
            event = self._decode(data)
            if isinstance(event["payload"], dict) and isinstance(event["type"], str):
                return event
        except (ValueError, KeyError, TypeError) as error:
            raise Dropped("the stream is damaged") from error
        raise Dropped("the stream is damaged")

    def _is_news(self, event: Event) -> bool:
        payload = event["payload"]
        match event["type"]:
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
                self._delivered(payload["seq"])
            case "heartbeat":
                self._delivered(payload["head"])
            case _:
                return event.get("seq") is None or self._advance(event["seq"])
        return True

    def _advance(self, seq: int) -> bool:
        told = self.seq or 0
        if seq <= told:
            return False
        if seq > told + 1 and self.session_id is None:
            raise Dropped(f"the stream has a gap between {told} and {seq}")
        self.seq = seq
        return True

    def _delivered(self, seq: int) -> None:
        """The server says that this stream told everything up to `seq`."""
        told = self.seq or 0
        if seq > told and self.session_id is None:
            raise Dropped(f"the stream has a gap after {told}")
        self.seq = max(told, seq)

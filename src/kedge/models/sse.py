"""The events of a model's stream, none of them larger than an answer can be."""

from __future__ import annotations

from typing import NamedTuple

from kedge.protocol.sse import SseParser

# A whole answer may come as one event; what is larger is no answer.
MAX_EVENT_BYTES = 64 * 1024 * 1024


class SseEvent(NamedTuple):
    data: bytes
    name: str = ""


class EventTooLarge(Exception):
    pass


class SseReader:
    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._parser = SseParser()

    def feed(self, chunk: bytes) -> list[SseEvent]:
        events = [SseEvent(data, name) for _, data, name in self._parser.feed(chunk)]
        if self._parser.pending_bytes > self._max_bytes:
            raise EventTooLarge
        return events

"""A reader of event streams: bytes in, whole events out, however the bytes were cut.

Lines end with LF, CR LF or CR and nothing else: U+2028 is text. An event that was cut off by the end of the stream
never comes out, as the standard wants it.
"""

from __future__ import annotations

from typing import NamedTuple

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
        self._size = 0  # of the unfinished event
        self._tail: list[bytes] = []  # an unfinished line, in pieces: a long one is joined once
        self._data: list[bytes] = []
        self._name = ""
        self._is_after_cr = False  # the line that ended with CR may go on with its LF
        self._is_first = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if self._is_after_cr and chunk:
            self._is_after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        events: list[SseEvent] = []
        for line in chunk.splitlines(keepends=True):
            self._size += len(line)
            if self._size > self._max_bytes:
                raise EventTooLarge
            if not line.endswith((b"\n", b"\r")):
                self._tail.append(line)
                continue
            if self._tail:
                line = b"".join([*self._tail, line])
                self._tail = []
            event = self._take(line.rstrip(b"\r\n"))
            if event is not None:
                events.append(event)
        self._is_after_cr = chunk.endswith(b"\r")
        return events

    def _take(self, line: bytes) -> SseEvent | None:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> SseEvent | None:
        data, name = self._data, self._name
        self._data, self._name, self._size = [], "", 0
        return SseEvent(b"\n".join(data), name) if data else None

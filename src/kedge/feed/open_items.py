"""Messages still being written and requests still pending: state that a new reader cannot get from the log (P12, P14).

Snapshots of them are slices of shared buffers, so a reader that stalls in a long message keeps a position, not a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from kedge.protocol.events import encode, frame
from kedge.protocol.messages import Delta, MessageOf, Part, RawMessage, text_in, with_text
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.store.port import Committed


class Slice(NamedTuple):
    """The first `size` bytes of a buffer that never change, even if the buffer grows (P11)."""

    data: bytes | bytearray | memoryview
    size: int


def slice_of(data: bytes | bytearray | memoryview) -> Slice:
    return Slice(data, len(data))


def split_chunks(slices: Sequence[Slice], max_bytes: int) -> Iterator[bytes]:
    """Yield the slices as chunks of at most `max_bytes`, cut anywhere. Each chunk is built when it is asked for."""
    parts: list[bytes | bytearray | memoryview] = []
    room = max_bytes
    for data, size in slices:
        start = 0
        while start < size:
            end = min(size, start + room)
            parts.append(data[start:end])
            room -= end - start
            start = end
            if room == 0:
                chunk = b"".join(parts)
                parts.clear()  # a slow reader may suspend this generator for long
                room = max_bytes
                yield chunk
    if parts:
        yield b"".join(parts)


class _OpenPart:
    def __init__(self, head: Part) -> None:
        self._head = head
        self._text = bytearray()  # escaped as in JSON; it only grows, because slices refer to it

    def append(self, text: str) -> None:
        self._text += encode(text)[1:-1]

    def snapshot(self) -> list[Slice]:
        if not self._text:
            return [slice_of(self._empty)]
        whole, at = memoryview(self._empty), self._text_position
        return [slice_of(whole[:at]), slice_of(self._text), slice_of(whole[at:])]

    @cached_property
    def _empty(self) -> bytes:
        return encode(with_text(self._head, ""))

    @cached_property
    def _text_position(self) -> int:
        return _first_difference(self._empty, encode(with_text(self._head, "x")))


class _OpenMessage:
    def __init__(self, message: RawMessage) -> None:
        self.message = message
        self.open_parts: dict[int, _OpenPart] = {}

    def update(self, message: RawMessage) -> None:
        self.message = message
        self.open_parts = {i: part for i, part in self.open_parts.items() if i >= len(message.parts)}

    def snapshot(self) -> list[Slice]:
        parts = [[slice_of(memoryview(part))] for part in self.message.parts]
        for index, part in sorted(self.open_parts.items()):
            parts[index : index + 1] = [part.snapshot()]
        before, after = self._encode_around_parts()
        inner = [each for part in parts for each in (slice_of(b","), *part)][1:]  # no comma before the first
        return [slice_of(before), *inner, slice_of(after)]

    def _encode_around_parts(self) -> tuple[bytes, bytes]:
        empty, filled = (
            frame("message", "updated", encode(msgspec.structs.replace(self.message, parts=parts)))
            for parts in ([], [msgspec.Raw(b"0")])
        )
        at = _first_difference(empty, filled)
        return empty[:at], empty[at:]


class _PendingRequest(NamedTuple):
    session_id: str
    frame: bytes


class OpenItems:
    def __init__(self, pending: list[PermissionRequest | QuestionRequest]) -> None:
        self._messages: dict[str, _OpenMessage] = {}
        self._requests = {request.id: _encode_request(request) for request in pending}

    def apply(self, event: Committed) -> None:
        match event.payload:
            case MessageOf() as message if not event.is_open:
                self._messages.pop(message.id, None)
            case MessageOf() as message if known := self._messages.get(message.id):
                known.update(message)
            case MessageOf() as message:
                self._messages[message.id] = _OpenMessage(message)
            case PermissionRequest() | QuestionRequest() as request:
                self._requests[request.id] = _encode_request(request)
            case RequestResolution() as resolution:
                self._requests.pop(resolution.id, None)
            case _:
                pass

    def open_part(self, message_id: str, part: int, head: Part) -> None:
        """Start a part of a message; `head` is the part without its text."""
        self._messages[message_id].open_parts[part] = _OpenPart(head)

    def restore(self, message: RawMessage, only: Part) -> None:
        """Add a message that an earlier server left open, with the text of its only part so far."""
        part = _OpenPart(with_text(only, ""))
        part.append(text_in(only))
        self._messages[message.id] = known = _OpenMessage(message)
        known.open_parts[0] = part

    def append_text(self, delta: Delta) -> None:
        self._messages[delta.message_id].open_parts[delta.part].append(delta.text)

    def frames(self, session_id: str | None) -> list[Slice]:
        """Frames of pending requests, then of unfinished messages, as they are now."""
        requests = [slice_of(r.frame) for r in self._requests.values() if session_id in (None, r.session_id)]
        messages = [m.snapshot() for m in self._messages.values() if session_id in (None, m.message.session_id)]
        return requests + [each for slices in messages for each in slices]


def _encode_request(request: PermissionRequest | QuestionRequest) -> _PendingRequest:
    type = "permission_request" if isinstance(request, PermissionRequest) else "question_request"
    return _PendingRequest(request.session_id, frame(type, "created", encode(request)))


def _first_difference(empty: bytes, filled: bytes) -> int:
    """The position where an encoding of nothing and one of something begin to differ: content belongs there."""
    return next(i for i, (one, other) in enumerate(zip(empty, filled, strict=False)) if one != other)

"""What a late comer needs to know beside the log: messages still being written, requests still pending (P12, P14).

All of it is kept encoded, and shown as pieces that readers share: a reader that stalls in the middle of a long message
holds the place where it is, not the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from kedge.protocol.events import encode, frame
from kedge.protocol.messages import Delta, MessageOf, Part, RawMessage, with_text
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.store.port import Committed


class _OpenPart:
    def __init__(self, head: Part) -> None:
        self._head = head
        self._text = bytearray()  # escaped, as it stands in JSON; never cut, since readers refer to it

    def grow(self, text: str) -> None:
        self._text += encode(text)[1:-1]

    def pieces(self) -> list[Slice]:
        if not self._text:
            return [slice_of(self._empty)]
        whole, place = memoryview(self._empty), self._place
        return [slice_of(whole[:place]), slice_of(self._text), slice_of(whole[place:])]

    @cached_property
    def _empty(self) -> bytes:
        return encode(with_text(self._head, ""))

    @cached_property
    def _place(self) -> int:
        return _place_between(self._empty, encode(with_text(self._head, "x")))


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
            parts[index : index + 1] = [part.pieces()]
        before, after = self._around_parts()
        inner = [each for part in parts for each in (slice_of(b","), *part)][1:]  # no comma before the first
        return [slice_of(before), *inner, slice_of(after)]

    def _around_parts(self) -> tuple[bytes, bytes]:
        empty, other = (
            frame("message", "updated", encode(msgspec.structs.replace(self.message, parts=parts)))
            for parts in ([], [msgspec.Raw(b"0")])
        )
        place = _place_between(empty, other)
        return empty[:place], empty[place:]


class _Pending(NamedTuple):
    session_id: str
    frame: bytes


class OpenItems:
    def __init__(self, pending: list[PermissionRequest | QuestionRequest]) -> None:
        self._messages: dict[str, _OpenMessage] = {}
        self._requests = {request.id: _asked(request) for request in pending}

    def apply(self, event: Committed) -> None:
        match event.payload:
            case MessageOf() as message if not event.is_open:
                self._messages.pop(message.id, None)
            case MessageOf() as message if known := self._messages.get(message.id):
                known.update(message)
            case MessageOf() as message:
                self._messages[message.id] = _OpenMessage(message)
            case PermissionRequest() | QuestionRequest() as request:
                self._requests[request.id] = _asked(request)
            case RequestResolution() as resolution:
                self._requests.pop(resolution.id, None)
            case _:
                pass

    def open_part(self, message_id: str, part: int, head: Part) -> None:
        self._messages[message_id].open_parts[part] = _OpenPart(head)

    def append_text(self, delta: Delta) -> None:
        self._messages[delta.message_id].open_parts[delta.part].grow(delta.text)

    def frames(self, session_id: str | None) -> list[Slice]:
        """Pending requests, then snapshots of unfinished messages, as they are at this moment."""
        requests = [slice_of(r.frame) for r in self._requests.values() if session_id in (None, r.session_id)]
        messages = [m.snapshot() for m in self._messages.values() if session_id in (None, m.message.session_id)]
        return requests + [each for pieces in messages for each in pieces]


def _asked(request: PermissionRequest | QuestionRequest) -> _Pending:
    type = "permission_request" if isinstance(request, PermissionRequest) else "question_request"
    return _Pending(request.session_id, frame(type, "created", encode(request)))


def _place_between(empty: bytes, filled: bytes) -> int:
    """Where an encoding has room for more: up to there it is the same with nothing and with something in it."""
    return next(i for i, (one, other) in enumerate(zip(empty, filled, strict=False)) if one != other)


class Slice(NamedTuple):
    data: bytes | bytearray | memoryview
    size: int


def slice_of(data: bytes | bytearray | memoryview) -> Slice:
    """All of it as it is now, whatever comes after it later."""
    return Slice(data, len(data))


def split_chunks(pieces: Sequence[Slice], max_bytes: int) -> Iterator[bytes]:
    """One after the other, cut anywhere. Each chunk is made when it is asked for."""
    cut: list[bytes | bytearray | memoryview] = []
    room = max_bytes
    for data, size in pieces:
        start = 0
        while start < size:
            end = min(size, start + room)
            cut.append(data[start:end])
            room -= end - start
            start = end
            if room == 0:
                chunk = b"".join(cut)
                cut.clear()  # a reader may stay here for long
                room = max_bytes
                yield chunk
    if cut:
        yield b"".join(cut)

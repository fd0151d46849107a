"""What a late comer needs to know beside the log: messages still being written, requests still pending (P12, P14)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kedge.protocol.events import encode, frame
from kedge.protocol.messages import Delta, MessageOf, Part, RawMessage, with_text
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.store.port import Committed


class _OpenPart(NamedTuple):
    head: Part
    pieces: list[str]


class _OpenMessage:
    def __init__(self, message: RawMessage) -> None:
        self.message = message
        self.open_parts: dict[int, _OpenPart] = {}

    def grown(self, message: RawMessage) -> None:
        self.message = message
        self.open_parts = {i: part for i, part in self.open_parts.items() if i >= len(message.parts)}

    def snapshot(self) -> bytes:
        parts = list(self.message.parts)
        for index, part in sorted(self.open_parts.items()):
            parts[index : index + 1] = [msgspec.Raw(encode(with_text(part.head, "".join(part.pieces))))]
        return frame("message", "updated", encode(msgspec.structs.replace(self.message, parts=parts)))


class Live:
    def __init__(self, pending: list[PermissionRequest | QuestionRequest]) -> None:
        self._messages: dict[str, _OpenMessage] = {}
        self._requests = {request.id: request for request in pending}

    def committed(self, event: Committed) -> None:
        match event.payload:
            case MessageOf() as message if not event.is_open:
                self._messages.pop(message.id, None)
            case MessageOf() as message if known := self._messages.get(message.id):
                known.grown(message)
            case MessageOf() as message:
                self._messages[message.id] = _OpenMessage(message)
            case PermissionRequest() | QuestionRequest() as request:
                self._requests[request.id] = request
            case RequestResolution() as resolution:
                self._requests.pop(resolution.id, None)
            case _:
                pass

    def opened(self, message_id: str, part: int, head: Part) -> None:
        self._messages[message_id].open_parts[part] = _OpenPart(head, [])

    def grown(self, delta: Delta) -> None:
        self._messages[delta.message_id].open_parts[delta.part].pieces.append(delta.text)

    def frames(self, session_id: str | None) -> bytes:
        """Pending requests, then snapshots of unfinished messages, as they are at this moment."""
        requests = [
            frame(
                "permission_request" if isinstance(r, PermissionRequest) else "question_request", "created", encode(r)
            )
            for r in self._requests.values()
            if session_id in (None, r.session_id)
        ]
        messages = [m.snapshot() for m in self._messages.values() if session_id in (None, m.message.session_id)]
        return b"".join([*requests, *messages])

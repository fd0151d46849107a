"""The events of the log and the frames of a stream (section 4 of the contract).

A frame is built from bytes that were encoded once: `frame()` puts the envelope around an encoded payload, the same way
whether the event comes from a commit or from the log, so that replay is byte for byte what was live.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from kedge.protocol.messages import Delta, Message, whole_characters
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.protocol.runs import Run, RunEnd
from kedge.protocol.sessions import Session

Change = Literal["created", "updated", "deleted"]
LogType = Literal[
    "session",
    "run",
    "message",
    "run_complete",
    "agent_event",
    "permission_request",
    "permission_notification",
    "question_request",
    "question_notification",
    "file",
    "config_changed",
]
LiveType = Literal["message_delta", "mcp_event", "lsp_event", "skills_event"]
ControlType = Literal["connected", "caught_up", "heartbeat", "stream_reset"]
EventType = LogType | LiveType | ControlType
ResetReason = Literal["retention", "ahead", "other_log"]
AgentEventType = Literal["error", "retry", "summarize", "re_authenticate", "notice"]


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: AgentEventType
    run_id: str
    session_id: str
    error: str | None = None
    code: str | None = None
    provider_id: str | None = None
    message: str | None = None
    details: dict[str, Any] | None = None


class FileChange(msgspec.Struct, frozen=True):
    session_id: str
    run_id: str
    path: str
    version: int
    added: int
    removed: int


class ConfigChanged(msgspec.Struct, frozen=True):
    workspace_id: str


class ExtensionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of `mcp_event`, `lsp_event` and `skills_event`: the state of one named server or skill."""

    name: str
    state: str
    error: str | None = None


class Connected(msgspec.Struct, frozen=True):
    log_id: str
    head: int
    after: int


class CaughtUp(msgspec.Struct, frozen=True):
    seq: int


class Heartbeat(msgspec.Struct, frozen=True):
    head: int


class StreamReset(msgspec.Struct, frozen=True):
    reason: ResetReason
    head: int


Control = Connected | CaughtUp | Heartbeat | StreamReset
Payload = (
    Session
    | Run
    | Message
    | RunEnd
    | AgentEvent
    | PermissionRequest
    | QuestionRequest
    | RequestResolution
    | FileChange
    | ConfigChanged
    | Delta
    | ExtensionState
)

CONTROL_TYPES: dict[str, type[Control]] = {
    "connected": Connected,
    "caught_up": CaughtUp,
    "heartbeat": Heartbeat,
    "stream_reset": StreamReset,
}
PAYLOAD_TYPES: dict[str, Any] = {
    "session": Session,
    "run": Run,
    "message": Message,
    "run_complete": RunEnd,
    "agent_event": AgentEvent,
    "permission_request": PermissionRequest,
    "permission_notification": RequestResolution,
    "question_request": QuestionRequest,
    "question_notification": RequestResolution,
    "file": FileChange,
    "config_changed": ConfigChanged,
    "message_delta": Delta,
    "mcp_event": ExtensionState,
    "lsp_event": ExtensionState,
    "skills_event": ExtensionState,
}


class Event(msgspec.Struct, frozen=True):
    """One event, decoded. `seq` is None for what is not in the log; `change` is None for control frames."""

    type: str
    seq: int | None
    change: Change | None
    payload: Payload | Control


class _Body(msgspec.Struct, frozen=True):
    type: Change
    payload: msgspec.Raw


class Envelope(msgspec.Struct, frozen=True):
    """One event with its payload still encoded; `typed_event` decodes it."""

    type: str
    payload: msgspec.Raw
    seq: int | None = None


_encode = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """JSON. Half a surrogate pair, as in a file name that is not UTF-8, becomes U+FFFD: it could be sent to nobody."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_mended(msgspec.to_builtins(value)))


def _mended(value: Any) -> Any:
    match value:
        case str():
            return whole_characters(value)
        case list():
            return [_mended(each) for each in cast("list[Any]", value)]
        case dict():
            return {_mended(key): _mended(each) for key, each in cast("dict[Any, Any]", value).items()}
        case _:
            return value


def envelope(type: str, change: Change, body: bytes, seq: int | None = None) -> bytes:
    place = b"" if seq is None else b'"seq":%d,' % seq
    return b'{"type":"%b",%b"payload":{"type":"%b","payload":%b}}' % (type.encode(), place, change.encode(), body)


def frame(type: str, change: Change, body: bytes, seq: int | None = None) -> bytes:
    """One SSE frame around an encoded payload; only events of the log have an `id`."""
    head = b"" if seq is None else b"id: %d\n" % seq
    return b"%bdata: %b\n\n" % (head, envelope(type, change, body, seq))


def control_frame(type: ControlType, payload: Control) -> bytes:
    return b'data: {"type":"%b","payload":%b}\n\n' % (type.encode(), encode(payload))


decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_body = msgspec.json.Decoder(_Body).decode


def decode_event(data: bytes) -> Event:
    """The typed event of one envelope (the `data:` of a frame)."""
    return typed_event(decode_envelope(data))


def typed_event(envelope: Envelope) -> Event:
    """Raises `msgspec.ValidationError` for a payload and KeyError for a type that this version does not know."""
    if control := CONTROL_TYPES.get(envelope.type):
        return Event(envelope.type, None, None, msgspec.json.decode(envelope.payload, type=control))
    body = _decode_body(envelope.payload)
    payload = msgspec.json.decode(body.payload, type=PAYLOAD_TYPES[envelope.type])
    return Event(envelope.type, envelope.seq, body.type, payload)

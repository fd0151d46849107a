"""Events of the log and frames of the stream (section 4 of the contract).

`frame()` wraps a payload that was encoded once, the same way for a new event and for one from the log, so that a replay
has the same bytes as the live stream.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from kedge.protocol.lsp import LspEvent
from kedge.protocol.mcp import McpEvent
from kedge.protocol.messages import Delta, Message, replace_surrogates
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
AgentEventType = Literal["error", "retry", "summarize", "re_authenticate", "notice", "fallback"]


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


class SkillsChanged(msgspec.Struct, frozen=True):
    """The payload of `skills_event`: skills, commands or agents of the workspace changed on disk."""

    workspace_id: str


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
    | McpEvent
    | SkillsChanged
    | LspEvent
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
    "mcp_event": McpEvent,
    "lsp_event": LspEvent,
    "skills_event": SkillsChanged,
}


class Event(msgspec.Struct, frozen=True):
    """A decoded event. `seq` is None if it is not in the log; `change` is None for control frames."""

    type: str
    seq: int | None
    change: Change | None
    payload: Payload | Control


class _Body(msgspec.Struct, frozen=True):
    type: Change
    payload: msgspec.Raw


class Envelope(msgspec.Struct, frozen=True):
    """An event with an encoded payload; `to_event` decodes it."""

    type: str
    payload: msgspec.Raw
    seq: int | None = None


_encode = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """Encode as JSON. Half a surrogate pair, as in a file name that is not UTF-8, becomes U+FFFD."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_replace_all_surrogates(msgspec.to_builtins(value)))


def _replace_all_surrogates(value: Any) -> Any:
    match value:
        case str():
            return replace_surrogates(value)
        case list():
            return [_replace_all_surrogates(each) for each in cast("list[Any]", value)]
        case dict():
            return {
                _replace_all_surrogates(key): _replace_all_surrogates(each)
                for key, each in cast("dict[Any, Any]", value).items()
            }
        case _:
            return value


def envelope(type: str, change: Change, body: bytes, seq: int | None = None) -> bytes:
    seq_field = b"" if seq is None else b'"seq":%d,' % seq
    return b'{"type":"%b",%b"payload":{"type":"%b","payload":%b}}' % (type.encode(), seq_field, change.encode(), body)


def frame(type: str, change: Change, body: bytes, seq: int | None = None) -> bytes:
    """An SSE frame around an encoded payload; only events of the log have an `id`."""
    head = b"" if seq is None else b"id: %d\n" % seq
    return b"%bdata: %b\n\n" % (head, envelope(type, change, body, seq))


def control_frame(type: ControlType, payload: Control) -> bytes:
    return b'data: {"type":"%b","payload":%b}\n\n' % (type.encode(), encode(payload))


decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_body = msgspec.json.Decoder(_Body).decode


def decode_event(data: bytes) -> Event:
    """Decode an envelope (the `data:` of a frame) into an event."""
    return to_event(decode_envelope(data))


def to_event(envelope: Envelope) -> Event:
    """Decode the payload. Raises msgspec.ValidationError or, for an unknown type, KeyError."""
    if control := CONTROL_TYPES.get(envelope.type):
        return Event(envelope.type, None, None, msgspec.json.decode(envelope.payload, type=control))
    body = _decode_body(envelope.payload)
    payload = msgspec.json.decode(body.payload, type=PAYLOAD_TYPES[envelope.type])
    return Event(envelope.type, envelope.seq, body.type, payload)

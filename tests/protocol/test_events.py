"""Frames, byte for byte as section 4 of the contract draws them."""

from typing import get_args

import msgspec
import pytest

from kedge.protocol.events import (
    CONTROL_TYPES,
    PAYLOAD_TYPES,
    AgentEvent,
    CaughtUp,
    Change,
    Connected,
    Control,
    ControlType,
    Event,
    EventType,
    Heartbeat,
    LiveType,
    LogType,
    Payload,
    StreamReset,
    control_frame,
    decode_event,
    encode,
    envelope,
    frame,
)
from kedge.protocol.messages import Delta, Message, Text
from kedge.protocol.requests import RequestResolution
from tests.protocol.examples import EXAMPLES, RUN, RUN_JSON, SESSION, SESSION_JSON

MESSAGE = Message(id="m1", session_id="s1", run_id="r1", role="user", parts=[Text("zwei\nZeilen")], created_at=1.0)
RESOLUTION = RequestResolution(id="q", session_id="s1", run_id="r1", tool_call_id="c", action="allow", by="tui")

FRAMES: list[tuple[str, Change, Payload, int | None, str]] = [
    (
        "session",
        "created",
        SESSION,
        1,
        f'id: 1\ndata: {{"type":"session","seq":1,"payload":{{"type":"created","payload":{SESSION_JSON}}}}}\n\n',
    ),
    (
        "run",
        "updated",
        RUN,
        12,
        f'id: 12\ndata: {{"type":"run","seq":12,"payload":{{"type":"updated","payload":{RUN_JSON}}}}}\n\n',
    ),
    (
        "message",
        "created",
        MESSAGE,
        13,
        (
            'id: 13\ndata: {"type":"message","seq":13,"payload":{"type":"created","payload":{"id":"m1",'
            '"session_id":"s1",'
            '"run_id":"r1","role":"user","parts":[{"type":"text","text":"zwei\\nZeilen"}],"created_at":1.0}}}\n\n'
        ),
    ),
    (
        "message",  # the snapshot of an unfinished message: no place in the log
        "updated",
        MESSAGE,
        None,
        (
            'data: {"type":"message","payload":{"type":"updated","payload":{"id":"m1","session_id":"s1",'
            '"run_id":"r1","role":"user","parts":[{"type":"text","text":"zwei\\nZeilen"}],"created_at":1.0}}}\n\n'
        ),
    ),
    (
        "message_delta",
        "created",
        Delta("m1", "s1", "r1", 0, "reasoning", 5, "hé"),
        None,
        (
            'data: {"type":"message_delta","payload":{"type":"created","payload":{"message_id":"m1","session_id":"s1",'
            '"run_id":"r1","part":0,"kind":"reasoning","offset":5,"text":"hé"}}}\n\n'
        ),
    ),
    (
        "agent_event",
        "created",
        AgentEvent(type="retry", run_id="r1", session_id="s1", error="429"),
        14,
        (
            'id: 14\ndata: {"type":"agent_event","seq":14,"payload":{"type":"created","payload":{"type":"retry",'
            '"run_id":"r1","session_id":"s1","error":"429"}}}\n\n'
        ),
    ),
    (
        "permission_notification",
        "created",
        RESOLUTION,
        15,
        (
            'id: 15\ndata: {"type":"permission_notification","seq":15,"payload":{"type":"created","payload":{"id":"q",'
            '"session_id":"s1","run_id":"r1","tool_call_id":"c","action":"allow","by":"tui"}}}\n\n'
        ),
    ),
]
CONTROLS: list[tuple[ControlType, Control, str]] = [
    (
        "connected",
        Connected("log1", 9, 4),
        'data: {"type":"connected","payload":{"log_id":"log1","head":9,"after":4}}\n\n',
    ),
    ("caught_up", CaughtUp(9), 'data: {"type":"caught_up","payload":{"seq":9}}\n\n'),
    ("heartbeat", Heartbeat(9), 'data: {"type":"heartbeat","payload":{"head":9}}\n\n'),
    (
        "stream_reset",
        StreamReset("other_log", 9),
        'data: {"type":"stream_reset","payload":{"reason":"other_log","head":9}}\n\n',
    ),
]


def data_of(raw: bytes) -> bytes:
    return raw.rstrip(b"\n").split(b"\n")[-1].removeprefix(b"data: ")


@pytest.mark.parametrize(("type", "change", "payload", "seq", "literal"), FRAMES)
def test_an_event_is_this_frame(type: str, change: Change, payload: Payload, seq: int | None, literal: str) -> None:
    assert frame(type, change, encode(payload), seq).decode() == literal


@pytest.mark.parametrize(("type", "change", "payload", "seq", "literal"), FRAMES)
def test_this_frame_is_that_event(type: str, change: Change, payload: Payload, seq: int | None, literal: str) -> None:
    assert decode_event(data_of(literal.encode())) == Event(type, seq, change, payload)


@pytest.mark.parametrize(("type", "payload", "literal"), CONTROLS)
def test_a_control_frame_has_no_place_and_no_change(type: ControlType, payload: Control, literal: str) -> None:
    assert control_frame(type, payload).decode() == literal
    assert decode_event(data_of(literal.encode())) == Event(type, None, None, payload)


def test_every_type_of_event_can_be_read() -> None:
    examples = {type(value): value for value, _ in EXAMPLES}
    for name, payload_type in PAYLOAD_TYPES.items():
        payload = MESSAGE if payload_type is Message else examples[payload_type]
        event = decode_event(envelope(name, "deleted", encode(payload), 7))
        assert (event.type, event.seq, event.change, event.payload) == (name, 7, "deleted", payload)


def test_the_tables_of_types_are_complete() -> None:
    assert set(PAYLOAD_TYPES) == {*get_args(LogType), *get_args(LiveType)}
    assert set(CONTROL_TYPES) == set(get_args(ControlType))
    assert {*PAYLOAD_TYPES, *CONTROL_TYPES} == {name for kind in get_args(EventType) for name in get_args(kind)}


def test_a_frame_is_one_line_of_data_whatever_the_text() -> None:
    """A line break of any kind inside would end the frame for an SSE parser."""
    text = "\n\r\n\r\u2028\u2029\x85\x00 data: id: \n\n"
    raw = frame("message_delta", "created", encode(Delta("m", "s", "r", 0, "text", 0, text)))
    assert raw.count(b"\n") == 2
    assert raw.endswith(b"\n\n")
    assert b"\r" not in raw
    payload = decode_event(data_of(raw)).payload
    assert isinstance(payload, Delta)
    assert payload.text == text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"type":"caught_up"}',
        b'{"type":"caught_up","payload":{}}',
        b'{"type":"run","seq":1,"payload":{"type":"created","payload":{}}}',
        b'{"type":"run","seq":1,"payload":{"type":"exploded","payload":%b}}' % RUN_JSON.encode(),
        b'{"type":"stream_reset","payload":{"reason":"a whim","head":1}}',
    ],
)
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_event(data)

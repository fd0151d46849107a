"""The cursor: what is new, what was told already, what is missing (P9, P10)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kedge.client.errors import Dropped
from kedge.client.events import EventCursor
from kedge.http.http1 import build_query, escape
from tests.client.timeline import LOG, control, data


def event(seq: int, type: str = "session") -> bytes:
    return data({"type": type, "seq": seq, "payload": {"type": "created", "payload": {}}})


def connected(after: int, head: int = 10, log_id: str = LOG) -> bytes:
    return control("connected", {"log_id": log_id, "head": head, "after": after})


def heard(cursor: EventCursor, *frames: bytes) -> list[Any]:
    return [event.get("seq", event["type"]) for _, event, _ in cursor.feed(b"".join(frames))]


def test_without_a_cursor_the_story_begins_at_the_head() -> None:
    cursor = EventCursor()
    assert cursor.begin_connection() == ""
    assert heard(cursor, connected(after=4)) == ["connected"]
    assert (cursor.seq, cursor.log_id) == (4, LOG)
    assert cursor.begin_connection() == f"?after=4&log_id={LOG}"


def test_events_move_the_cursor_and_are_told_once() -> None:
    cursor = EventCursor(after=0)
    assert heard(cursor, connected(0), event(1), event(2), event(2), event(1), event(3)) == ["connected", 1, 2, 3]
    cursor.begin_connection()
    assert heard(cursor, connected(3), event(2), event(3), event(4)) == ["connected", 4]


def test_a_gap_is_a_drop_and_what_came_before_it_is_told() -> None:
    cursor = EventCursor(after=0)
    frames = cursor.feed(connected(0) + event(1) + event(3))
    assert [next(frames)[0], next(frames)[1]["seq"]] == ["connected", 1]
    with pytest.raises(Dropped, match="gap"):
        next(frames)
    assert cursor.seq == 1


@pytest.mark.parametrize(("type", "field"), [("caught_up", "seq"), ("heartbeat", "head")])
def test_a_server_that_says_it_told_more_than_we_heard_left_a_gap(type: str, field: str) -> None:
    cursor = EventCursor(after=2)
    assert heard(cursor, connected(2), control(type, {field: 2})) == ["connected", type]
    with pytest.raises(Dropped, match="gap"):
        heard(cursor, control(type, {field: 3}))
    assert cursor.seq == 2


@pytest.mark.parametrize(("type", "field"), [("caught_up", "seq"), ("heartbeat", "head")])
def test_on_a_filtered_stream_the_server_says_how_far_we_are(type: str, field: str) -> None:
    cursor = EventCursor(after=2, session_id="s")
    assert heard(cursor, connected(2), event(4), event(9), control(type, {field: 12})) == ["connected", 4, 9, type]
    assert cursor.seq == 12
    assert heard(cursor, control(type, {field: 11})) == [type]
    assert cursor.seq == 12


def test_live_events_do_not_move_the_cursor() -> None:
    cursor = EventCursor(after=2)
    delta = data({"type": "message_delta", "payload": {"type": "created", "payload": {}}})
    assert heard(cursor, connected(2), delta, delta) == ["connected", "message_delta", "message_delta"]
    assert cursor.seq == 2


def test_a_reset_moves_the_cursor_to_the_new_head_and_log() -> None:
    cursor = EventCursor(after=900, log_id="old")
    cursor.begin_connection()
    reset = control("stream_reset", {"reason": "other_log", "head": 5})
    assert heard(cursor, connected(900, head=5, log_id="new"), reset, event(6)) == ["connected", "stream_reset", 6]
    assert cursor.begin_connection() == "?after=6&log_id=new"


def test_a_rewound_story_is_heard_again_from_there() -> None:
    cursor = EventCursor()
    heard(cursor, connected(after=9))
    cursor.rewind(3)
    assert cursor.is_rewound
    assert cursor.begin_connection() == f"?after=3&log_id={LOG}"
    assert not cursor.is_rewound
    assert heard(cursor, connected(3), event(4)) == ["connected", 4]


def test_half_a_frame_of_a_dropped_connection_is_forgotten() -> None:
    cursor = EventCursor(after=0)
    heard(cursor, connected(0), event(1), event(2)[:-10])
    cursor.begin_connection()
    assert heard(cursor, connected(1), event(2)) == ["connected", 2]


@pytest.mark.parametrize(
    "frame",
    [b"data: {\n\n", b"data: 1\n\n", b"data: {}\n\n", b'data: {"type": "run", "payload": 1}\n\n', b"data: \xff\n\n"],
)
def test_a_damaged_frame_is_a_drop(frame: bytes) -> None:
    with pytest.raises(Dropped, match="damaged"):
        heard(EventCursor(after=0), frame)


def test_the_bytes_of_an_event_come_with_it() -> None:
    (_, _, raw), *_ = EventCursor(after=0).feed(event(1))
    assert json.loads(raw)["seq"] == 1


def test_a_query_leaves_out_what_is_not_given_and_escapes_the_rest() -> None:
    assert build_query(after=0, q="a b&c=ä/\u2028", limit=None) == "?after=0&q=a%20b%26c%3D%C3%A4%2F%E2%80%A8"
    assert build_query(a=None) == ""
    assert escape("../a?b#c%") == "..%2Fa%3Fb%23c%25"

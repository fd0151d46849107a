"""What a late comer is told beside the log: open messages as far as they are, and pending requests."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.feed.open_items import OpenItems, split_chunks
from kedge.protocol.events import Event, encode, frame
from kedge.protocol.messages import (
    Delta,
    Finish,
    Image,
    MessageOf,
    Part,
    RawMessage,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    with_text,
)
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.store.port import Committed
from tests.support.reader import split_frames


def committed(
    payload: RawMessage | PermissionRequest | QuestionRequest | RequestResolution, is_open: bool
) -> Committed:
    return Committed("w", 1, "", "updated", payload.session_id, b"", payload, is_open)


def message(*parts: Part, id: str = "m1", session_id: str = "s1") -> RawMessage:
    raw = [msgspec.Raw(encode(part)) for part in parts]
    return RawMessage(id=id, session_id=session_id, run_id="r", role="assistant", parts=raw, created_at=1.0)


def delta(text: str, part: int = 0, id: str = "m1") -> Delta:
    return Delta(id, "s1", "r", part, "text", 0, text)


def bytes_of(live: OpenItems, session_id: str | None = None) -> bytes:
    return b"".join(split_chunks(live.frames(session_id), 1 << 20))


def shown(live: OpenItems, session_id: str | None = None) -> list[Event]:
    frames = bytes_of(live, session_id)
    return [frame.event for frame in split_frames(frames)] if frames else []


def shown_parts(live: OpenItems) -> list[list[Part]]:
    return [event.payload.parts for event in shown(live) if isinstance(event.payload, MessageOf)]


def permission(id: str, session_id: str = "s1") -> PermissionRequest:
    return PermissionRequest(
        id=id, session_id=session_id, run_id="r", tool_call_id="c", tool="t", action="a", description="d", params={}
    )


def question(id: str) -> QuestionRequest:
    return QuestionRequest(id=id, session_id="s1", run_id="r", tool_call_id="c", questions=[{"question": "why?"}])


def resolution(id: str) -> RequestResolution:
    return RequestResolution(id=id, session_id="s1", run_id="r", tool_call_id="c", action="allow", by="tui")


def test_nothing_is_open_at_first() -> None:
    assert OpenItems([]).frames(None) == []


def test_a_message_is_shown_as_far_as_it_was_streamed() -> None:
    live = OpenItems([])
    live.apply(committed(message(), is_open=True))
    live.open_part("m1", 0, Text(""))
    assert shown_parts(live) == [[Text("")]]
    live.append_text(delta("Hel"))
    live.append_text(delta("lo"))
    assert shown_parts(live) == [[Text("Hello")]]
    (event,) = shown(live)
    assert (event.type, event.seq, event.change) == ("message", None, "updated"), "a snapshot has no place in the log"


def test_finished_parts_come_from_the_commit_and_open_ones_from_the_deltas() -> None:
    live = OpenItems([])
    live.apply(committed(message(), is_open=True))
    live.open_part("m1", 0, Reasoning(""))
    live.append_text(delta("hm", 0))
    live.open_part("m1", 1, ToolCall("c", "grep", "", False))
    live.append_text(delta('{"a', 1))
    assert shown_parts(live) == [[Reasoning("hm"), ToolCall("c", "grep", '{"a', False)]]
    live.apply(committed(message(Reasoning("hm", "signed")), is_open=True))
    live.append_text(delta('":1}', 1))
    assert shown_parts(live) == [[Reasoning("hm", "signed"), ToolCall("c", "grep", '{"a":1}', False)]]


def test_the_output_of_a_tool_takes_the_place_of_its_empty_result() -> None:
    live = OpenItems([])
    live.apply(committed(message(ToolResult("c", "make", "", False)), is_open=True))
    live.open_part("m1", 0, ToolResult("c", "make", "", False))
    live.append_text(delta("compiling"))
    assert shown_parts(live) == [[ToolResult("c", "make", "compiling", False)]]


def test_a_finished_message_is_not_shown_any_more() -> None:
    live = OpenItems([])
    live.apply(committed(message(), is_open=True))
    live.open_part("m1", 0, Text(""))
    live.apply(committed(message(Text("x"), Finish("end_turn")), is_open=False))
    assert shown(live) == []


def test_a_message_that_was_never_open_is_not_shown() -> None:
    live = OpenItems([])
    live.apply(committed(message(Text("a prompt")), is_open=False))
    assert shown(live) == []


def test_requests_are_shown_until_they_are_resolved() -> None:
    live = OpenItems([permission("old")])
    live.apply(committed(permission("p1"), is_open=True))
    live.apply(committed(question("q1"), is_open=True))
    told = [(event.type, event.change) for event in shown(live)]
    assert told == [
        ("permission_request", "created"),
        ("permission_request", "created"),
        ("question_request", "created"),
    ]
    live.apply(committed(resolution("old"), is_open=False))
    live.apply(committed(resolution("q1"), is_open=False))
    live.apply(committed(resolution("q1"), is_open=False))
    assert [event.payload for event in shown(live)] == [permission("p1")]


def test_requests_come_before_messages() -> None:
    live = OpenItems([])
    live.apply(committed(message(), is_open=True))
    live.apply(committed(permission("p1"), is_open=True))
    assert [event.type for event in shown(live)] == ["permission_request", "message"]


def test_a_reader_of_one_session_is_told_of_that_session_alone() -> None:
    live = OpenItems([permission("p1", "s1"), permission("p2", "s2")])
    live.apply(committed(message(id="m1", session_id="s1"), is_open=True))
    live.apply(committed(message(id="m2", session_id="s2"), is_open=True))
    told = [event.payload for event in shown(live, "s2")]
    assert [getattr(payload, "id", "") for payload in told] == ["p2", "m2"]
    assert shown(live, "s3") == []


def test_what_else_is_committed_changes_nothing() -> None:
    live = OpenItems([])
    live.apply(Committed("w", 1, "session", "created", "s1", b""))
    assert shown(live) == []


# Texts in these heads look like the place where the streamed text goes.
HEADS = st.sampled_from(
    [
        Text(""),
        Reasoning(""),
        Reasoning("", 'signed "text":""'),
        ToolCall('"input":""', "", "", False),
        ToolResult('"content":""', '\\"content', "", False, {"content": "", '"content': ""}),
        Image("image/png", b"whole"),
    ]
)


@given(
    finished=st.lists(HEADS, max_size=3),
    open_heads=st.lists(st.tuples(HEADS, st.lists(st.text())), max_size=3),
    model=st.sampled_from([None, '"parts":[]', "m"]),
    max_bytes=st.integers(1, 200),
)
def test_a_snapshot_has_the_bytes_of_the_whole_message(
    finished: list[Part], open_heads: list[tuple[Part, list[str]]], model: str | None, max_bytes: int
) -> None:
    live = OpenItems([])
    begun = msgspec.structs.replace(message(*finished, id='"parts":[]'), model=model)
    live.apply(committed(begun, is_open=True))
    whole: list[Part] = list(finished)
    for index, (head, texts) in enumerate(open_heads, len(finished)):
        live.open_part(begun.id, index, head)
        pieces = [text for text in texts if not isinstance(head, Image)]
        for text in pieces:
            live.append_text(delta(text, index, begun.id))
        whole.append(with_text(head, "".join(pieces)))
    expected = frame("message", "updated", encode(msgspec.structs.replace(message(*whole, id=begun.id), model=model)))
    chunks = list(split_chunks(live.frames(None), max_bytes))
    assert b"".join(chunks) == expected
    assert {len(chunk) for chunk in chunks[:-1]} <= {max_bytes}
    assert 0 < len(chunks[-1]) <= max_bytes


@pytest.mark.parametrize("ends", [False, True])
def test_a_snapshot_stays_that_of_its_moment(ends: bool) -> None:
    live = OpenItems([])
    live.apply(committed(message(), is_open=True))
    live.open_part("m1", 0, Text(""))
    live.append_text(delta("now"))
    expected = bytes_of(live)
    sending = split_chunks(live.frames(None), 1)
    sent = next(sending)
    live.append_text(delta(" and later"))
    if ends:
        live.apply(committed(message(Text("now and later"), Finish("end_turn")), is_open=False))
    assert sent + b"".join(sending) == expected

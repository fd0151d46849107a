"""The wire of OpenAI's Responses from the provider, without a network: what its events mean, and what wrong ones do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.models.errors import ModelError, ReasoningRejected, Refused, Transient
from kedge.models.values import (
    BlockEnd,
    Delta,
    Endpoint,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from kedge.models.wires.decoding import SseEvent
from kedge.models.wires.responses import Mark, ResponsesStream
from kedge.protocol.messages import FinishReason, Message, ToolCall

ENDPOINT = Endpoint(provider="openai", model="gpt-5", base_url="https://models.test/v1", wire="responses")
EMPTY = StepRequest(system="", history=[])


def event(name: str, /, **fields: Any) -> SseEvent:
    return SseEvent(json.dumps({"type": name, **fields}).encode(), name)


def added(at: int, **item: Any) -> SseEvent:
    return event("response.output_item.added", output_index=at, item=item)


def done(at: int, **item: Any) -> SseEvent:
    return event("response.output_item.done", output_index=at, item=item)


def piece(kind: str, at: int, delta: Any, **fields: Any) -> SseEvent:
    return event(f"response.{kind}.delta", output_index=at, delta=delta, **fields)


def call(at: int, name: str = "view", arguments: str = "") -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{at}", "call_id": f"call_{at}", "name": name, "arguments": arguments}


def ended(kind: str = "completed", **response: Any) -> SseEvent:
    return event(f"response.{kind}", response={"id": "resp_1", "status": kind, "output": [], **response})


def read(*events: SseEvent, request: StepRequest = EMPTY) -> list[Delta]:
    stream = ResponsesStream(ENDPOINT, request)
    return [delta for each in events for delta in stream.parse_event(each)]


def test_items_become_deltas_of_their_own() -> None:
    summary = [{"type": "summary_text", "text": "hm"}, {"type": "summary_text", "text": "so"}]
    assert read(
        event("response.created", response={"status": "in_progress"}),
        added(0, type="reasoning", id="rs_1", summary=[], encrypted_content="half"),
        piece("reasoning_summary_text", 0, "hm", summary_index=0),
        piece("reasoning_summary_text", 0, "so", summary_index=1),
        done(0, type="reasoning", id="rs_1", summary=summary, encrypted_content="whole"),
        added(1, type="message", id="msg_1", role="assistant", content=[], phase="commentary"),
        piece("output_text", 1, "hi ", content_index=0),
        piece("output_text", 1, "there", content_index=0),
        done(1, type="message", id="msg_1", content=[{"type": "output_text", "text": "hi there"}], phase="commentary"),
        ended(),
    ) == [
        ReasoningDelta("hm", "0.s0"),
        ReasoningDelta("so", "0.s1"),
        ReasoningDelta("", "0.s0", Mark(id="rs_1").signature),
        ReasoningDelta("", "0.s1", Mark(id="rs_1", encrypted_content="whole").signature),
        BlockEnd("0.s0"),
        BlockEnd("0.s1"),
        ReasoningDelta("", "1.phase", Mark(phase="commentary").signature),
        BlockEnd("1.phase"),
        TextDelta("hi ", "1.c0"),
        TextDelta("there", "1.c0"),
        BlockEnd("1.c0"),
        StepEnd("end_turn"),
        StreamEnd(),
    ]


def test_calls_come_side_by_side() -> None:
    assert read(
        added(0, **call(0)),
        added(1, **call(1, "bash")),
        piece("function_call_arguments", 0, '{"path"'),
        piece("function_call_arguments", 1, '{"command"'),
        piece("function_call_arguments", 0, ': "a"}'),
        piece("function_call_arguments", 1, ': "ls"}'),
        event("response.function_call_arguments.done", output_index=0, arguments='{"path": "a"}'),
        done(1, **call(1, "bash", '{"command": "ls"}')),
        done(0, **call(0, "view", '{"path": "a"}')),
        ended(),
    ) == [
        ToolCallDelta("0", "call_0", "view"),
        ToolCallDelta("1", "call_1", "bash"),
        ToolCallDelta("0", input='{"path"'),
        ToolCallDelta("1", input='{"command"'),
        ToolCallDelta("0", input=': "a"}'),
        ToolCallDelta("1", input=': "ls"}'),
        BlockEnd("1"),
        BlockEnd("0"),
        StepEnd("tool_use"),
        StreamEnd(),
    ]


def test_a_refusal_is_what_the_model_says() -> None:
    refusal = [{"type": "refusal", "refusal": "I cannot."}]
    assert read(
        added(0, type="message", id="msg_1", content=[]),
        piece("refusal", 0, "I cannot.", content_index=0),
        done(0, type="message", id="msg_1", content=refusal),
    ) == [TextDelta("I cannot.", "0.c0"), BlockEnd("0.c0")]


ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
    {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "hi"}, {"type": "refusal"}]},
    call(2, "view", '{"path": "a"}'),
]
WHOLE: list[Delta] = [
    ReasoningDelta("hm", "0.s0"),
    ReasoningDelta("", "0.s0", Mark(id="rs_1", encrypted_content="x").signature),
    BlockEnd("0.s0"),
    TextDelta("hi", "1.c0"),
    BlockEnd("1.c0"),
    ToolCallDelta("2", "call_2", "view"),
    ToolCallDelta("2", input='{"path": "a"}'),
    BlockEnd("2"),
    StepEnd("tool_use"),
    StreamEnd(),
]


def test_what_came_whole_is_taken_whole() -> None:
    assert read(*(done(i, **item) for i, item in enumerate(ITEMS)), ended(output=ITEMS)) == WHOLE
    assert read(ended(output=ITEMS)) == WHOLE, "also at the end only"


def test_thoughts_that_are_shown_go_back_in_their_own_field() -> None:
    shown = {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert read(piece("reasoning_text", 0, "hm", content_index=0), done(0, **shown, summary=[])) == [
        ReasoningDelta("hm", "0.t0"),
        ReasoningDelta("", "0.t0", Mark(id="rs_1", is_raw=True).signature),
        BlockEnd("0.t0"),
    ]


def test_a_call_without_input_is_whole() -> None:
    assert read(added(0, **call(0)), done(0, **call(0)))[1:] == [ToolCallDelta("0", input="{}"), BlockEnd("0")]
    assert read(added(0, **call(0)), ended())[1:-2] == [ToolCallDelta("0", input="{}")]


def test_a_call_has_an_id_that_no_other_has() -> None:
    told = Message(
        id="m",
        session_id="s",
        run_id="r",
        role="assistant",
        parts=[ToolCall("call_0", "view", "{}", True)],
        created_at=0.0,
    )
    nameless = {"type": "function_call", "name": "view"}
    deltas = read(added(0, **call(0)), added(1, **nameless), request=StepRequest(system="", history=[told]))
    ids = [delta.id for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert len({*ids, "call_0", ""}) == 4


def test_an_item_that_has_ended_does_not_go_on() -> None:
    deltas = read(*(done(i, **item) for i, item in enumerate(ITEMS)))
    late = [piece("output_text", 1, "late"), piece("function_call_arguments", 2, "late"), done(1, **ITEMS[1])]
    assert read(*(done(i, **item) for i, item in enumerate(ITEMS)), *late) == deltas


def test_each_token_is_counted_once() -> None:
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 40},
        "total_tokens": 150,
    }
    assert read(ended(usage=usage))[0] == UsageReport(
        input_tokens=10, output_tokens=50, cache_read_tokens=60, cache_write_tokens=30
    )
    del usage["input_tokens_details"]
    assert read(ended(usage=usage))[0] == UsageReport(input_tokens=100, output_tokens=50, cache_read_tokens=0)


@pytest.mark.parametrize(
    "usage", [None, [], "many", {}, {"input_tokens": "1"}, {"output_tokens": -1}, {"input_tokens": True}]
)
def test_a_wrong_count_does_not_cost_a_good_answer(usage: Any) -> None:
    assert read(ended(usage=usage)) == [StepEnd("end_turn"), StreamEnd()]


@pytest.mark.parametrize(
    ("kind", "told", "reason"),
    [
        ("incomplete", "max_output_tokens", "max_tokens"),
        ("incomplete", "content_filter", "content_filter"),
        ("incomplete", "something new", "unknown"),
        ("incomplete", None, "unknown"),
        ("completed", None, "end_turn"),
    ],
)
def test_the_reason_of_the_end_is_told(kind: str, told: str | None, reason: FinishReason) -> None:
    details = {"reason": told} if told else None
    assert read(ended(kind, incomplete_details=details)) == [StepEnd(reason), StreamEnd()]


@pytest.mark.parametrize(
    "unknown",
    [
        event("response.in_progress", response={"status": "in_progress"}),
        event("response.unheard_of", delta={"text": "not the answer"}, item=7, response="x"),
        event("response.audio.delta", delta="AAAA"),
        event("keepalive", sequence_number=3),
        added(0, type="hologram_call", id="x", content="not the answer", summary=4),
        done(0, type="web_search_call", id="x", action={"query": "not the answer"}),
        event("response.content_part.added", output_index=0, part={"type": "output_text", "text": ""}),
        piece("function_call_arguments", 7, "{}"),
        SseEvent(b"{}"),
    ],
)
def test_what_is_unknown_is_passed_over(unknown: SseEvent) -> None:
    assert read(unknown) == []


def test_a_server_that_does_not_name_its_events_is_understood() -> None:
    assert read(SseEvent(piece("output_text", 0, "hi").data)) == [TextDelta("hi", "0.c0")]
    unplaced = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "hi"}
    assert read(SseEvent(json.dumps(unplaced).encode())) == [TextDelta("hi", "msg_1.c0")]
    assert read(SseEvent(b"[DONE]")) == [StreamEnd()]


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        ({"code": "server_error", "message": "internal"}, Transient, "provider_error"),
        ({"code": "rate_limit_exceeded", "message": "Rate limit reached for gpt-5."}, Transient, "rate_limited"),
        ({"code": None, "message": "something"}, Transient, "provider_error"),
        ({"code": "insufficient_quota", "message": "You exceeded your current quota"}, Refused, "quota"),
        ({"code": "context_length_exceeded", "message": "too long"}, Refused, "context_too_long"),
        ({"code": "invalid_prompt", "message": "no"}, Refused, "bad_request"),
        ({"code": "image_too_large", "message": "no"}, Refused, "bad_request"),
        ({"code": "bio_policy", "message": "no"}, Refused, "content_filter"),
        ({"code": "invalid_encrypted_content", "message": "whose?"}, ReasoningRejected, "bad_request"),
    ],
)
def test_an_error_in_the_middle_of_a_stream_is_told(error: Any, kind: type[ModelError], code: str) -> None:
    nested = json.dumps({"type": "error", "error": error}).encode()
    for told in (
        event("error", **error, param=None),
        SseEvent(nested),
        SseEvent(json.dumps({"error": error}).encode()),
        ended("failed", error=error),
    ):
        with pytest.raises(ModelError) as caught:
            read(told)
        assert (type(caught.value), caught.value.code) == (kind, code)


@pytest.mark.parametrize(
    ("words", "wait_s"),
    [
        ("Please try again in 1.5s.", 1.5),
        ("try again in 20ms", 0.02),
        ("try again in 1m30s", 90.0),
        ("try again", None),
    ],
)
def test_a_wish_to_wait_is_heard_in_words(words: str, wait_s: float | None) -> None:
    with pytest.raises(Transient) as caught:
        read(ended("failed", error={"code": "rate_limit_exceeded", "message": words}))
    assert caught.value.retry_after_s == wait_s


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"type": "response.output_text.delta", "output_index": 0, "delta": 42}',
        b'{"type": "response.output_text.delta", "output_index": 0, "delta": "\xf0\x9f"}',
        b'{"type": "response.output_text.delta", "output_index": "first", "delta": "a"}',
        b'{"type": "response.output_item.done", "output_index": 0, "item": {"type": "message", "content": "a"}}',
        b'{"type": "response.completed", "response": "all"}',
    ],
)
def test_what_is_malformed_is_a_clear_failure(data: bytes) -> None:
    with pytest.raises(Refused, match="malformed"):
        read(SseEvent(data))


def test_halves_of_a_surrogate_pair_pass_through_for_the_writer_to_join() -> None:
    half = rb'{"type":"response.output_text.delta","output_index":0,"delta":"a\ud83d"}'
    assert read(SseEvent(half)) == [TextDelta("a\ud83d", "0.c0")]


KINDS = st.sampled_from(
    [
        *("response.output_text.delta", "response.function_call_arguments.delta", "response.reasoning_text.delta"),
        *("response.reasoning_summary_text.delta", "response.output_item.added", "response.output_item.done"),
        *("response.completed", "response.incomplete", "response.failed", "error", "response.unheard_of", ""),
    ]
)
VALUES = st.none() | st.sampled_from([0, 1, -1, "a", "", [], {}, {"type": "message"}, *ITEMS, {"status": "completed"}])
FIELDS = ("output_index", "item_id", "content_index", "summary_index", "delta", "item", "response", "error")
EVENTS = st.fixed_dictionaries(
    {"type": KINDS},
    optional=dict.fromkeys(FIELDS, VALUES),
)


@given(events=st.lists(EVENTS, max_size=12))
def test_whatever_comes_is_deltas_or_a_fault(events: list[dict[str, Any]]) -> None:
    stream = ResponsesStream(ENDPOINT, EMPTY)
    over: set[str] = set()
    for each in events:
        try:
            deltas = stream.parse_event(SseEvent(json.dumps(each).encode()))
        except ModelError:
            return
        for delta in deltas:
            if isinstance(delta, BlockEnd):
                over.add(delta.block)
            elif isinstance(delta, TextDelta | ReasoningDelta | ToolCallDelta):
                assert delta.block not in over, "a piece of a part that had ended"

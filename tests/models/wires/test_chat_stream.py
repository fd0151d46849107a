"""The wire of Chat Completions, inwards: what a server says, without a network."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kedge.models.errors import ModelError, Refused, Transient
from kedge.models.values import (
    Delta,
    Endpoint,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    ToolSpec,
    UsageReport,
)
from kedge.models.wires.chat import ChatStream, prepare_request
from kedge.models.wires.decoding import SseEvent
from kedge.protocol.messages import (
    FinishReason,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
)

ENDPOINT = Endpoint(provider="openai", model="some/model", base_url="http://models.test/v1", api_key="sk-secret")
EMPTY = StepRequest(system="", history=[])
VIEW = ToolSpec("view", "Reads a file.", {"type": "object"})


def message(role: Role, *parts: Part, model: str | None = None) -> Message:
    return Message(id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0, model=model)


def parse_event(event: SseEvent) -> list[Delta]:
    return ChatStream(ENDPOINT, EMPTY).parse_event(event)


def chunk(delta: Any, **choice: Any) -> SseEvent:
    return SseEvent(json.dumps({"choices": [{"index": 0, "delta": delta, **choice}]}).encode())


def read(*pieces: Any, request: StepRequest = EMPTY, finish: str = "tool_calls") -> list[Delta]:
    """The deltas of a stream whose events have these `tool_calls`."""
    stream = ChatStream(ENDPOINT, request)
    events = [chunk({"tool_calls": piece if isinstance(piece, list) else [piece]}) for piece in pieces]
    return [delta for event in [*events, chunk({}, finish_reason=finish)] for delta in stream.parse_event(event)]


def calls(deltas: list[Delta]) -> list[tuple[str, str, str]]:
    """Ids, names and inputs, put together."""
    found: dict[str, tuple[str, str, str]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            call_id, name, given = found.get(delta.block, ("", "", ""))
            found[delta.block] = (call_id + delta.id, name + delta.name, given + delta.input)
    return list(found.values())


def test_deltas_are_told_apart() -> None:
    assert parse_event(chunk({"role": "assistant", "content": ""})) == []
    assert parse_event(chunk({"content": "hi"})) == [TextDelta("hi")]
    assert parse_event(chunk({"refusal": "no"})) == [TextDelta("no")]
    thought = ReasoningDelta("hm", signature="reasoning_content")  # the name it goes back under
    assert parse_event(chunk({"reasoning_content": "hm", "content": "hi"})) == [thought, TextDelta("hi")]
    assert parse_event(chunk({"reasoning": "hm", "reasoning_content": "hm"})) == [thought]
    assert parse_event(chunk({"reasoning": "hm"})) == [ReasoningDelta("hm")]
    assert parse_event(SseEvent(b" [DONE] ")) == [StreamEnd()]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "content_filter"),
        ("tool_calls", "end_turn"),  # it called none
        ("something new", "unknown"),
    ],
)
def test_finish_reasons_are_mapped(said: str, reason: FinishReason) -> None:
    assert parse_event(chunk({}, finish_reason=said)) == [StepEnd(reason)]


def test_usage_counts_each_token_once() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    event = SseEvent(json.dumps({"choices": [], "usage": usage}).encode())
    assert parse_event(event) == [UsageReport(input_tokens=6, output_tokens=3, cache_read_tokens=4)]


@pytest.mark.parametrize(
    ("usage", "report"),
    [
        (
            {"completion_tokens": 9, "total_tokens": 10, "completion_tokens_details": {"reasoning_tokens": 5}},
            UsageReport(input_tokens=1, output_tokens=9, cache_read_tokens=0),  # counted among the output
        ),
        (
            {"completion_tokens": 4, "total_tokens": 10, "completion_tokens_details": {"reasoning_tokens": 5}},
            UsageReport(input_tokens=1, output_tokens=9, cache_read_tokens=0),  # counted apart
        ),
        (
            {"prompt_cache_hit_tokens": 1, "cost": 0.5},
            UsageReport(input_tokens=0, output_tokens=0, cache_read_tokens=1, cost=0.5),
        ),
    ],
)
def test_usage_is_read_as_servers_tell_it(usage: Any, report: UsageReport) -> None:
    event = SseEvent(json.dumps({"choices": [], "usage": {"prompt_tokens": 1, **usage}}).encode())
    assert parse_event(event) == [report]
    in_choice = chunk({"content": "hi"}, usage={"prompt_tokens": 1, **usage})  # as some do
    assert parse_event(in_choice) == [TextDelta("hi"), report]


FIRST = {"index": 0, "id": "a", "type": "function", "function": {"name": "view", "arguments": ""}}
OTHER = {"index": 1, "id": "b", "type": "function", "function": {"name": "bash", "arguments": ""}}

WHOLE_VIEW = {"name": "view", "arguments": "{}"}
WHOLE_BASH = {"name": "bash", "arguments": "{}"}
NO_INDEX = {"id": "a", "function": {"name": "view"}}
LATE_NAME = {"index": 0, "function": {"name": "view"}}


def piece(text: str, **fields: Any) -> Any:
    return {**fields, "function": {"arguments": text}}


def test_calls_come_in_pieces_one_among_the_other() -> None:
    deltas = read(
        FIRST, piece('{"pa', index=0), OTHER, piece('{"c": 1', index=1), piece('th": 1}', index=0), piece("}", index=1)
    )
    assert calls(deltas) == [("a", "view", '{"path": 1}'), ("b", "bash", '{"c": 1}')]
    assert deltas[0] == ToolCallDelta("call-0", "a", "view")
    assert deltas[-1] == StepEnd("tool_use")


@pytest.mark.parametrize(
    "pieces",
    [
        [[{**FIRST, "function": WHOLE_VIEW}, {**OTHER, "function": WHOLE_BASH}]],
        [{"id": "a", "function": WHOLE_VIEW}, {"id": "b", "function": WHOLE_BASH}],
        [NO_INDEX, piece("{"), piece("}"), {"id": "b", "function": {"name": "bash"}}, piece("{}")],
        [FIRST, piece("{}", index=0, id=""), {**OTHER, "index": 0}, piece("{}", index=0, id="b")],
        [FIRST, piece("{}", index=0, id="a"), {**OTHER, "function": {"name": "bash", "arguments": {}}}],
        [FIRST, {"index": 0, "function": WHOLE_VIEW}, OTHER],
        [FIRST, OTHER],
        [{"index": 0, "id": "a"}, piece("{", index=0), LATE_NAME, piece("}", index=0), OTHER],
    ],
    ids=["whole", "no index", "no index, in pieces", "same index", "an object", "name twice", "no input", "late name"],
)
def test_calls_are_told_apart_whatever_the_server_leaves_out(pieces: list[Any]) -> None:
    assert calls(read(*pieces)) == [("a", "view", "{}"), ("b", "bash", "{}")]


def test_calls_without_ids_get_some_that_were_never_used() -> None:
    nameless = [{"index": i, "function": {"name": "view", "arguments": "{}"}} for i in range(2)]
    asked = message("user", Text("?"))
    request = StepRequest(system="", history=[asked])
    first = calls(read(*nameless, request=request))
    assert first == calls(read(*nameless, request=request))  # the same at each attempt
    ids = [call_id for call_id, _, _ in first]
    assert len(set(ids)) == 2
    assert all(ids)
    answer = msgspec.structs.replace(message("assistant", ToolCall("call_0", "view", "{}", True)), id="m2")
    later = StepRequest(system="", history=[asked, answer])
    again = calls(read({"index": 0, "id": "call_0", "function": {"name": "view", "arguments": "{}"}}, request=later))
    assert again[0][0] not in ("", "call_0", *ids)


def test_a_call_that_is_nested_too_deeply_ends_no_stream() -> None:
    deep = '{"path": ' + "[" * 5_000 + "]" * 5_000 + "}"
    pieces = [{"index": 0, "function": {"name": "view", "arguments": text}} for text in (deep, "{}")]
    assert read(*pieces)[-1] == StepEnd("tool_use")


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "tool_use"), ("eos", "tool_use"), ("length", "max_tokens"), ("content_filter", "content_filter")],
)
def test_a_step_that_called_tools_ends_so(finish: str, reason: FinishReason) -> None:
    assert read(FIRST, finish=finish)[-1] == StepEnd(reason)


def test_a_stream_that_ends_without_a_reason_after_calls_ended_with_them() -> None:
    stream = ChatStream(ENDPOINT, EMPTY)
    stream.parse_event(chunk({"tool_calls": [FIRST]}))
    assert stream.parse_event(SseEvent(b"[DONE]")) == [StepEnd("tool_use"), StreamEnd()]


@pytest.mark.parametrize("usage", [None, [], "many", {"prompt_tokens": "1", "completion_tokens": -1}, {"x": True}])
def test_a_wrong_count_does_not_cost_a_good_answer(usage: Any) -> None:
    data = {"choices": [{"delta": {"content": "hi"}}], "usage": usage}
    deltas = parse_event(SseEvent(json.dumps(data).encode()))
    assert deltas[0] == TextDelta("hi")
    assert deltas[1:] == []


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"choices": null}',
        b'{"choices": [], "object": "ping", "new": {"deep": [1, {}]}}',
        b'{"choices": [{"delta": null, "logprobs": {"content": []}}]}',
        b'{"choices": [{"index": 1, "delta": {"content": "another answer"}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{"index": 0}], "audio": {}, "role": "assistant"}}]}',
    ],
)
def test_what_is_unknown_is_passed_over(data: bytes) -> None:
    assert parse_event(SseEvent(data)) == []


def test_halves_of_a_surrogate_pair_pass_through_for_the_writer_to_join() -> None:
    assert parse_event(SseEvent(rb'{"choices":[{"delta":{"content":"a\ud83d"}}]}')) == [TextDelta("a\ud83d")]
    assert parse_event(SseEvent(rb'{"choices":[{"delta":{"content":"\ude00b"}}]}')) == [TextDelta("\ude00b")]
    assert parse_event(SseEvent(rb'{"choices":[{"delta":{"content":"\ud83d\ude00"}}]}')) == [TextDelta("😀")]


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"hello",
        b"[]",
        b"null",
        b'{"choices": {}}',
        b'{"choices": [{"delta": {"content": 42}}]}',
        b'{"choices": [{"delta": {"content": ["a"]}}]}',
        b'{"choices": [{"delta": "text"}]}',
        b'{"choices": [{"delta": {"content": "\xf0\x9f"}}]}',
        b'{"choices": [{"delta": {"content": "\\ud83d"}}], "usage": ' + b"[" * 100_000,
    ],
)
def test_what_is_malformed_is_a_clear_failure(data: bytes) -> None:
    with pytest.raises(Refused, match="malformed") as caught:
        parse_event(SseEvent(data))
    assert caught.value.code == "bad_response"


@pytest.mark.parametrize(
    ("event", "kind", "code"),
    [
        (SseEvent(b'{"error": {"message": "overloaded", "type": "server_error"}}'), Transient, "provider_error"),
        (SseEvent(b'{"error": {"message": "bad gateway", "code": 502}}'), Transient, "provider_error"),
        (SseEvent(b'{"error": {"message": "slow down", "code": 429}}'), Transient, "rate_limited"),
        (SseEvent(b'{"error": {"code": "context_length_exceeded"}}'), Refused, "context_too_long"),
        (SseEvent(b'{"error": "it broke"}'), Transient, "provider_error"),
        (SseEvent(b'{"message": "it broke"}', "error"), Transient, "provider_error"),
        (SseEvent(b'{"choices": [{"delta": {}, "finish_reason": "error"}]}'), Transient, "provider_error"),
    ],
)
def test_an_error_in_the_middle_of_a_stream_is_told(event: SseEvent, kind: type[ModelError], code: str) -> None:
    with pytest.raises(kind) as caught:
        parse_event(event)
    assert caught.value.code == code


def test_what_a_server_attached_to_a_call_goes_back_with_it() -> None:
    extra = {"google": {"thought_signature": "abc"}}
    piece = {"index": 0, "id": "a", "function": {"name": "view", "arguments": "{}"}, "extra_content": extra}
    [thought] = [delta for delta in read(piece) if isinstance(delta, ReasoningDelta)]
    part = Reasoning(thought.text, thought.signature, thought.redacted)
    answer = message("assistant", part, ToolCall("a", "view", "{}", True), model="openai/m")
    request = prepare_request(
        ENDPOINT, StepRequest(system="", history=[message("user", Text("?")), answer], tools=[VIEW])
    )
    [call] = json.loads(request.body)["messages"][1]["tool_calls"]
    assert call["extra_content"] == extra

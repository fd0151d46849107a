"""The wire of Chat Completions, without a network."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kedge.models.chat import encode, prepare_request
from kedge.models.chat_stream import ChatStream
from kedge.models.errors import ModelError, Refused, Transient
from kedge.models.history import Abilities, Past
from kedge.models.outgoing import parse_listing
from kedge.models.sse import SseEvent
from kedge.models.values import (
    Delta,
    Endpoint,
    ModelInfo,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    ToolSpec,
    UsageReport,
)
from kedge.protocol.messages import (
    File,
    Finish,
    FinishReason,
    Image,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)

ENDPOINT = Endpoint(provider="openai", model="some/model", base_url="http://models.test/v1", api_key="sk-secret")
OPENAI = msgspec.structs.replace(ENDPOINT, base_url="https://api.openai.com/v1", info=ModelInfo(reasoning=True))
EMPTY = StepRequest(system="", history=[])
VIEW = ToolSpec("view", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


def message(role: Role, *parts: Part, model: str | None = None) -> Message:
    return Message(id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0, model=model)


def chat_messages(history: list[Message]) -> Any:
    encoded = encode(history, Abilities(provider="openai"), Past())
    return json.loads(msgspec.json.encode(encoded))


def body(endpoint: Endpoint, request: StepRequest) -> Any:
    return json.loads(prepare_request(endpoint, request).body)


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


# to the provider


def test_a_request_streams_with_the_key_in_its_header_only() -> None:
    request = prepare_request(
        ENDPOINT, StepRequest(system="be brief", history=[message("user", Text("hello \u2028 😀"))])
    )
    assert (request.method, request.url) == ("POST", "http://models.test/v1/chat/completions")
    assert request.headers["Authorization"] == "Bearer sk-secret"
    assert request.headers["Accept-Encoding"] == "identity"  # a compressed stream comes in blocks, and late
    assert json.loads(request.body) == {
        "model": "some/model",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello \u2028 😀"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_server_without_a_key_gets_none() -> None:
    request = prepare_request(Endpoint(provider="openai", model="m", base_url="http://models.test/v1"), EMPTY)
    assert "Authorization" not in request.headers


def test_nothing_that_holds_a_key_shows_it() -> None:
    request = prepare_request(ENDPOINT, EMPTY)
    assert "sk-secret" not in repr(ENDPOINT) + str(ENDPOINT) + repr(request) + str([request, ENDPOINT])


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "canceled", "error", "unknown"])
def test_a_message_that_ended_is_sent_with_its_text(reason: FinishReason) -> None:
    parts: list[Part] = [Reasoning("hm"), Text("yes, "), Text("no"), Finish(reason)]
    [_, answer] = chat_messages([message("user", Text("?")), message("assistant", *parts)])
    assert answer == {"role": "assistant", "content": "yes, no"}


def test_calls_and_results_are_sent_with_their_images_after_them() -> None:
    calls = [ToolCall("a", "view", '{"path": "x.png"}', True), ToolCall("b", "view", "{}", True)]
    history = [
        message("user", Text("look")),
        message("assistant", Text("I look"), *calls, Finish("tool_use")),
        message("tool", ToolResult("a", "view", "an image", False), Image("image/png", b"png")),
        message("tool", ToolResult("b", "view", "no such file", True)),
    ]
    assert chat_messages(history)[1:] == [
        {
            "role": "assistant",
            "content": "I look",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "view", "arguments": '{"path": "x.png"}'}},
                {"id": "b", "type": "function", "function": {"name": "view", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "an image"},
        {"role": "tool", "tool_call_id": "b", "content": "no such file"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "[images of the tool results above]"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
            ],
        },
    ]


def test_thoughts_go_back_with_calls_to_a_server_that_gave_them_in_its_field() -> None:
    signed, call = Reasoning("hm", "reasoning_content"), ToolCall("a", "view", "{}", True)
    history = [message("user", Text("?")), message("assistant", signed, call, model="openai/m")]
    assert chat_messages(history)[1]["reasoning_content"] == "hm"
    without_call = [message("user", Text("?")), message("assistant", signed, Text("so"), model="openai/m")]
    assert "reasoning_content" not in chat_messages(without_call)[1]
    of_another = [message("user", Text("?")), message("assistant", signed, call, model="other/m")]
    assert "reasoning_content" not in chat_messages(of_another)[1]


def test_what_a_server_attached_to_a_call_goes_back_with_it() -> None:
    extra = {"google": {"thought_signature": "abc"}}
    piece = {"index": 0, "id": "a", "function": {"name": "view", "arguments": "{}"}, "extra_content": extra}
    [thought] = [delta for delta in read(piece) if isinstance(delta, ReasoningDelta)]
    part = Reasoning(thought.text, thought.signature, thought.redacted)
    answer = message("assistant", part, ToolCall("a", "view", "{}", True), model="openai/m")
    [call] = chat_messages([message("user", Text("?")), answer])[1]["tool_calls"]
    assert call["extra_content"] == extra


def test_a_request_offers_tools_bounds_and_effort() -> None:
    request = StepRequest(
        system="", history=[message("user", Text("?"))], tools=[VIEW], max_output_tokens=9, effort="low"
    )
    sent = body(OPENAI, request)
    assert sent["tools"] == [
        {
            "type": "function",
            "function": {"name": "view", "description": "Reads a file.", "parameters": VIEW.input_schema},
        }
    ]
    assert (sent["max_completion_tokens"], sent["reasoning_effort"], sent["prompt_cache_key"]) == (9, "low", "s")
    elsewhere = body(ENDPOINT, request)
    assert elsewhere["max_tokens"] == 9
    assert not {"max_completion_tokens", "reasoning_effort", "prompt_cache_key"} & elsewhere.keys()
    toolless = msgspec.structs.replace(ENDPOINT, info=ModelInfo(tools=False))
    assert "tools" not in body(toolless, request)


@pytest.mark.parametrize(("taken", "sent"), [("any", "low"), ("unset", None), ("none", "none")])
def test_an_effort_beside_tools_is_what_the_model_takes(taken: Any, sent: str | None) -> None:
    info = ModelInfo(reasoning=True, effort_with_tools=taken)
    target = msgspec.structs.replace(ENDPOINT, info=info)
    request = StepRequest(system="", history=[], effort="low")
    assert body(target, request)["reasoning_effort"] == "low"
    assert body(target, msgspec.structs.replace(request, tools=[VIEW])).get("reasoning_effort") == sent


def test_what_is_configured_has_the_last_word() -> None:
    configured = msgspec.structs.replace(
        ENDPOINT, headers={"authorization": "Basic me", "X-Mine": "1"}, extra_body={"stream_options": None, "top_k": 3}
    )
    request = prepare_request(configured, EMPTY)
    assert {name.lower(): value for name, value in request.headers.items()}["authorization"] == "Basic me"
    assert [name for name in request.headers if name.lower() == "authorization"] == ["authorization"]
    assert request.headers["X-Mine"] == "1"
    sent = json.loads(request.body)
    assert sent["top_k"] == 3
    assert "stream_options" not in sent


def test_someone_has_the_last_word() -> None:
    history = [message("user", Text("?")), message("assistant", Text("hm"))]
    assert body(ENDPOINT, StepRequest(system="", history=history))["messages"][-1]["role"] == "user"


def test_what_a_provider_would_refuse_is_left_out() -> None:
    history = [
        message("user", Text("one")),
        message("assistant", Text("half an ans"), Finish("interrupted")),
        message("assistant", Finish("error", "it failed")),
        message("assistant", Reasoning("only thoughts"), Finish("canceled")),
        message("assistant"),
        message("user", Text("two")),
        message("user"),
    ]
    assert chat_messages(history) == [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]


def test_attachments_are_sent_as_what_the_model_can_read() -> None:
    text, image = File("a.txt", "text/plain", b"h\xc3\xa9"), Image("image/png", b"png")
    binary = File("a.zip", "application/zip", b"123")
    assert chat_messages([message("user", Text("look"), text, binary)]) == [
        {
            "role": "user",
            "content": "look\n\nAttached file a.txt:\n\nhé\n\n"
            "Attached file a.zip (application/zip, 3 bytes; its content cannot be shown)",
        }
    ]
    [sent] = chat_messages([message("user", Text("look"), image)])
    assert sent["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
    ]


# from the provider


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


def test_a_listing_is_read_in_its_order() -> None:
    assert parse_listing(b'{"object": "list", "data": [{"id": "b", "owned_by": "x"}, {"id": "a"}]}') == ["b", "a"]
    with pytest.raises(Refused):
        parse_listing(b"<html>")

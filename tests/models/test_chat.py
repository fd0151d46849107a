"""The wire of Chat Completions, without a network."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kedge.models.chat import chat_messages, parse_event, parse_listing, prepare_request
from kedge.models.errors import ModelError, Refused, Transient
from kedge.models.sse import SseEvent
from kedge.models.values import Endpoint, ReasoningDelta, StepEnd, StepRequest, StreamEnd, TextDelta, UsageReport
from kedge.protocol.messages import File, Finish, FinishReason, Image, Message, Part, Reasoning, Role, Text, ToolCall

ENDPOINT = Endpoint(provider="openai", model="some/model", base_url="http://models.test/v1", api_key="sk-secret")
EMPTY = StepRequest(system="", history=[])


def message(role: Role, *parts: Part) -> Message:
    return Message(id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0)


def chunk(delta: Any, **choice: Any) -> SseEvent:
    return SseEvent(json.dumps({"choices": [{"index": 0, "delta": delta, **choice}]}).encode())


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
def test_a_message_that_ended_is_sent_with_its_text_alone(reason: FinishReason) -> None:
    parts: list[Part] = [Reasoning("hm"), Text("yes, "), ToolCall("c", "bash", "{}", True), Text("no"), Finish(reason)]
    assert chat_messages([message("assistant", *parts)]) == [{"role": "assistant", "content": "yes, no"}]


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
    assert parse_event(chunk({"reasoning_content": "hm", "content": "hi"})) == [ReasoningDelta("hm"), TextDelta("hi")]
    assert parse_event(chunk({"reasoning": "hm", "reasoning_content": "hm"})) == [ReasoningDelta("hm")]
    assert parse_event(SseEvent(b" [DONE] ")) == [StreamEnd()]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "content_filter"),
        ("tool_calls", "unknown"),
        ("something new", "unknown"),
    ],
)
def test_finish_reasons_are_mapped(said: str, reason: FinishReason) -> None:
    assert parse_event(chunk({}, finish_reason=said)) == [StepEnd(reason)]


def test_usage_counts_each_token_once() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    event = SseEvent(json.dumps({"choices": [], "usage": usage}).encode())
    assert parse_event(event) == [UsageReport(input_tokens=6, output_tokens=3, cache_read_tokens=4)]


@pytest.mark.parametrize("usage", [None, [], "many", {"prompt_tokens": "1", "completion_tokens": -1}, {"x": True}])
def test_a_wrong_count_does_not_cost_a_good_answer(usage: Any) -> None:
    data = {"choices": [{"delta": {"content": "hi"}}], "usage": usage}
    deltas = parse_event(SseEvent(json.dumps(data).encode()))
    assert deltas[0] == TextDelta("hi")
    assert all(delta == UsageReport(input_tokens=0, output_tokens=0, cache_read_tokens=0) for delta in deltas[1:])


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

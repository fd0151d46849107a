"""The wire of Google's Gemini, inwards, without a network."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kedge.models.errors import ModelError, Refused, Transient
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
from kedge.models.wires.gemini import GeminiStream
from kedge.protocol.messages import FinishReason, Message, Text, ToolCall

ENDPOINT = Endpoint(provider="gemini", model="gemini-3.8-flash", base_url="http://models.test", wire="gemini")
EMPTY = StepRequest(system="", history=[])


def chunk(*parts: Any, finish: str | None = None, **fields: Any) -> SseEvent:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return SseEvent(json.dumps({"candidates": [candidate], **fields}).encode())


def read(*events: SseEvent, request: StepRequest = EMPTY) -> list[Delta]:
    stream = GeminiStream(ENDPOINT, request)
    return [delta for each in events for delta in stream.parse_event(each)]


def test_parts_become_deltas_of_their_own() -> None:
    assert read(
        chunk({"text": "h", "thought": True}),
        chunk({"text": "m", "thought": True}),
        chunk({"text": "he"}),
        chunk({"text": "llo"}, {"functionCall": {"id": "a", "name": "view", "args": {"path": "ä"}}}),
        chunk({"functionCall": {"id": "b", "name": "view"}}),
        chunk({"text": "so"}, finish="STOP"),
    ) == [
        ReasoningDelta("h", "0"),
        ReasoningDelta("m", "0"),
        BlockEnd("0"),
        TextDelta("he", "1"),
        TextDelta("llo", "1"),
        BlockEnd("1"),
        ToolCallDelta("2", "a", "view", '{"path": "ä"}'),
        BlockEnd("2"),
        ToolCallDelta("3", "b", "view", "{}"),
        BlockEnd("3"),
        TextDelta("so", "4"),
        BlockEnd("4"),
        StepEnd("tool_use"),
    ]


def test_a_signature_is_kept_beside_what_it_signs() -> None:
    assert read(
        chunk({"text": "so", "thought": True}, {"text": "hm", "thought": True, "thoughtSignature": "1"}),
        chunk({"text": "hel"}, {"text": "lo", "thoughtSignature": "2"}),
        chunk({"text": "more"}),
        chunk({"text": "", "thoughtSignature": "3"}),
        chunk({"functionCall": {"id": "a", "name": "view"}, "thoughtSignature": "4"}),
        chunk({"thoughtSignature": "5"}),
    ) == [
        ReasoningDelta("so", "0"),
        BlockEnd("0"),
        ReasoningDelta("hm", "1", "gemini:thought:1"),
        BlockEnd("1"),
        TextDelta("hel", "2"),
        TextDelta("lo", "2"),
        BlockEnd("2"),
        ReasoningDelta("", "3", "gemini:text-2:2"),
        BlockEnd("3"),
        TextDelta("more", "4"),
        BlockEnd("4"),
        ReasoningDelta("", "5", "gemini:text-0:3"),
        BlockEnd("5"),
        ReasoningDelta("", "6", "gemini:call:4"),
        BlockEnd("6"),
        ToolCallDelta("7", "a", "view", "{}"),
        BlockEnd("7"),
        ReasoningDelta("", "8", "gemini:text-0:5"),
        BlockEnd("8"),
    ]


def test_a_call_without_an_id_or_with_one_that_was_used_gets_one() -> None:
    used = ToolCall("used", "view", "{}", True)
    said = Message(id="m", session_id="s", run_id="r", role="assistant", parts=[Text("so"), used], created_at=0.0)
    named: dict[str, Any] = {"name": "view", "args": {}}
    events = [chunk({"functionCall": named}, {"functionCall": named}, {"functionCall": {**named, "id": "used"}})]
    request = StepRequest(system="", history=[said])
    ids = [delta.id for delta in read(*events, request=request) if isinstance(delta, ToolCallDelta)]
    assert len({*ids, "used"}) == 4
    assert ids == [delta.id for delta in read(*events, request=request) if isinstance(delta, ToolCallDelta)]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("STOP", "end_turn"),
        ("MAX_TOKENS", "max_tokens"),
        ("CONTINUATION", "max_tokens"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("LANGUAGE", "content_filter"),
        ("BLOCKLIST", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("SPII", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("OTHER", "unknown"),
        ("SOMETHING_NEW", "unknown"),
    ],
)
def test_finish_reasons_are_mapped(said: str, reason: FinishReason) -> None:
    assert read(chunk(finish=said)) == [StepEnd(reason)]
    called = read(chunk({"functionCall": {"name": "view"}}), chunk(finish=said), chunk(finish=said))
    assert called[-1] == StepEnd("tool_use" if reason in ("end_turn", "unknown") else reason)
    assert sum(isinstance(delta, StepEnd) for delta in called) == 1
    assert read(chunk(finish="FINISH_REASON_UNSPECIFIED")) == []


@pytest.mark.parametrize("said", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"])
def test_a_botched_call_is_asked_for_again(said: str) -> None:
    with pytest.raises(Transient, match=said) as caught:
        read(chunk({"text": "so"}), chunk(finish=said))
    assert caught.value.code == "provider_error"


def test_a_blocked_prompt_is_refused_with_the_reason() -> None:
    told = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "not\nthis"}}
    with pytest.raises(Refused, match=r"PROHIBITED_CONTENT: not this") as caught:
        read(SseEvent(json.dumps(told).encode()))
    assert caught.value.code == "content_filter"
    assert read(SseEvent(b'{"promptFeedback": {"safetyRatings": []}}')) == []


def usage(**counts: Any) -> SseEvent:
    return SseEvent(
        json.dumps({"usageMetadata": {f"{name}TokenCount": count for name, count in counts.items()}}).encode()
    )


def test_usage_is_of_all_so_far_and_a_later_one_replaces_it() -> None:
    assert read(
        usage(prompt=100, cachedContent=60, total=100),
        usage(prompt=100, cachedContent=60, thoughts=5),
        usage(prompt=100, cachedContent=60, thoughts=5),
        usage(prompt=100, cachedContent=60, thoughts=7, candidates=3, toolUsePrompt=2),
    ) == [
        UsageReport(input_tokens=40, output_tokens=0, cache_read_tokens=60),
        UsageReport(input_tokens=40, output_tokens=5, cache_read_tokens=60),
        UsageReport(input_tokens=42, output_tokens=10, cache_read_tokens=60),
    ]


@pytest.mark.parametrize(
    "told", [None, [], "many", {"promptTokenCount": "1"}, {"promptTokenCount": -1}, {"promptTokenCount": 0}, {}]
)
def test_a_wrong_count_does_not_cost_a_good_answer(told: Any) -> None:
    assert read(chunk({"text": "hi"}, finish="STOP", usageMetadata=told))[-1] == StepEnd("end_turn")
    assert not any(isinstance(delta, UsageReport) for delta in read(chunk(usageMetadata=told)))


@pytest.mark.parametrize(
    "unknown",
    [
        SseEvent(b"{}"),
        SseEvent(b'{"candidates": null, "new": [1, {}]}'),
        SseEvent(b'{"candidates": [{"index": 1, "content": {"parts": [{"text": "another answer"}]}}]}'),
        SseEvent(b'{"candidates": [{"content": {"role": "model"}}]}'),
        chunk({"executableCode": {"code": "print()"}}),
        chunk({"inlineData": {"mimeType": "image/png", "data": "cG5n"}}),
        chunk({"text": ""}, {"text": "", "thought": True}, {}),
        chunk({"functionCall": {"partialArgs": []}}),
    ],
)
def test_what_is_unknown_is_passed_over(unknown: SseEvent) -> None:
    assert read(unknown) == []


def test_the_end_of_another_wire_is_understood() -> None:
    assert read(SseEvent(b"[DONE]")) == [StreamEnd()]


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        ({"code": 503, "status": "UNAVAILABLE", "message": "overloaded"}, Transient, "provider_error"),
        ({"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "slower"}, Transient, "rate_limited"),
        ({"code": 400, "status": "INVALID_ARGUMENT", "message": "no"}, Refused, "bad_request"),
    ],
)
def test_an_error_in_the_middle_of_a_stream_is_told(error: Any, kind: type[ModelError], code: str) -> None:
    with pytest.raises(kind) as caught:
        read(chunk({"text": "hi"}), SseEvent(json.dumps({"error": error}).encode()))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"candidates": [{"content": {"parts": [{"text": 42}]}}]}',
        b'{"candidates": [{"content": {"parts": [{"text": "\xf0\x9f"}]}}]}',
        b'{"candidates": [{"content": "text"}]}',
    ],
)
def test_what_is_malformed_is_a_clear_failure(data: bytes) -> None:
    with pytest.raises(Refused, match="malformed"):
        read(SseEvent(data))


def test_halves_of_a_surrogate_pair_pass_through_for_the_writer_to_join() -> None:
    half = rb'{"candidates": [{"content": {"parts": [{"text": "a\ud83d"}]}}]}'
    assert read(SseEvent(half)) == [TextDelta("a\ud83d", "0")]

"""Searches by the provider itself: shown, returned to it unchanged, and text for any other. No network.

The streams are held against the types of the vendors' own packages.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from anthropic.types import RawMessageStreamEvent, ServerToolUseBlockParam, WebSearchToolResultBlockParam
from google.genai import types as google
from openai.types.responses import ResponseFunctionWebSearch, ResponseStreamEvent
from pydantic import TypeAdapter

from kedge.models.values import (
    BlockEnd,
    Delta,
    Endpoint,
    ModelInfo,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    TextDelta,
    ToolSpec,
    UsageReport,
    compute_usage,
)
from kedge.models.wires import anthropic, gemini, responses
from kedge.models.wires.decoding import AnswerStream, SseEvent
from kedge.models.wires.hosted_search import can_search
from kedge.protocol.messages import Finish, Message, Part, Reasoning, Text

Wire = Literal["anthropic", "responses", "gemini"]
MODULES: dict[Wire, Any] = {"anthropic": anthropic, "responses": responses, "gemini": gemini}
MODELS: dict[Wire, str] = {"anthropic": "claude-sonnet-4-5", "responses": "gpt-5", "gemini": "gemini-3-pro"}
VIEW = ToolSpec("view", "Reads a file.", {"type": "object"})
PAGE: dict[str, Any] = {"title": "Kedge anchors", "url": "https://example.com/kedge"}
RESULT: dict[str, Any] = {"type": "web_search_result", **PAGE, "encrypted_content": "EqgfCioIARgB", "page_age": None}
USE: dict[str, Any] = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND: dict[str, Any] = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [RESULT]}
SEARCH_CALL: dict[str, Any] = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "kedge", "sources": [{"type": "url", "url": PAGE["url"]}]},
}
_GOOGLE = {"id": "c1", "toolType": "GOOGLE_SEARCH_WEB"}
GOOGLE_CALL: dict[str, Any] = {"toolCall": {**_GOOGLE, "args": {"queries": ["kedge"]}}}
GOOGLE_ANSWER: dict[str, Any] = {"toolResponse": {**_GOOGLE, "response": {"search_suggestions": "x"}}}

ANTHROPIC: list[dict[str, Any]] = [
    {"type": "content_block_start", "index": 0, "content_block": USE},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"query": '}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '"kedge"}'}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": FOUND},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "An anchor."}},
    {"type": "content_block_stop", "index": 2},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {
            "input_tokens": 10,
            "output_tokens": 5,
            "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0},
        },
    },
]
MESSAGE: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "An anchor.", "annotations": []}],
}
RESPONSES: list[dict[str, Any]] = [
    {
        "type": "response.output_item.added",
        "sequence_number": 1,
        "output_index": 0,
        "item": {**SEARCH_CALL, "status": "in_progress"},
    },
    {"type": "response.web_search_call.searching", "sequence_number": 2, "output_index": 0, "item_id": "ws_1"},
    {"type": "response.output_item.done", "sequence_number": 3, "output_index": 0, "item": SEARCH_CALL},
    {"type": "response.output_item.done", "sequence_number": 4, "output_index": 1, "item": MESSAGE},
]
COMPLETED: dict[str, Any] = {
    "type": "response.completed",
    "response": {"status": "completed", "usage": {"input_tokens": 10, "output_tokens": 5}},
}
GEMINI: list[dict[str, Any]] = [
    {"candidates": [{"content": {"role": "model", "parts": [{**GOOGLE_CALL, "thoughtSignature": "c2ln"}]}}]},
    {"candidates": [{"content": {"role": "model", "parts": [GOOGLE_ANSWER]}}]},
    {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"text": "An anchor."}]},
                "finishReason": "STOP",
                "groundingMetadata": {
                    "webSearchQueries": ["kedge"],
                    "groundingChunks": [{"web": {"uri": PAGE["url"], "title": PAGE["title"]}}],
                },
            }
        ],
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5},
    },
]
STREAMS: dict[Wire, list[Any]] = {"anthropic": ANTHROPIC, "responses": [*RESPONSES, COMPLETED], "gemini": GEMINI}
CLASSES: dict[Wire, type[AnswerStream]] = {
    "anthropic": anthropic.AnthropicStream,
    "responses": responses.ResponsesStream,
    "gemini": gemini.GeminiStream,
}


def endpoint(wire: Wire, model: str = "") -> Endpoint:
    url, name = "http://models.test", model or MODELS[wire]
    return Endpoint(provider=f"the-{wire}", model=name, base_url=url, wire=wire, info=ModelInfo(reasoning=True))


def request(*history: Message, price: float | None = 0.01) -> StepRequest:
    return StepRequest(system="", history=history, tools=[VIEW], search_price=price)


def message(role: Any, *parts: Part, model: str | None = None) -> Message:
    return Message(id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0, model=model)


def read(wire: Wire, events: list[Any] | None = None) -> list[Delta]:
    stream = CLASSES[wire](endpoint(wire), request())
    events = STREAMS[wire] if events is None else events
    return [delta for event in events for delta in stream.parse_event(SseEvent(json.dumps(event).encode()))]


def parts_of(wire: Wire) -> list[Part]:
    """The parts that an agent stores of the stream."""
    blocks: dict[str, Part] = {}
    for delta in read(wire):
        match delta:
            case TextDelta(text, block):
                known = blocks.get(block, Text(""))
                assert isinstance(known, Text)
                blocks[block] = Text(known.text + text)
            case ReasoningDelta(text, block, signature):
                known = blocks.get(block, Reasoning(""))
                assert isinstance(known, Reasoning)
                blocks[block] = Reasoning(known.text + text, (known.signature or "") + signature or None)
            case _:
                pass
    return [*blocks.values(), Finish("end_turn")]


def conversation(wire: Wire) -> list[Message]:
    answer = message("assistant", *parts_of(wire), model=f"the-{wire}/{MODELS[wire]}")
    return [message("user", Text("what is a kedge?")), answer, message("user", Text("go on"))]


def body(wire: Wire, *history: Message, price: float | None = 0.01, model: str = "") -> dict[str, Any]:
    return json.loads(MODULES[wire].prepare_request(endpoint(wire, model), request(*history, price=price)).body)


def test_the_streams_are_what_the_vendors_packages_know() -> None:
    for event in ANTHROPIC:
        TypeAdapter[Any](RawMessageStreamEvent).validate_python(event)
    for event in RESPONSES:
        TypeAdapter[Any](ResponseStreamEvent).validate_python(event)
    for chunk in GEMINI:
        google.GenerateContentResponse.model_validate(chunk)


@pytest.mark.parametrize("wire", STREAMS)
def test_query_and_sources_are_shown_and_the_answer_is_text(wire: Wire) -> None:
    parts = parts_of(wire)
    shown = "\n".join(part.text for part in parts if isinstance(part, Reasoning))
    assert '"kedge"' in shown
    assert str(PAGE["url"]) in shown
    assert [part.text for part in parts if isinstance(part, Text)] == ["An anchor."]
    assert StepEnd("end_turn") in read(wire)
    opened = {delta.block for delta in read(wire) if isinstance(delta, ReasoningDelta)}
    assert opened <= {delta.block for delta in read(wire) if isinstance(delta, BlockEnd)}


@pytest.mark.parametrize("wire", STREAMS)
def test_the_provider_gets_its_items_back_unchanged_and_in_their_place(wire: Wire) -> None:
    sent = body(wire, *conversation(wire))
    match wire:
        case "anthropic":
            use, found, text = sent["messages"][1]["content"]
            assert use == {**USE, "input": {"query": "kedge"}}
            assert found == FOUND
            TypeAdapter[Any](ServerToolUseBlockParam).validate_python(use)
            TypeAdapter[Any](WebSearchToolResultBlockParam).validate_python(found)
            assert text["text"] == "An anchor."
        case "responses":
            call, answer = sent["input"][1:3]
            assert call == {name: value for name, value in SEARCH_CALL.items() if name != "id"}
            ResponseFunctionWebSearch.model_validate({**call, "id": "any"})
            assert answer["content"] == "An anchor."
        case "gemini":
            parts = sent["contents"][1]["parts"]
            assert parts == [{**GOOGLE_CALL, "thoughtSignature": "c2ln"}, GOOGLE_ANSWER, {"text": "An anchor."}]
            google.Content.model_validate(sent["contents"][1])


@pytest.mark.parametrize("wire", STREAMS)
@pytest.mark.parametrize("other", STREAMS)
def test_for_another_provider_and_without_the_tool_a_search_is_text(wire: Wire, other: Wire) -> None:
    sent = json.dumps(body(other, *conversation(wire), price=None if wire == other else 0.01))
    assert str(PAGE["url"]) in sent
    assert "Searched the web" in sent
    for secret in ("EqgfCioIARgB", "web_search_tool_result", "web_search_call", "toolResponse", "c2ln"):
        assert secret not in sent.replace("web_search_call.action.sources", "")


def test_the_tool_is_offered_beside_ours_only_if_searches_are_allowed() -> None:
    asked = message("user", Text("hi"))
    search = body("anthropic", asked)["tools"][-1]
    assert (search["type"], search["cache_control"]) == ("web_search_20250305", {"type": "ephemeral"})
    assert {"type": "web_search"} in body("responses", asked)["tools"]
    assert "web_search_call.action.sources" in body("responses", asked)["include"]
    sent = body("gemini", asked)
    assert {"googleSearch": {}} in sent["tools"]
    assert sent["toolConfig"] == {"includeServerSideToolInvocations": True}
    for wire in STREAMS:
        sent = body(wire, asked, price=None)
        assert len(sent["tools"]) == 1
        assert "earch" not in json.dumps(sent)


@pytest.mark.parametrize("wire", STREAMS)
def test_searches_are_paid(wire: Wire) -> None:
    report = UsageReport()
    for delta in read(wire):
        if isinstance(delta, UsageReport):
            report = delta
    assert compute_usage(report, ModelInfo(), 0, 0).cost == pytest.approx(0.01)


def test_a_search_that_failed_says_so_and_is_returned_too() -> None:
    error: dict[str, Any] = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    events = [
        {**ANTHROPIC[4], "content_block": {**FOUND, "content": error}} if each is ANTHROPIC[4] else each
        for each in ANTHROPIC
    ]
    shown = "".join(delta.text for delta in read("anthropic", events) if isinstance(delta, ReasoningDelta))
    assert "max_uses_exceeded" in shown


def test_a_pause_of_the_provider_is_no_end() -> None:
    events: list[dict[str, Any]] = [
        *ANTHROPIC[:6],
        {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}, "usage": None},
    ]
    assert StepEnd("tool_use") in read("anthropic", events)


def test_which_models_can_search() -> None:
    assert can_search(endpoint("anthropic"))
    assert can_search(endpoint("gemini"))
    assert not can_search(endpoint("gemini", "gemini-2.5-pro"))
    assert not can_search(endpoint("anthropic", "glm-4.7"))
    assert not can_search(Endpoint(provider="p", model="m", base_url="http://x", wire="chat"))

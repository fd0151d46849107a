"""Where servers of the chat wire want it otherwise: the bytes that they get, and what is made of theirs."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest

from kedge.models.providers import BUILT_IN
from kedge.models.values import (
    Delta,
    Endpoint,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    TextDelta,
    ToolCallDelta,
    ToolSpec,
    UsageReport,
)
from kedge.models.wires import anthropic
from kedge.models.wires.chat import BETWEEN, DIALECTS, PLAIN, ChatStream, find_dialect, prepare_request
from kedge.models.wires.decoding import SseEvent
from kedge.models.wires.requests import EncodedCache
from kedge.protocol.messages import Image, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult

VIEW = ToolSpec("view", "Reads.", {"type": "object"})
PICTURE = Image("image/png", b"\x89PNG\r\n\x1a\n")


def at(provider: str, model: str = "m", **fields: Any) -> Endpoint:
    """At an address that only says the provider's name, as a gateway of a company would have it."""
    return Endpoint(provider=provider, model=model, base_url="http://gate.test/v1", **fields)


def message(role: Role, *parts: Part, id: str = "m", model: str | None = None) -> Message:
    return Message(
        id=id, session_id="the-session", run_id="r", role=role, parts=list(parts), created_at=0.0, model=model
    )


def history(provider: str, *thoughts: Reasoning, result: tuple[Part, ...] = ()) -> list[Message]:
    call = ToolCall("call-of-another-vendor", "view", '{"path":"a"}', True)
    return [
        message("user", Text("look")),
        message("assistant", *thoughts, Text("I look."), call, model=f"{provider}/m"),
        message("tool", ToolResult(call.id, "view", "content", False), *result),
    ]


def body(endpoint: Endpoint, said: list[Message], **fields: Any) -> Any:
    return json.loads(
        prepare_request(endpoint, StepRequest(system="be brief", history=said, tools=[VIEW], **fields)).body
    )


def events(*deltas: Any, finish: str = "stop", **last: Any) -> list[SseEvent]:
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], **last})
    return [SseEvent(json.dumps(chunk).encode()) for chunk in chunks]


def heard(endpoint: Endpoint, told: list[SseEvent]) -> list[Delta]:
    stream = ChatStream(endpoint, StepRequest(system="", history=[]))
    return [delta for event in told for delta in stream.parse_event(event)]


def parts_of(deltas: list[Delta]) -> list[Part]:
    """As the agent keeps them: a block is a part, in the order of their beginnings."""
    blocks: dict[str, list[Delta]] = {}
    for delta in deltas:
        if isinstance(delta, TextDelta | ReasoningDelta | ToolCallDelta):
            blocks.setdefault(delta.block, []).append(delta)
    parts: list[Part] = []
    for pieces in blocks.values():
        first = pieces[0]
        text = "".join(p.text for p in pieces if isinstance(p, TextDelta | ReasoningDelta))
        match first:
            case ReasoningDelta():
                signature = "".join(p.signature for p in pieces if isinstance(p, ReasoningDelta))
                parts.append(Reasoning(text, signature or None, first.redacted))
            case ToolCallDelta():
                given = "".join(p.input for p in pieces if isinstance(p, ToolCallDelta))
                parts.append(ToolCall(first.id, first.name, given, True))
            case _:
                parts.append(Text(text))
    return parts


def test_every_dialect_is_that_of_a_known_provider_at_its_own_address() -> None:
    hosts = {provider.id: provider.base_url or "" for provider in BUILT_IN}
    for name, dialect in DIALECTS.items():
        assert f"//{dialect.host}/" in hosts[name]
        assert find_dialect(Endpoint(provider="mine", model="m", base_url=hosts[name])) == dialect
        assert find_dialect(at(name)) == (PLAIN if name == "openai" else dialect)
    assert find_dialect(at("anybody")) == PLAIN


@pytest.mark.parametrize("provider", [*DIALECTS, "deepseek", "groq"])
def test_ten_requests_begin_with_the_same_bytes_whatever_the_dialect(provider: str) -> None:
    """What was sent before is sent again as it was, so that the provider's cache holds; only the end is new."""
    said, remembered, bodies = [message("user", Text("go"))], EncodedCache(), list[bytes]()
    details = 'reasoning_details:[{"type":"reasoning.text","text":"hm","signature":"s","index":0}]'
    for i in range(10):
        request = StepRequest(system="be brief", history=said, tools=[VIEW])
        bodies.append(prepare_request(at(provider, "anthropic/claude-x"), request, remembered).body)
        thoughts = [Reasoning("hm", "reasoning_content"), Reasoning("", details, True)]
        call = ToolCall(f"c{i}", "view", '{"path": "a"}', True)
        said.append(message("assistant", *thoughts, call, id=f"a{i}", model=f"{provider}/m"))
        said.append(message("tool", ToolResult(call.id, "view", f"content {i}", False), id=f"t{i}"))
        if i % 3 == 2:
            said.append(message("user", Text(f"more {i}"), id=f"u{i}"))
    for before, after in itertools.pairwise(bodies):
        start = before.index(b'"messages":[') + len(b'"messages":')
        _, end = json.JSONDecoder().raw_decode(before.decode(), start)
        assert after.startswith(before[: end - 1])


# Mistral


def test_mistral_gets_ids_of_nine_characters_and_is_not_asked_for_usage() -> None:
    sent = body(at("mistral"), history("openai"), max_output_tokens=100)
    (call,) = sent["messages"][2]["tool_calls"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()
    assert sent["messages"][3]["tool_call_id"] == call["id"]
    assert "stream_options" not in sent
    assert sent["max_tokens"] == 100


@pytest.mark.parametrize("result", [(), (PICTURE,)])
def test_mistral_hears_a_word_of_the_assistants_between_results_and_a_prompt(result: tuple[Part, ...]) -> None:
    said = [*history("mistral", result=result), *([] if result else [message("user", Text("and now this"), id="u2")])]
    roles = [each["role"] for each in body(at("mistral"), said)["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert body(at("mistral"), said)["messages"][4] == {"role": "assistant", "content": BETWEEN}
    others = [each["role"] for each in body(at("openrouter"), said)["messages"]]
    assert others == ["system", "user", "assistant", "tool", "user"]


def test_words_between_are_the_same_when_a_conversation_is_remembered() -> None:
    said, remembered = history("mistral"), EncodedCache()
    for i in range(6):
        said.append(message("user", Text(f"more {i}"), id=f"u{i}"))
        said.append(message("assistant", ToolCall(f"c{i}", "view", "{}", True), id=f"a{i}", model="mistral/m"))
        said.append(message("tool", ToolResult(f"c{i}", "view", "x", False), id=f"t{i}"))
        request = StepRequest(system="s", history=said, tools=[VIEW])
        with_memory = prepare_request(at("mistral"), request, remembered).body
        assert with_memory == prepare_request(at("mistral"), request).body


def test_mistrals_thoughts_are_pieces_of_the_content_and_go_back_as_that() -> None:
    thinking: Any = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    call = {"index": 0, "id": "abcdefghi", "function": {"name": "view", "arguments": "{}"}}
    told = events(
        {"content": [thinking]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": ", so"}]}]},
        {"content": [{"type": "text", "text": "I "}]},
        {"content": "look.", "tool_calls": [call]},
        finish="tool_calls",
    )
    parts = parts_of(heard(at("mistral"), told))
    assert parts == [Reasoning("hm, so", "thinking"), Text("I look."), ToolCall("abcdefghi", "view", "{}", True)]
    said = [
        message("user", Text("look")),
        message("assistant", *parts, model="mistral/m"),
        message("tool", ToolResult("abcdefghi", "view", "x", False)),
    ]
    assert body(at("mistral"), said)["messages"][2]["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm, so"}], "closed": True},
        {"type": "text", "text": "I look."},
    ]


def test_pieces_of_content_that_nobody_has_heard_of_say_nothing() -> None:
    odd: list[Any] = [{"type": "reference", "reference_ids": [1]}, {"type": "thinking", "thinking": "x"}, {"text": "y"}]
    assert [d for d in heard(at("mistral"), events({"content": odd})) if not isinstance(d, StepEnd)] == []


# OpenRouter

DETAILS: list[Any] = [
    {"type": "reasoning.text", "text": "Let me ", "index": 0, "format": "anthropic-claude-v1"},
    {"type": "reasoning.text", "text": "think.", "index": 0, "format": "anthropic-claude-v1"},
    {"type": "reasoning.text", "signature": "c2lnbmVk", "index": 0, "format": "anthropic-claude-v1"},
    {"type": "reasoning.encrypted", "data": "AAAA", "id": "rs_1", "index": 1},
]
WHOLE: list[Any] = [
    {
        "type": "reasoning.text",
        "text": "Let me think.",
        "index": 0,
        "format": "anthropic-claude-v1",
        "signature": "c2lnbmVk",
    },
    {"type": "reasoning.encrypted", "data": "AAAA", "id": "rs_1", "index": 1},
]


def of_openrouter() -> list[Part]:
    call = {"index": 0, "id": "c1", "function": {"name": "view", "arguments": "{}"}}
    told = events(
        {"reasoning": "Let me ", "reasoning_details": DETAILS[:1]},
        {"reasoning": "think.", "reasoning_details": DETAILS[1:2]},
        {"reasoning_details": DETAILS[2:]},
        {"content": "I look.", "tool_calls": [call]},
        finish="tool_calls",
    )
    return parts_of(heard(at("openrouter"), told))


def test_a_gateways_details_go_back_as_they_came_and_its_thoughts_are_shown_once() -> None:
    parts = of_openrouter()
    assert [part.text for part in parts if isinstance(part, Reasoning) and not part.redacted] == ["Let me think."]
    said = [
        message("user", Text("look")),
        message("assistant", *parts, model="openrouter/m"),
        message("tool", ToolResult("c1", "view", "x", False)),
    ]
    answer = body(at("openrouter"), said)["messages"][2]
    assert answer["reasoning_details"] == WHOLE
    assert "reasoning_content" not in answer
    assert body(at("groq"), said)["messages"][2].get("reasoning_details") is None, "others cannot read them"


def test_details_are_nothing_for_another_wire_of_the_same_provider() -> None:
    said = [message("user", Text("look")), message("assistant", *of_openrouter(), model="openrouter/m")]
    endpoint = Endpoint(provider="openrouter", model="m", base_url="http://gate.test", wire="anthropic")
    sent = json.loads(anthropic.prepare_request(endpoint, StepRequest(system="", history=said, tools=[VIEW])).body)
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["text", "tool_use"]


def test_openrouter_is_told_the_session_and_to_mark_what_claude_caches() -> None:
    sent = body(at("openrouter", "anthropic/claude-sonnet-4.5"), history("openrouter"))
    assert (sent["session_id"], sent["cache_control"]) == ("the-session", {"type": "ephemeral"})
    assert "cache_control" not in body(at("openrouter", "openai/gpt-oss-120b"), history("openrouter"))


def test_what_openrouter_says_that_it_cost_is_what_it_cost() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "cost": 0.0123}
    (report,) = [
        d for d in heard(at("openrouter"), events({"content": "x"}, usage=usage)) if isinstance(d, UsageReport)
    ]
    assert report.cost == 0.0123


# others


def test_xai_hears_which_conversation_it_is_in_a_header() -> None:
    request = StepRequest(system="", history=history("xai"), tools=[VIEW])
    assert prepare_request(at("xai"), request).headers["x-grok-conv-id"] == "the-session"
    assert "x-grok-conv-id" not in prepare_request(at("groq"), request).headers
    configured = at("xai", headers={"X-Grok-Conv-Id": "mine"})
    sent = {name.lower(): value for name, value in prepare_request(configured, request).headers.items()}
    assert sent["x-grok-conv-id"] == "mine"


def test_deepseeks_thoughts_go_back_with_the_calls_that_they_led_to() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "view", "arguments": "{}"}}
    told = events(
        {"reasoning_content": "hm"}, {"reasoning_content": " so"}, {"tool_calls": [call]}, finish="tool_calls"
    )
    parts = parts_of(heard(at("deepseek"), told))
    said = [
        message("user", Text("look")),
        message("assistant", *parts, model="deepseek/m"),
        message("tool", ToolResult("c1", "view", "x", False)),
    ]
    assert body(at("deepseek"), said)["messages"][2]["reasoning_content"] == "hm so"


@pytest.mark.parametrize("provider", ["groq", "cerebras", "together", "ollama"])
def test_thoughts_under_the_shorter_name_are_shown_and_not_sent_back(provider: str) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "view", "arguments": "{}"}}
    parts = parts_of(heard(at(provider), events({"reasoning": "hm"}, {"tool_calls": [call]}, finish="tool_calls")))
    assert parts[0] == Reasoning("hm")
    said = [message("user", Text("look")), message("assistant", *parts, model=f"{provider}/m")]
    assert "hm" not in msgspec.json.encode(body(at(provider), said)).decode()


def test_headers_and_body_of_the_configuration_are_sent_and_null_takes_away() -> None:
    endpoint = at(
        "openrouter", headers={"X-Title": "mine"}, extra_body={"provider": {"sort": "price"}, "session_id": None}
    )
    request = StepRequest(system="", history=history("openrouter"))
    sent = prepare_request(endpoint, request)
    assert sent.headers["X-Title"] == "mine"
    assert json.loads(sent.body)["provider"] == {"sort": "price"}
    assert "session_id" not in json.loads(sent.body)

"""The wire of Chat Completions, without a network."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kedge.models.errors import Refused
from kedge.models.values import (
    Endpoint,
    ModelInfo,
    StepRequest,
    ToolSpec,
)
from kedge.models.wires.chat import encode, prepare_request
from kedge.models.wires.history import Abilities, EncodingState
from kedge.models.wires.requests import parse_listing
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
    encoded = encode(history, Abilities(provider="openai"), EncodingState())
    return json.loads(msgspec.json.encode(encoded))


def body(endpoint: Endpoint, request: StepRequest) -> Any:
    return json.loads(prepare_request(endpoint, request).body)


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


def test_a_listing_is_read_in_its_order() -> None:
    assert parse_listing(b'{"object": "list", "data": [{"id": "b", "owned_by": "x"}, {"id": "a"}]}') == ["b", "a"]
    with pytest.raises(Refused):
        parse_listing(b"<html>")

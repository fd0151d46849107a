"""The wire of OpenAI's Responses towards the provider, without a network."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import httpx2
import msgspec
import pytest
from hypothesis import given, settings
from pydantic import TypeAdapter

from kedge.config.schema import Effort
from kedge.models.values import Endpoint, ModelInfo, StepRequest, ToolSpec
from kedge.models.wires.registry import WIRES
from kedge.models.wires.requests import EncodedCache
from kedge.models.wires.responses import Mark, prepare_request, read_mark
from kedge.protocol.messages import (
    File,
    Finish,
    Image,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from tests.models.wires.conversations import histories
from tests.models.wires.vendors import check_responses

ENDPOINT = Endpoint(
    provider="openai",
    model="gpt-5",
    base_url="https://models.test/v1",
    api_key="sk-secret",
    wire="responses",
    info=ModelInfo(reasoning=True),
)
PLAIN = msgspec.structs.replace(ENDPOINT, model="gpt-4.1", info=ModelInfo())
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
VIEW = ToolSpec("view", "Reads a file.", SCHEMA)
EMPTY = StepRequest(system="", history=[])


def message(role: Role, *parts: Part, model: str = "openai/gpt-5") -> Message:
    said_by = model if role == "assistant" else None
    return Message(id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0, model=said_by)


def ask(text: str = "go") -> Message:
    return message("user", Text(text))


def thought(text: str, **mark: Any) -> Reasoning:
    return Reasoning(text, Mark(**mark).signature)


def step(call_id: str, *thoughts: Part) -> list[Message]:
    call = ToolCall(call_id, "view", '{"path": "a"}', True)
    return [
        message("assistant", *thoughts, call, Finish("tool_use")),
        message("tool", ToolResult(call_id, "view", "content", False)),
    ]


def body(
    history: list[Message], endpoint: Endpoint = ENDPOINT, cache: EncodedCache | None = None, **fields: Any
) -> Any:
    request = StepRequest(system="be brief", history=history, tools=[VIEW])
    return json.loads(prepare_request(endpoint, msgspec.structs.replace(request, **fields), cache).body)


def items(*history: Message, endpoint: Endpoint = ENDPOINT) -> Any:
    return body(list(history), endpoint)["input"]


def test_a_request_stores_nothing_and_asks_for_what_must_go_back() -> None:
    assert body([ask()], max_output_tokens=500, effort="high") == {
        "model": "gpt-5",
        "instructions": "be brief",
        "tools": [
            {"type": "function", "name": "view", "description": "Reads a file.", "parameters": SCHEMA, "strict": False}
        ],
        "input": [{"role": "user", "content": "go"}],
        "max_output_tokens": 500,
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "s",
        "store": False,
        "stream": True,
    }


def test_the_key_is_in_a_header_only() -> None:
    request = prepare_request(ENDPOINT, EMPTY)
    assert (request.method, request.url) == ("POST", "https://models.test/v1/responses")
    assert request.headers["Authorization"] == "Bearer sk-secret"
    assert b"secret" not in request.body
    assert "secret" not in repr(request)
    assert "Authorization" not in prepare_request(msgspec.structs.replace(ENDPOINT, api_key=None), EMPTY).headers
    listing = WIRES["responses"].prepare_listing(ENDPOINT)
    assert (listing.url, listing.headers["Authorization"]) == ("https://models.test/v1/models", "Bearer sk-secret")


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize(
    ("key", "header", "value"),
    [("0123abcd", "api-key", "0123abcd"), ("eyJ0eXAi.eyJhdWQi.c2ln", "Authorization", "Bearer eyJ0eXAi.eyJhdWQi.c2ln")],
)
def test_azure_takes_its_key_in_a_header_of_its_own_and_a_token_as_everybody_does(
    wire: Any, key: str, header: str, value: str
) -> None:
    azure = msgspec.structs.replace(ENDPOINT, provider="azure", api_key=key, key_header="api-key", wire=wire)
    for request in (WIRES[azure.wire].prepare_request(azure, EMPTY, None), WIRES[azure.wire].prepare_listing(azure)):
        assert request.headers[header] == value
        assert len({"api-key", "Authorization"} & request.headers.keys()) == 1


def test_a_model_that_does_not_reason_is_not_asked_about_it() -> None:
    sent = body([ask()], PLAIN, effort="high")
    assert "reasoning" not in sent
    assert "include" not in sent


@pytest.mark.parametrize(
    ("effort", "known", "told"),
    [
        (None, ("low", "high"), None),
        ("minimal", ("minimal", "high"), "minimal"),
        ("minimal", ("low", "high"), "low"),
        ("medium", ("low", "high"), "low"),
        ("high", ("low", "high"), "high"),
        ("xhigh", ("low", "high", "max"), "high"),
        ("max", ("low", "high", "xhigh"), "xhigh"),
        ("max", ("high", "max"), "max"),
    ],
)
def test_an_effort_is_one_that_the_model_knows_also_with_tools(
    effort: Effort | None, known: tuple[Effort, ...], told: str | None
) -> None:
    info = ModelInfo(reasoning=True, efforts=known, effort_with_tools="none")  # which is of the chat wire
    sent = body([ask()], msgspec.structs.replace(ENDPOINT, info=info), effort=effort)
    assert sent["reasoning"].get("effort") == told
    assert sent["reasoning"]["summary"] == "auto"


def test_what_is_not_there_is_not_sent() -> None:
    sent = json.loads(prepare_request(PLAIN, EMPTY).body)
    assert sent.keys() == {"model", "input", "store", "stream"}
    assert sent["input"] == [{"role": "user", "content": "Continue."}]
    assert body([ask()], max_output_tokens=5)["max_output_tokens"] == 16


def test_what_is_configured_has_the_last_word() -> None:
    told = {"store": True, "include": None, "service_tier": "flex"}
    sent = body([ask()], msgspec.structs.replace(ENDPOINT, extra_body=told))
    assert (sent["store"], sent["service_tier"], "include" in sent) == (True, "flex", False)


def test_calls_results_and_images_are_items_of_their_own() -> None:
    image = Image("image/png", b"png")
    shown = {"type": "input_image", "image_url": "data:image/png;base64,cG5n", "detail": "auto"}
    calls = [ToolCall("a", "view", '{"path": "x"}', True), ToolCall("b", "view", "", True)]
    assert items(
        message("user", Text("see"), image),
        message("assistant", Text("so"), *calls),
        message("tool", ToolResult("a", "view", "shown", False), image),
        message("tool", ToolResult("b", "view", "no such file", True)),
        ask("stop"),
    ) == [
        {"role": "user", "content": [{"type": "input_text", "text": "see"}, shown]},
        {"role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "a", "name": "view", "arguments": '{"path": "x"}'},
        {"type": "function_call", "call_id": "b", "name": "view", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "shown"}, shown]},
        {"type": "function_call_output", "call_id": "b", "output": "no such file"},
        {"role": "user", "content": "stop"},
    ]


def test_a_pdf_is_sent_to_models_that_see_and_told_of_to_others() -> None:
    history = message("user", Text("read"), File("a.pdf", "application/pdf", b"%PDF"))
    document = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}
    [sent] = items(history)
    assert sent["content"][1] == document
    blind = msgspec.structs.replace(ENDPOINT, info=ModelInfo(images=False))
    [sent] = items(history, endpoint=blind)
    assert "a.pdf" in sent["content"][1]["text"]


def test_thoughts_go_back_as_they_came_and_only_there() -> None:
    thoughts = [
        thought("**One**", id="rs_1"),
        thought("**Two**", id="rs_1", encrypted_content="c2VjcmV0=="),
        thought("", id="rs_2", encrypted_content="bW9yZQ=="),
    ]
    history = [ask(), *step("a", *thoughts)]
    summary = [{"type": "summary_text", "text": "**One**"}, {"type": "summary_text", "text": "**Two**"}]
    assert items(*history)[1:3] == [
        {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "c2VjcmV0=="},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "bW9yZQ=="},
    ]
    elsewhere = msgspec.structs.replace(ENDPOINT, provider="azure")
    assert [item.get("type") for item in items(*history, endpoint=elsewhere)] == [
        None,
        "function_call",
        "function_call_output",
    ]


def test_a_model_that_does_not_reason_gets_no_encrypted_thoughts_of_one_that_did() -> None:
    history = [ask(), *step("a", thought("hm", id="rs_1", encrypted_content="c2VjcmV0=="))]
    kinds = [item.get("type") for item in items(*history, endpoint=PLAIN)]
    assert kinds == [None, "function_call", "function_call_output"]


def test_thoughts_that_nobody_encrypted_go_back_only_where_they_were_shown_whole() -> None:
    [_, item, *_] = items(ask(), *step("a", thought("hm", id="rs_1", is_raw=True)))
    assert item == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    sent = items(ask(), *step("a", thought("a summary", id="rs_1")))
    assert "reasoning" not in str(sent), "nothing was stored under the id"


def test_a_text_goes_back_with_its_phase() -> None:
    parts = [thought("", phase="commentary"), Text("I look."), thought("", phase="final_answer"), Text("Done.")]
    assert items(ask(), message("assistant", *parts), ask())[1:3] == [
        {"role": "assistant", "content": "I look.", "phase": "commentary"},
        {"role": "assistant", "content": "Done.", "phase": "final_answer"},
    ]


@pytest.mark.parametrize("signature", [None, "sig==", "reasoning_content", "responses:", "responses:{", "responses:[]"])
def test_what_another_wire_signed_is_not_ours(signature: str | None) -> None:
    assert read_mark(signature) is None
    sent = items(ask(), *step("a", Reasoning("hm", signature)))
    assert [item.get("type") for item in sent] == [None, "function_call", "function_call_output"]


@pytest.mark.parametrize("wire", ["chat", "anthropic"])
def test_no_other_wire_takes_our_signatures_for_its_own(wire: Any) -> None:
    endpoint = msgspec.structs.replace(ENDPOINT, wire=wire)
    thoughts = [thought("hm", id="rs_1", encrypted_content="c2VjcmV0"), thought("", phase="commentary")]
    request = StepRequest(system="", history=[ask(), *step("a", *thoughts)], tools=[VIEW])
    sent = WIRES[endpoint.wire].prepare_request(endpoint, request, None).body
    assert b"rs_1" not in sent
    assert b"responses:" not in sent


def test_what_is_remembered_is_sent_in_the_same_bytes() -> None:
    cache = EncodedCache()
    history = [ask()]
    before = b""
    for i in range(10):
        history += step(f"call{i}", thought("", id=f"rs_{i}", encrypted_content="c2VjcmV0"))
        request = StepRequest(system="be brief", history=history, tools=[VIEW])
        sent = prepare_request(ENDPOINT, request, cache).body
        assert sent == prepare_request(ENDPOINT, request, None).body
        known = before[: before.index(b'],"reasoning"')] if before else b""
        assert sent.startswith(known)
        before = sent


@pytest.mark.slow
@given(history=histories())
@settings(max_examples=100)
def test_any_request_is_one_that_the_vendors_own_client_would_send(history: list[Message]) -> None:
    sent = body(history, effort="low", max_output_tokens=100)
    check_responses(sent["input"])
    assert _whole(_vendors_params().validate_python(sent)) == sent, "there is a field that the vendor does not know"
    assert json.loads(_as_the_sdk_sends(sent)) == sent


@cache
def _vendors_params() -> TypeAdapter[Any]:
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming  # late: it takes a second

    return TypeAdapter(ResponseCreateParamsStreaming)


def _whole(value: Any) -> Any:
    """What was validated, with what is validated only when it is asked for."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_whole(each) for each in cast("Iterable[Any]", value)]
    return value


def _as_the_sdk_sends(params: Any) -> bytes:
    """Return the body of the request that the vendor's client makes of these parameters."""
    import openai

    bodies: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.read())
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=b"")

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    client = openai.OpenAI(api_key="k", base_url="https://models.test/v1", max_retries=0, http_client=http)
    client.responses.create(**params).close()
    return bodies[0]

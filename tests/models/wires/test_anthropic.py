"""The wire of Anthropic Messages, without a network."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kedge.models.errors import ModelError, Refused, Transient
from kedge.models.values import (
    BlockEnd,
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
from kedge.models.wires.anthropic import AnthropicStream, prepare_listing, prepare_request
from kedge.models.wires.decoding import SseEvent
from kedge.models.wires.requests import EncodedCache
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

INFO = ModelInfo(reasoning=True, max_output_tokens=20_000)
ENDPOINT = Endpoint(
    provider="anthropic",
    model="claude-sonnet-4-5",
    base_url="http://models.test",
    api_key="sk-ant-secret",
    wire="anthropic",
    info=INFO,
)
VIEW = ToolSpec("view", "Reads a file.", {"type": "object"})
BASH = ToolSpec("bash", "Runs a command.", {"type": "object"})
MARK = {"cache_control": {"type": "ephemeral"}}
EMPTY = StepRequest(system="", history=[])


def message(role: Role, *parts: Part, model: str = "anthropic/claude") -> Message:
    said_by = model if role == "assistant" else None
    return Message(id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0, model=said_by)


def ask(text: str = "go") -> Message:
    return message("user", Text(text))


def step(call_id: str, *thoughts: Part) -> list[Message]:
    call = ToolCall(call_id, "view", '{"path": "a"}', True)
    return [
        message("assistant", *thoughts, call, Finish("tool_use")),
        message("tool", ToolResult(call_id, "view", "content", False)),
    ]


def body(
    history: list[Message], cache: EncodedCache | None = None, endpoint: Endpoint = ENDPOINT, **fields: Any
) -> Any:
    request = StepRequest(system="be brief", history=history, tools=[VIEW, BASH])
    return json.loads(prepare_request(endpoint, msgspec.structs.replace(request, **fields), cache).body)


def unmarked(value: Any) -> Any:
    return json.loads(json.dumps(value), object_hook=_without_mark)


def _without_mark(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != "cache_control"}


# to the provider


def test_a_request_has_the_key_and_the_version_in_its_headers_only() -> None:
    request = prepare_request(ENDPOINT, EMPTY)
    assert (request.method, request.url) == ("POST", "http://models.test/v1/messages")
    assert request.headers["x-api-key"] == "sk-ant-secret"
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "Authorization" not in request.headers
    assert b"secret" not in request.body
    assert "secret" not in repr(request)
    versioned = msgspec.structs.replace(ENDPOINT, base_url="http://models.test/anthropic/v1")
    assert prepare_request(versioned, EMPTY).url == "http://models.test/anthropic/v1/messages"
    assert prepare_listing(ENDPOINT).url.startswith("http://models.test/v1/models")


def test_the_whole_request_is_marked_for_the_cache_in_four_places() -> None:
    sent = body([ask(), *step("a"), *step("b"), *step("c")])
    assert sent["system"] == [{"type": "text", "text": "be brief", **MARK}]
    assert sent["tools"] == [
        {"name": "view", "description": "Reads a file.", "input_schema": {"type": "object"}},
        {"name": "bash", "description": "Runs a command.", "input_schema": {"type": "object"}, **MARK},
    ]
    marked = [i for i, each in enumerate(sent["messages"]) if "cache_control" in each["content"][-1]]
    assert marked == [4, 6]
    assert json.dumps(sent).count("cache_control") == 4


def test_what_is_remembered_is_sent_with_the_same_marks() -> None:
    cache = EncodedCache()
    history = [ask()]
    for i in range(8):
        history += step(f"call{i}")
        assert body(history, cache) == body(history)


def test_a_step_is_sent_as_it_was_and_the_marks_alone_move() -> None:
    before, after = body([ask(), *step("a")]), body([ask(), *step("a"), *step("b")])
    assert unmarked(after["messages"])[:3] == unmarked(before["messages"])


def test_results_come_first_in_the_message_that_a_prompt_joins() -> None:
    image = Image("image/png", b"png")
    history = [
        ask("one"),
        ask("two"),
        message("assistant", Text("so"), ToolCall("a", "view", "{}", True), ToolCall("b", "view", "", True)),
        message("tool", ToolResult("a", "view", "shown", False), image),
        message("tool", ToolResult("b", "view", "no such file", True)),
        ask("stop"),
    ]
    [first, answer, last] = unmarked(body(history)["messages"])
    assert [block["text"] for block in first["content"]] == ["one", "two"]
    assert answer["content"][1:] == [
        {"type": "tool_use", "id": "a", "name": "view", "input": {}},
        {"type": "tool_use", "id": "b", "name": "view", "input": {}},
    ]
    source = {"type": "base64", "media_type": "image/png", "data": "cG5n"}
    assert last["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "content": [{"type": "text", "text": "shown"}, {"type": "image", "source": source}],
        },
        {
            "type": "tool_result",
            "tool_use_id": "b",
            "content": [{"type": "text", "text": "no such file"}],
            "is_error": True,
        },
        {"type": "text", "text": "stop"},
    ]


def test_a_pdf_is_a_document_for_claude_and_told_of_to_others() -> None:
    history = [message("user", Text("read"), File("a.pdf", "application/pdf", b"%PDF"))]
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
    [_, sent] = unmarked(body(history)["messages"][0]["content"])
    assert sent == {"type": "document", "source": source, "title": "a.pdf"}
    another = msgspec.structs.replace(ENDPOINT, model="kimi-k3")
    blind = msgspec.structs.replace(ENDPOINT, info=ModelInfo(images=False))
    for endpoint in (another, blind):
        [_, sent] = body(history, endpoint=endpoint)["messages"][0]["content"]
        assert "a.pdf" in sent["text"]


def test_reasoning_goes_back_verbatim_and_only_here() -> None:
    thoughts = [Reasoning("hm ", "sig=="), Reasoning("", "data==", redacted=True)]
    [_, answer, _] = unmarked(body([ask(), *step("a", *thoughts)])["messages"])
    assert answer["content"][:2] == [
        {"type": "thinking", "thinking": "hm ", "signature": "sig=="},
        {"type": "redacted_thinking", "data": "data=="},
    ]
    elsewhere = msgspec.structs.replace(ENDPOINT, provider="proxy")
    [_, answer, _] = body([ask(), *step("a", *thoughts)], endpoint=elsewhere)["messages"]
    assert [block["type"] for block in answer["content"]] == ["tool_use"]


def test_max_tokens_is_always_said() -> None:
    unknown = msgspec.structs.replace(ENDPOINT, info=ModelInfo())
    assert body([ask()], max_output_tokens=5)["max_tokens"] == 5
    assert body([ask()])["max_tokens"] == 20_000
    assert body([ask()], endpoint=unknown)["max_tokens"] == 32_000


@pytest.mark.parametrize(
    ("model", "adaptive", "thinking"),
    [
        ("claude-3-7-sonnet-latest", False, "enabled"),
        ("claude-sonnet-4-20250514", False, "enabled"),
        ("claude-opus-4-1", False, "enabled"),
        ("claude-haiku-4-5-20251001", False, "enabled"),
        ("claude-opus-4-7", False, "adaptive"),
        ("claude-sonnet-5", False, "adaptive"),
        ("some-other-model", False, "enabled"),
        ("some-other-model", True, "adaptive"),
    ],
)
def test_a_model_is_told_to_think_as_it_understands_it(model: str, adaptive: bool, thinking: str) -> None:
    info = msgspec.structs.replace(INFO, adaptive_thinking=adaptive)
    target = msgspec.structs.replace(ENDPOINT, model=model, info=info)
    sent = body([ask()], endpoint=target, effort="high")
    assert sent["thinking"]["type"] == thinking
    if thinking == "enabled":
        assert 1024 <= sent["thinking"]["budget_tokens"] < sent["max_tokens"]
    else:
        assert sent["output_config"] == {"effort": "high"}
    assert "thinking" not in body([ask()], endpoint=target)
    mute = msgspec.structs.replace(target, info=ModelInfo())
    assert "thinking" not in body([ask()], endpoint=mute, effort="high")


def test_thinking_waits_for_a_prompt_where_a_turn_began_without_it() -> None:
    assert "thinking" not in body([ask(), *step("a")], effort="low")
    assert "thinking" in body([ask(), *step("a", Reasoning("hm", "sig"))], effort="low")
    assert "thinking" in body([ask(), *step("a"), message("assistant", Text("so")), ask()], effort="low")
    assert "thinking" not in body([ask()], effort="low", max_output_tokens=2000)


def test_someone_has_the_last_word() -> None:
    assert body([ask(), message("assistant", Text("hm"))])["messages"][-1]["role"] == "user"
    assert body([])["messages"][-1]["role"] == "user"


# from the provider


def event(name: str, **fields: Any) -> SseEvent:
    return SseEvent(json.dumps({"type": name, **fields}).encode(), name)


def start(index: int, **block: Any) -> SseEvent:
    return event("content_block_start", index=index, content_block=block)


def piece(index: int, **delta: Any) -> SseEvent:
    return event("content_block_delta", index=index, delta=delta)


def stop(index: int) -> SseEvent:
    return event("content_block_stop", index=index)


def read(*events: SseEvent, request: StepRequest = EMPTY) -> list[Delta]:
    stream = AnthropicStream(ENDPOINT, request)
    return [delta for each in events for delta in stream.parse_event(each)]


def test_blocks_become_deltas_of_their_own() -> None:
    assert read(
        start(0, type="thinking", thinking="", signature=""),
        piece(0, type="thinking_delta", thinking="hm"),
        piece(0, type="signature_delta", signature="sig"),
        stop(0),
        start(1, type="redacted_thinking", data="data"),
        stop(1),
        start(2, type="text", text=""),
        piece(2, type="text_delta", text="hi"),
        stop(2),
        start(3, type="tool_use", id="a", name="view", input={}),
        piece(3, type="input_json_delta", partial_json=""),
        piece(3, type="input_json_delta", partial_json='{"path": 1}'),
        stop(3),
    ) == [
        ReasoningDelta("hm", "0"),
        ReasoningDelta("", "0", "sig"),
        BlockEnd("0"),
        ReasoningDelta("", "1", "data", redacted=True),
        BlockEnd("1"),
        TextDelta("hi", "2"),
        BlockEnd("2"),
        ToolCallDelta("3", "a", "view"),
        ToolCallDelta("3", input='{"path": 1}'),
        BlockEnd("3"),
    ]


@pytest.mark.parametrize("given", [{}, {"path": "a"}, None])
def test_a_call_whose_input_came_at_once_or_not_at_all_is_whole(given: Any) -> None:
    deltas = read(start(0, type="tool_use", id="a", name="view", input=given), stop(0))
    assert deltas[1:] == [ToolCallDelta("0", input=json.dumps(given or {}, separators=(",", ":"))), BlockEnd("0")]


def test_usage_is_told_as_it_becomes_known() -> None:
    usage = {"input_tokens": 3, "cache_creation_input_tokens": 4, "cache_read_input_tokens": 5, "output_tokens": 1}
    told = read(
        event("message_start", message={"usage": usage}),
        event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}),
        event("message_stop"),
    )
    assert told == [
        UsageReport(input_tokens=3, output_tokens=1, cache_read_tokens=5, cache_write_tokens=4),
        UsageReport(output_tokens=9),
        StepEnd("end_turn"),
        StreamEnd(),
    ]


@pytest.mark.parametrize(
    "usage",
    [None, [], "many", {"input_tokens": "1"}, {"output_tokens": -1}, {"input_tokens": 1.5}, {"output_tokens": 10**30}],
)
def test_a_wrong_count_does_not_cost_a_good_answer(usage: Any) -> None:
    assert read(event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage)) == [StepEnd("end_turn")]


@pytest.mark.parametrize(
    ("cache", "reason"),
    [
        ("end_turn", "end_turn"),
        ("stop_sequence", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("model_context_window_exceeded", "max_tokens"),
        ("tool_use", "tool_use"),
        ("refusal", "content_filter"),
        ("pause_turn", "unknown"),
        ("something new", "unknown"),
    ],
)
def test_stop_reasons_are_mapped(cache: str, reason: FinishReason) -> None:
    assert read(event("message_delta", delta={"stop_reason": cache}, usage={})) == [StepEnd(reason)]


@pytest.mark.parametrize(
    "unknown",
    [
        event("ping"),
        event("message_unheard_of", delta={"text": "not the answer"}),
        start(0, type="server_tool_use", id="x", name="web_search", input={}),
        piece(0, type="citations_delta", citation={}),
        piece(7, type="input_json_delta", partial_json="{}"),
        stop(9),
        SseEvent(b"{}"),
        SseEvent(b'{"type": "message_start", "message": {"content": [], "new": [1, {}]}}'),
    ],
)
def test_what_is_unknown_is_passed_over(unknown: SseEvent) -> None:
    assert read(unknown) == []


def test_a_server_that_does_not_name_its_events_is_understood() -> None:
    assert read(SseEvent(piece(0, type="text_delta", text="hi").data)) == [TextDelta("hi", "0")]
    assert read(SseEvent(b"[DONE]")) == [StreamEnd()]


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, Transient, "provider_error"),
        ({"type": "api_error", "message": "internal"}, Transient, "provider_error"),
        ({"type": "rate_limit_error", "message": "slow down"}, Transient, "rate_limited"),
        ({"type": "authentication_error", "message": "no"}, Refused, "auth"),
        ({"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}, Refused, "context_too_long"),
    ],
)
def test_an_error_in_the_middle_of_a_stream_is_told(error: Any, kind: type[ModelError], code: str) -> None:
    for name in ("error", ""):
        told = SseEvent(json.dumps({"type": "error", "error": error}).encode(), name)
        with pytest.raises(kind) as caught:
            read(told)
        assert caught.value.code == code


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"type": "content_block_delta", "delta": {"type": "text_delta", "text": 42}}',
        b'{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "\xf0\x9f"}}',
        b'{"type": "content_block_delta", "delta": "text"}',
    ],
)
def test_what_is_malformed_is_a_clear_failure(data: bytes) -> None:
    with pytest.raises(Refused, match="malformed"):
        read(SseEvent(data, "content_block_delta"))


def test_halves_of_a_surrogate_pair_pass_through_for_the_writer_to_join() -> None:
    half = rb'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\ud83d"}}'
    assert read(SseEvent(half)) == [TextDelta("a\ud83d", "0")]

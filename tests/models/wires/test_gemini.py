"""The wire of Google's Gemini, outwards, without a network."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from kedge.models.errors import Refused
from kedge.models.values import Endpoint, ModelInfo, StepRequest, ToolSpec
from kedge.models.wires import gemini
from kedge.models.wires.gemini import NOT_SIGNED, next_listing, parse_listing, prepare_listing, prepare_request
from kedge.models.wires.history import GO_ON
from kedge.models.wires.requests import EncodedCache
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
from tests.models.wires.vendors import check_gemini

LATER, OLDER = "gemini-3.8-flash", "gemini-2.5-pro"
INFO = ModelInfo(reasoning=True, max_output_tokens=20_000)
ENDPOINT = Endpoint(
    provider="gemini", model=LATER, base_url="http://models.test", api_key="AIza-secret", wire="gemini", info=INFO
)
VIEW = ToolSpec("view", "Reads a file.", {"type": "object", "additionalProperties": False})
EMPTY = StepRequest(system="", history=[])
models = pytest.mark.parametrize("model", [LATER, OLDER])


def message(role: Role, *parts: Part, model: str = f"gemini/{LATER}") -> Message:
    said_by = model if role == "assistant" else None
    return Message(id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0, model=said_by)


def ask(text: str = "go") -> Message:
    return message("user", Text(text))


def call(call_id: str) -> ToolCall:
    return ToolCall(call_id, "view", '{"path": "a"}', True)


def result(call_id: str, content: str = "content", *images: Image, is_error: bool = False) -> Message:
    return message("tool", ToolResult(call_id, "view", content, is_error), *images)


def kept(kind: str, signature: str) -> Reasoning:
    return Reasoning("", gemini.mark(kind, signature))


def at(model: str, **fields: Any) -> Endpoint:
    return msgspec.structs.replace(ENDPOINT, model=model, **fields)


def body(
    history: list[Message], cache: EncodedCache | None = None, endpoint: Endpoint = ENDPOINT, **fields: Any
) -> Any:
    request = StepRequest(system="be brief", history=history, tools=[VIEW])
    return json.loads(prepare_request(endpoint, msgspec.structs.replace(request, **fields), cache).body)


def answers(history: list[Message], endpoint: Endpoint = ENDPOINT) -> list[list[Any]]:
    return [content["parts"] for content in body(history, endpoint=endpoint)["contents"] if content["role"] == "model"]


# to the provider


def test_a_request_has_the_key_in_a_header_only() -> None:
    request = prepare_request(ENDPOINT, EMPTY)
    assert request.method == "POST"
    assert request.url == f"http://models.test/v1beta/models/{LATER}:streamGenerateContent?alt=sse"
    assert request.headers["x-goog-api-key"] == "AIza-secret"
    assert "Authorization" not in request.headers
    assert "secret" not in request.url + repr(request)
    assert b"secret" not in request.body
    assert "secret" not in prepare_listing(ENDPOINT).url


@pytest.mark.parametrize(
    ("base_url", "model", "path"),
    [
        ("http://h/v1beta", "m", "/v1beta/models/m:"),
        ("http://h/google/v1", "m", "/google/v1/models/m:"),
        ("http://h", "models/m", "/v1beta/models/m:"),
        ("http://h", "tunedModels/mine", "/v1beta/tunedModels/mine:"),
        ("http://h", "a b?c#d", "/v1beta/models/a%20b%3Fc%23d:"),
    ],
)
def test_an_address_may_have_a_version_and_a_name_its_kind(base_url: str, model: str, path: str) -> None:
    url = prepare_request(at(model, base_url=base_url), EMPTY).url
    assert url == f"http://h{path}streamGenerateContent?alt=sse"


def test_a_request_says_what_changes_least_first() -> None:
    sent = body([ask()], max_output_tokens=7)
    assert list(sent) == ["systemInstruction", "tools", "generationConfig", "contents"]
    assert sent["systemInstruction"] == {"parts": [{"text": "be brief"}]}
    [tool] = sent["tools"]
    assert tool["functionDeclarations"] == [
        {"name": "view", "description": "Reads a file.", "parametersJsonSchema": VIEW.input_schema}
    ]
    assert sent["generationConfig"]["maxOutputTokens"] == 7
    assert sent["contents"] == [{"role": "user", "parts": [{"text": "go"}]}]
    bare = body([ask()], system="", tools=[], endpoint=at("unknown", info=ModelInfo()))
    assert list(bare) == ["contents"]


DEFAULT = ModelInfo().efforts


@pytest.mark.parametrize(
    ("model", "effort", "known", "told"),
    [
        (LATER, "high", DEFAULT, {"thinkingLevel": "HIGH"}),
        (LATER, "minimal", ("low", "high"), {"thinkingLevel": "LOW"}),
        (LATER, None, ("low", "high"), {}),
        ("gemini-flash-latest", "low", DEFAULT, {"thinkingLevel": "LOW"}),
        (OLDER, "high", DEFAULT, {"thinkingBudget": 24_576}),
        (OLDER, "minimal", DEFAULT, {"thinkingBudget": 1024}),
        (LATER, "max", ("high", "max"), {"thinkingLevel": "HIGH"}),
        (OLDER, "max", ("high", "max"), {"thinkingBudget": 24_576}),
    ],
)
def test_a_model_is_told_to_think_as_it_understands_it(model: str, effort: Any, known: Any, told: Any) -> None:
    endpoint = at(model, info=ModelInfo(reasoning=True, efforts=known))
    sent = body([ask()], endpoint=endpoint, effort=effort)
    assert sent["generationConfig"]["thinkingConfig"] == {"includeThoughts": True, **told}
    assert "generationConfig" not in body([ask()], endpoint=at(model, info=ModelInfo()), effort=effort)


def test_the_configuration_has_the_last_word() -> None:
    endpoint = at(LATER, extra_body={"safetySettings": [], "tools": None}, headers={"X-Goog-Api-Key": "mine"})
    request = prepare_request(endpoint, StepRequest(system="", history=[], tools=[VIEW]))
    assert json.loads(request.body)["safetySettings"] == []
    assert "tools" not in json.loads(request.body)
    assert "AIza-secret" not in request.headers.values()


def test_results_of_calls_side_by_side_are_one_content_in_their_order() -> None:
    image = Image("image/png", b"png")
    history = [
        ask(),
        message("assistant", Text("so"), call("a"), call("b"), Finish("tool_use")),
        result("b", "no such file", is_error=True),
        result("a", "shown", image),
        ask("stop"),
    ]
    [_, answer, results, last] = body(history)["contents"]
    assert [part.get("functionCall") for part in answer["parts"][1:]] == [
        {"id": name, "name": "view", "args": {"path": "a"}} for name in ("a", "b")
    ]
    inline = {"inlineData": {"mimeType": "image/png", "data": "cG5n"}}
    assert results == {
        "role": "user",
        "parts": [
            {"functionResponse": {"id": "a", "name": "view", "response": {"output": "shown"}, "parts": [inline]}},
            {"functionResponse": {"id": "b", "name": "view", "response": {"error": "no such file"}}},
        ],
    }
    assert last == {"role": "user", "parts": [{"text": "stop"}]}
    [_, _, older, images, _] = body(history, endpoint=at(OLDER))["contents"]
    assert all("parts" not in part["functionResponse"] for part in older["parts"])
    assert images["parts"][1:] == [inline]


def test_images_and_documents_go_along_and_what_cannot_be_read_is_named() -> None:
    prompt = message(
        "user",
        Text("look"),
        Image("image/webp", b"w"),
        Image("image/gif", b"g"),
        File("a.pdf", "application/pdf", b"%PDF"),
        File("a.zip", "application/zip", b"zip"),
    )
    parts = body([prompt])["contents"][0]["parts"]
    kinds = [part.get("inlineData", {}).get("mimeType", "text") for part in parts]
    assert kinds == ["text", "image/webp", "text", "application/pdf", "text"]
    assert "image/gif" in parts[2]["text"]
    blind = body([prompt], endpoint=at(LATER, info=ModelInfo(images=False)))["contents"][0]["parts"]
    assert all("text" in part for part in blind)


def test_each_signature_goes_back_on_the_part_that_it_came_with() -> None:
    parts = [
        Reasoning("hm", gemini.mark("thought", "c2ln1==")),
        Text("hello world"),
        kept("text-5", "c2ln2=="),
        kept("text-0", "c2ln3=="),
        kept("call", "c2ln4=="),
        call("a"),
        call("b"),
    ]
    [[thought, hello, world, empty, first, second]] = answers([ask(), message("assistant", *parts)])
    assert thought == {"text": "hm", "thought": True, "thoughtSignature": "c2ln1=="}
    assert hello == {"text": "hello "}
    assert world == {"text": "world", "thoughtSignature": "c2ln2=="}
    assert empty == {"text": "", "thoughtSignature": "c2ln3=="}
    assert first["thoughtSignature"] == "c2ln4=="
    assert "thoughtSignature" not in second


def test_the_signature_at_the_end_of_an_answer_is_kept() -> None:
    history = [ask(), message("assistant", Text("so"), kept("text-2", "c2ln"), Finish("end_turn")), ask()]
    assert answers(history) == [[{"text": "so", "thoughtSignature": "c2ln"}]]


def test_a_signature_whose_text_is_gone_is_on_an_empty_part() -> None:
    for size in (1, 99):
        history = [ask(), message("assistant", Text(" "), kept(f"text-{size}", "c2ln"), call("a"))]
        assert answers(history)[0][0] == {"text": "", "thoughtSignature": "c2ln"}


@pytest.mark.parametrize("who", ["anthropic/claude", "gemma/gemini-3.8-flash", f"gemini/{OLDER}"])
def test_what_another_signed_is_left_out_and_its_calls_are_admitted(who: str) -> None:
    parts = [Reasoning("hm", "sig"), Text("so"), kept("text-2", "c2ln"), kept("call", "c2ln"), call("a"), call("b")]
    [[text, first, second]] = answers([ask(), message("assistant", *parts, model=who)])
    assert text == {"text": "so"}
    assert first["thoughtSignature"] == NOT_SIGNED
    assert "thoughtSignature" not in second


def test_a_model_that_wants_no_signatures_gets_none_but_its_own() -> None:
    later = message("assistant", kept("call", "c2ln"), call("a"), model=f"gemini/{LATER}")
    older = message("assistant", kept("call", "b2xk"), call("b"), model=f"gemini/{OLDER}")
    first, second = answers([ask(), later, result("a"), older, result("b")], endpoint=at(OLDER))
    assert [part.get("thoughtSignature") for part in (*first, *second)] == [None, "b2xk"]


def test_a_signature_of_another_wire_of_the_same_provider_is_left_out() -> None:
    signatures = ["reasoning_content", '0:extra_content:{"google": 1}', 'responses:{"id": "a"}', "gemini:what:x"]
    parts = [Reasoning("hm", signature) for signature in signatures]
    [[only]] = answers([ask(), message("assistant", *parts, call("a"))])
    assert only["thoughtSignature"] == NOT_SIGNED


def test_without_tools_calls_are_told_in_words() -> None:
    history = [ask(), message("assistant", kept("call", "c2ln"), call("a")), result("a")]
    contents = body(history, tools=[])["contents"]
    check_gemini(contents, has_tools=False)
    assert "c2ln" not in json.dumps(contents)


def test_someone_has_the_last_word() -> None:
    go_on = {"role": "user", "parts": [{"text": GO_ON}]}
    assert body([ask(), message("assistant", Text("hm"))])["contents"][-1] == go_on
    assert body([])["contents"] == [go_on]


@models
def test_ten_requests_begin_with_the_bytes_of_the_one_before(model: str) -> None:
    """The provider's cache holds for all that was cache before."""
    history, cache, before = [ask()], EncodedCache(), b""
    for i in range(10):
        request = StepRequest(system="be brief", history=history, tools=[VIEW], effort="low")
        sent = prepare_request(at(model), request, cache).body
        assert sent == prepare_request(at(model), request).body
        assert sent.startswith(before.removesuffix(b"]}"))
        before = sent
        who = "anthropic/claude" if i % 3 == 1 else f"gemini/{model}"
        parts = [Text(f"step {i}"), kept("text-1", "c2ln"), kept("call", "c2ln"), call(f"c{i}"), call(f"d{i}")]
        image = Image("image/png", b"png")
        history = [*history, message("assistant", *parts, model=who), result(f"d{i}"), result(f"c{i}", "seen", image)]


@models
@given(history=histories())
@settings(max_examples=80)
def test_any_history_is_accepted_and_sent_as_if_nothing_were_remembered(model: str, history: list[Message]) -> None:
    endpoint, cache = at(model), EncodedCache()
    for end in (len(history) // 2, len(history)):
        contents = body(history[:end], endpoint=endpoint)["contents"]
        check_gemini(contents, is_later=model == LATER)
        assert body(history[:end], cache, endpoint)["contents"] == contents


# the list of models


def test_the_list_of_models_is_read_page_by_page() -> None:
    models = [
        {"name": "models/gemini-a", "supportedGenerationMethods": ["generateContent", "countTokens"]},
        {"name": "models/embedder", "supportedGenerationMethods": ["embedContent"]},
        {"name": "tunedModels/mine"},
    ]
    page = json.dumps({"models": models, "nextPageToken": "a&b=c"}).encode()
    assert parse_listing(page) == ["gemini-a", "tunedModels/mine"]
    asked = prepare_listing(ENDPOINT)
    following = next_listing(asked, page)
    assert following is not None
    assert following.url == "http://models.test/v1beta/models?pageSize=1000&pageToken=a%26b%3Dc"
    assert following.headers == asked.headers
    assert next_listing(following, b'{"models": []}') is None
    with pytest.raises(Refused, match="cannot be read"):
        parse_listing(b"<html>")

"""Google's own SDK reads the streams that we read, and understands the same; and it sends what we send.

On purpose we differ from it where a line is no event: it stumbles over comments, and over line ends of Unicode in the
middle of a text, and takes a stream that just stops for an answer (`test_client`).
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kedge.models.errors import ModelError
from kedge.models.values import (
    BlockEnd,
    Delta,
    Endpoint,
    HttpRequest,
    ModelInfo,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    TextDelta,
    ToolCallDelta,
    ToolSpec,
    UsageReport,
)
from kedge.models.wires import gemini
from kedge.models.wires.decoding import SseReader
from kedge.models.wires.gemini import GeminiStream
from kedge.models.wires.history import Abilities, EncodingState
from kedge.protocol.messages import FinishReason, Message, Part, Reasoning, Text, ToolCall
from tests.models.wires.conversations import histories
from tests.models.wires.gemini_streams import Json, cut, cuts, streams
from tests.support.model_gemini import GeminiWire
from tests.support.model_plan import Plan, PlannedCall

if TYPE_CHECKING:
    from google import genai
    from google.genai import types

pytestmark = pytest.mark.slow

MODEL = "gemini-3.8-flash"
ENDPOINT = Endpoint(
    provider="gemini",
    model=MODEL,
    base_url="http://models.test",
    api_key="k",
    wire="gemini",
    info=ModelInfo(reasoning=True, max_output_tokens=1000),
)
REASONS: dict[str, FinishReason] = {
    "STOP": "end_turn",
    "MAX_TOKENS": "max_tokens",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "OTHER": "unknown",
}
Piece = tuple[str, Any, str]  # the kind of a part, what it says, its signature


@dataclasses.dataclass
class Decoded:
    """The content of a decoded stream; `parts` is sent back with the history."""

    text: str = ""
    thoughts: str = ""
    calls: list[tuple[str, str, Any]] = dataclasses.field(default_factory=list[tuple[str, str, Any]])
    usage: tuple[int, int, int] = (0, 0, 0)  # input, output, read from the cache
    reason: FinishReason | None = None
    is_broken: bool = False
    parts: list[Piece] = dataclasses.field(default_factory=list[Piece])


# we


def decode(chunks: Iterable[bytes]) -> Decoded:
    stream, reader, found = GeminiStream(ENDPOINT, StepRequest(system="", history=[])), SseReader(), Decoded()
    deltas: list[Delta] = []
    try:
        for event in (event for chunk in chunks for event in reader.feed(chunk)):
            deltas += stream.parse_event(event)
    except ModelError:
        found.is_broken = True
    for delta in deltas:
        match delta:
            case UsageReport():
                found.usage = (delta.input_tokens or 0, delta.output_tokens or 0, delta.cache_read_tokens or 0)
            case StepEnd(reason):
                found.reason = reason
            case _:
                pass
    answer = parts_of(deltas)
    found.text = "".join(part.text for part in answer if isinstance(part, Text))
    found.thoughts = "".join(part.text for part in answer if isinstance(part, Reasoning))
    found.calls = [(part.id, part.name, json.loads(part.input)) for part in answer if isinstance(part, ToolCall)]
    found.parts = joined(piece for part in sent_back(answer) if (piece := piece_of(part)))
    return found


def parts_of(deltas: list[Delta]) -> list[Part]:
    """The message that the deltas write."""
    parts: dict[str, Part] = {}
    ended: set[str] = set()
    for delta in deltas:
        if isinstance(delta, TextDelta | ReasoningDelta | ToolCallDelta):
            assert delta.block not in ended, "a piece of a part that had ended"
        match delta:
            case TextDelta(text, block):
                known = parts.get(block, Text(""))
                assert isinstance(known, Text)
                parts[block] = Text(known.text + text)
            case ReasoningDelta(text, block, signature, redacted):
                known = parts.get(block, Reasoning("", "", redacted))
                assert isinstance(known, Reasoning)
                parts[block] = Reasoning(known.text + text, (known.signature or "") + signature, redacted)
            case ToolCallDelta(block, call_id, name, given):
                parts[block] = ToolCall(call_id, name, given, True)
            case BlockEnd(block):
                ended.add(block)
            case _:
                pass
    return list(parts.values())


def sent_back(answer: list[Part]) -> list[Json]:
    message = Message(
        id="m", session_id="s", run_id="r", role="assistant", parts=answer, created_at=0.0, model=f"gemini/{MODEL}"
    )
    able = Abilities(provider="gemini", trailing_reasoning=True)
    contents = gemini.encode([message], able, EncodingState())
    return [part for content in contents if content["role"] == "model" for part in content["parts"]]


def piece_of(part: Json) -> Piece | None:
    signature = part.get("thoughtSignature", "")
    if "functionCall" in part:
        call = part["functionCall"]
        return "call", call["name"], "" if signature == gemini.NOT_SIGNED else signature
    return "thought" if part.get("thought") else "text", part["text"], signature


# they


@cache
def _sdk() -> tuple[genai.Client, list[httpx2.Request], list[Any]]:
    """Return a client, the requests that it sends, and the answers that it will get."""
    from google import genai  # imported by the worker that runs this: it takes a second
    from google.genai import types

    sent: list[httpx2.Request] = []
    answers: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        told = answers.pop(0)
        if isinstance(told, dict):
            return httpx2.Response(200, json=told)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=iter(told))

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    options = types.HttpOptions(httpx_client=http, base_url="http://models.test", api_version="v1beta")
    return genai.Client(api_key="k", http_options=options), sent, answers


def decode_with_google(chunks: list[bytes]) -> Decoded:
    from google.genai import errors

    client, _, answers = _sdk()
    answers[:] = [chunks]
    found, counts, pieces = Decoded(), dict[str, int](), list[Piece]()
    try:
        for response in client.models.generate_content_stream(model=MODEL, contents="x"):
            if response.usage_metadata is not None:
                told = response.usage_metadata.model_dump(exclude_none=True)
                counts |= {name: count for name, count in told.items() if isinstance(count, int)}
            for candidate in response.candidates or []:
                for part in (candidate.content and candidate.content.parts) or []:
                    _add(found, pieces, part)
                if candidate.finish_reason is not None:
                    found.reason = REASONS[candidate.finish_reason.value]
    except errors.APIError:
        found.is_broken = True
    if found.calls and found.reason in ("end_turn", "unknown"):
        found.reason = "tool_use"  # the wire has no word for it
    read = counts.get("cached_content_token_count", 0)
    written = counts.get("candidates_token_count", 0) + counts.get("thoughts_token_count", 0)
    found.usage = (counts.get("prompt_token_count", 0) - read, written, read)
    found.parts = joined(pieces)
    return found


def _add(found: Decoded, pieces: list[Piece], part: types.Part) -> None:
    signature = base64.b64encode(part.thought_signature or b"").decode()
    if (call := part.function_call) is not None:
        found.calls.append((call.id or "", call.name or "", call.args or {}))
        pieces.append(("call", call.name, signature))
    elif part.text is not None and part.thought:
        found.thoughts += part.text
        pieces.append(("thought", part.text, signature))
    elif part.text is not None:
        found.text += part.text
        pieces.append(("text", part.text, signature))


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """What nobody signed has no bounds: thoughts that need not go back are left out, and texts are one."""
    made: list[Piece] = []
    for kind, said, signature in pieces:
        if kind == "text" and not signature and made and made[-1][0] == "text" and not made[-1][2]:
            made[-1] = ("text", made[-1][1] + said, "")
        elif kind == "call" or signature or (kind == "text" and said):
            made.append((kind, said, signature))
    return made


# the streams


def says_something(found: Decoded) -> bool:
    """Of an answer of thoughts alone nothing goes back."""
    return bool(found.text or found.calls)


@given(stream=streams(), data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_any_stream_is_understood_as_the_vendor_does_and_goes_back_as_it_came(
    stream: bytes, data: st.DataObject
) -> None:
    chunks = cut(stream, data.draw(cuts(len(stream))))
    ours, theirs = decode(chunks), decode_with_google([stream])
    if not says_something(theirs):
        theirs.parts = ours.parts
    assert ours == theirs


@given(stream=streams(), data=st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_said_before_an_error_is_understood_as_the_vendor_does(stream: bytes, data: st.DataObject) -> None:
    said = b"".join(stream.splitlines(keepends=True)[:-2])  # without the last chunk
    stream = said + b'data: {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}\n\n'
    chunks = cut(stream, data.draw(cuts(len(stream))))
    ours, theirs = decode(chunks), decode_with_google([stream])
    assert ours.is_broken
    if not says_something(theirs):
        theirs.parts = ours.parts
    assert ours == theirs


RICH = Plan(
    text="héllo 😀 ",
    piece=2,
    reasoning="hm 😀",
    signature="c2ln",
    tool_calls=(PlannedCall("view", {"path": "ä/😀"}), PlannedCall("bash", {"command": "ls", "n": [1, 2.5, None]})),
    cache_read_tokens=5,
    raw=True,
    crlf=True,
)


@pytest.mark.parametrize("plan", [RICH, dataclasses.replace(RICH, tool_calls=(), raw=False, crlf=False)])
def test_a_cut_at_every_byte_changes_nothing(plan: Plan) -> None:
    stream = b"".join(frame.data for frame in GeminiWire().frames(plan, MODEL, "call-1"))
    theirs = decode_with_google([stream])
    assert theirs.text == plan.text
    assert [signature for _, _, signature in theirs.parts if signature] == ["c2ln"]
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == theirs
    for at in range(len(stream) + 1):
        assert decode([stream[:at], stream[at:]]) == theirs


# the requests

SCHEMA: Json = {
    "type": "object",
    "properties": {"path": {"type": ["string", "null"]}, "all": {"anyOf": [{"const": 1}, {"$ref": "#/$defs/a"}]}},
    "$defs": {"a": {"type": "boolean"}},
    "additionalProperties": False,
    "required": ["path"],
}


def our_request(history: list[Message]) -> HttpRequest:
    tools = [ToolSpec("view", "Reads.", SCHEMA), ToolSpec("bash", "Runs.", {"type": "object"})]
    request = StepRequest(system="be brief", history=history, tools=tools, effort="low", max_output_tokens=7)
    return gemini.prepare_request(ENDPOINT, request)


def parsed(body: Json) -> Json:
    """Return a body with the SDK's own types, which refuse unknown fields."""
    from google.genai import types

    return {
        **body,
        "contents": [types.Content.model_validate(content) for content in body["contents"]],
        "systemInstruction": types.Content.model_validate(body["systemInstruction"]).parts,
        "tools": [types.Tool.model_validate(tool) for tool in body["tools"]],
        "generationConfig": types.GenerationConfig.model_validate(body["generationConfig"]),
    }


@given(history=histories())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_a_request_is_the_one_that_the_vendor_sends_for_the_same(history: list[Message]) -> None:
    from google.genai import types

    ours = our_request(history)
    body = json.loads(ours.body)
    assume(len(ours.body) < 1_000_000)
    known = parsed(body)
    client, sent, answers = _sdk()
    answers[:] = [[b'data: {"candidates": [{"finishReason": "STOP"}]}\n\n']]
    tools = [
        types.FunctionDeclaration(name="view", description="Reads.", parameters_json_schema=SCHEMA),
        types.FunctionDeclaration(name="bash", description="Runs.", parameters_json_schema={"type": "object"}),
    ]
    config = types.GenerateContentConfig(
        system_instruction="be brief",
        tools=[types.Tool(function_declarations=tools)],
        max_output_tokens=7,
        thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_level=types.ThinkingLevel.LOW),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    list(client.models.generate_content_stream(model=MODEL, contents=known["contents"], config=config))
    theirs = sent[-1]
    assert ours.url == str(theirs.url)
    assert ours.headers["x-goog-api-key"] == theirs.headers["x-goog-api-key"]
    assert known == parsed(json.loads(theirs.content))


def test_the_list_of_models_is_the_one_that_the_vendor_reads() -> None:
    names = ["gemini-a", "gemini-b", "gemini-c"]
    models = [{"name": f"models/{name}", "supportedGenerationMethods": ["generateContent"]} for name in names]
    pages: list[Json] = [{"models": models[:2], "nextPageToken": "a b"}, {"models": models[2:]}]
    client, sent, answers = _sdk()
    answers[:] = pages
    theirs = [model.name for model in client.models.list(config={"page_size": gemini.PAGE_SIZE})]
    asked: HttpRequest | None = gemini.prepare_listing(ENDPOINT)
    ours: list[str] = []
    urls: list[str] = []
    for page in pages:
        assert asked is not None
        urls.append(asked.url)
        data = json.dumps(page).encode()
        ours += gemini.parse_listing(data)
        asked = gemini.next_listing(asked, data)
    assert asked is None
    assert [f"models/{name}" for name in ours] == theirs
    assert [dict(httpx2.URL(url).params) for url in urls] == [dict(each.url.params) for each in sent[-2:]]

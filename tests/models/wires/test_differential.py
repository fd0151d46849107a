"""The vendors' own SDKs read the streams that we read, and understand the same.

On purpose we differ from them where a server is at fault, and `tests/models` says so beside each wire: we take calls
without numbers or ids, whole events without a name, and an input that came with its block's start; a call without any
input is `{}` for us; and a stream that just stops was dropped (`test_client`), where the SDKs take it for an answer.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.config.schema import WireName
from kedge.models.errors import ModelError
from kedge.models.values import (
    BlockEnd,
    Endpoint,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from kedge.models.wires.decoding import SseEvent, SseReader
from kedge.models.wires.registry import WIRES
from kedge.models.wires.responses import Mark
from kedge.protocol.messages import FinishReason, replace_surrogates
from tests.support.model_anthropic import AnthropicWire
from tests.support.model_chat import ChatWire
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_responses import ResponsesWire

if TYPE_CHECKING:
    from openai.types.responses import Response, ResponseOutputItem

pytestmark = pytest.mark.slow

SERVERS = {"chat": ChatWire(), "responses": ResponsesWire(), "anthropic": AnthropicWire()}
wires = pytest.mark.parametrize("wire", list(SERVERS))


@dataclasses.dataclass
class Decoded:
    """The content of a decoded stream."""

    text: str = ""
    thoughts: list[tuple[str, str, bool]] = dataclasses.field(default_factory=list[tuple[str, str, bool]])
    calls: list[tuple[str, str, Any]] = dataclasses.field(default_factory=list[tuple[str, str, Any]])
    usage: tuple[int, int, int, int] = (0, 0, 0, 0)  # input, output, read from the cache, written to it
    reason: FinishReason | None = None
    is_broken: bool = False


# we


def decode(wire: WireName, chunks: Iterable[bytes]) -> Decoded:
    endpoint = Endpoint(provider="p", model="m", base_url="http://models.test", wire=wire)
    stream, reader = WIRES[wire].stream(endpoint, StepRequest(system="", history=[])), SseReader()
    found, blocks, inputs = Decoded(), dict[str, list[str | bool]](), dict[str, list[str]]()
    counts: dict[str, int] = {}
    ended: set[str] = set()
    try:
        for event in (event for chunk in chunks for event in reader.feed(chunk)):
            for delta in stream.parse_event(event):
                if isinstance(delta, TextDelta | ReasoningDelta | ToolCallDelta):
                    assert delta.block not in ended, "a piece of a part that had ended"
                match delta:
                    case TextDelta(text):
                        found.text += text
                    case ReasoningDelta(text, block, signature, redacted):
                        known = blocks.setdefault(block, ["", "", redacted])
                        known[0], known[1] = f"{known[0]}{text}", f"{known[1]}{signature}"
                    case ToolCallDelta(block, call_id, name, text):
                        pieces = inputs.setdefault(block, [call_id, name, ""])
                        pieces[2] += text
                    case UsageReport():
                        told = {name: getattr(delta, name) for name in delta.__struct_fields__ if name != "cost"}
                        counts |= {name: count for name, count in told.items() if count is not None}
                    case StepEnd(reason):
                        found.reason = reason
                    case BlockEnd(block):
                        ended.add(block)
                    case StreamEnd():
                        pass
    except ModelError:
        found.is_broken = True
    found.text = replace_surrogates(found.text)
    found.thoughts = [(str(text), str(signature), bool(redacted)) for text, signature, redacted in blocks.values()]
    found.calls = [(call_id, name, _json(given)) for call_id, name, given in inputs.values()]
    found.usage = (
        counts.get("input_tokens", 0),
        counts.get("output_tokens", 0),
        counts.get("cache_read_tokens", 0),
        counts.get("cache_write_tokens", 0),
    )
    return found


# they


def decode_with_openai(chunks: list[bytes]) -> Decoded:
    import openai  # imported by the worker that runs this: it takes a second

    reasons: dict[str, FinishReason] = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "content_filter",
    }
    client = openai.OpenAI(api_key="k", base_url="http://models.test/v1", max_retries=0, http_client=_http(chunks))
    found = Decoded()
    with client.chat.completions.stream(model="m", messages=[]) as stream:
        try:
            for _ in stream:
                pass
        except openai.APIError:
            found.is_broken = True
        snapshot = stream.current_completion_snapshot
    choice = snapshot.choices[0]
    found.text = replace_surrogates((choice.message.content or "") + (choice.message.refusal or ""))
    if thought := (choice.message.model_extra or {}).get("reasoning_content"):
        found.thoughts = [(thought, "reasoning_content", False)]  # we note the field, to send it back in it
    for call in choice.message.tool_calls or []:
        found.calls.append((call.id, call.function.name, _json(call.function.arguments or "{}")))
    if (usage := snapshot.usage) is not None:
        cached = (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0
        found.usage = (usage.prompt_tokens - cached, usage.completion_tokens, cached, 0)
    if choice.finish_reason:
        found.reason = reasons[choice.finish_reason]
    return found


def decode_with_openai_responses(chunks: list[bytes]) -> Decoded:
    import openai

    client = openai.OpenAI(api_key="k", base_url="http://models.test/v1", max_retries=0, http_client=_http(chunks))
    found = Decoded()
    output: list[ResponseOutputItem] = []  # of an answer that broke off
    response: Response | None = None
    with client.responses.stream(model="m", input=[]) as stream:
        try:
            for event in stream:
                if event.type in ("error", "response.failed"):
                    found.is_broken = True
                elif event.type == "response.completed" or event.type == "response.incomplete":
                    response = event.response
                elif event.type == "response.output_item.done":
                    output.append(event.item)
        except openai.APIError:
            found.is_broken = True
    for item in response.output if response else output:
        match item.type:
            case "message":
                if item.phase:
                    found.thoughts.append(("", Mark(phase=item.phase).signature, False))
                for piece in item.content:
                    found.text += piece.text if piece.type == "output_text" else piece.refusal
            case "reasoning":
                # We keep the item beside its words, to send it back.
                kept = Mark(id=item.id, encrypted_content=item.encrypted_content or "").signature
                words = "".join(piece.text for piece in item.summary)
                found.thoughts.append((words, kept, False))
            case "function_call":
                found.calls.append((item.call_id, item.name, _json(item.arguments)))
            case _:
                pass
    found.text = replace_surrogates(found.text)
    if response is None:
        return found
    if (usage := response.usage) is not None:
        read, stored = usage.input_tokens_details.cached_tokens, usage.input_tokens_details.cache_write_tokens
        found.usage = (usage.input_tokens - read - stored, usage.output_tokens, read, stored)
    cut_off: dict[str, FinishReason] = {"max_output_tokens": "max_tokens", "content_filter": "content_filter"}
    details = response.incomplete_details
    found.reason = cut_off[str(details.reason)] if details else "tool_use" if found.calls else "end_turn"
    return found


def decode_with_anthropic(chunks: list[bytes]) -> Decoded:
    import anthropic

    reasons: dict[str, FinishReason] = {
        "end_turn": "end_turn",
        "max_tokens": "max_tokens",
        "tool_use": "tool_use",
        "refusal": "content_filter",
    }
    client = anthropic.Anthropic(api_key="k", base_url="http://models.test", max_retries=0, http_client=_http(chunks))
    found = Decoded()
    with client.messages.stream(model="m", max_tokens=1, messages=[]) as stream:
        try:
            for _ in stream:
                pass
        except anthropic.APIError:
            found.is_broken = True
        snapshot = stream.current_message_snapshot
    for block in snapshot.content:
        match block.type:
            case "text":
                found.text += block.text
            case "thinking":
                found.thoughts.append((block.thinking, block.signature, False))
            case "redacted_thinking":
                found.thoughts.append(("", block.data, True))
            case "tool_use":
                found.calls.append((block.id, block.name, block.input))
            case _:
                pass
    found.text = replace_surrogates(found.text)
    usage = snapshot.usage
    found.usage = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_input_tokens or 0,
        usage.cache_creation_input_tokens or 0,
    )
    if snapshot.stop_reason:
        found.reason = reasons[snapshot.stop_reason]
    return found


SDKS = {"chat": decode_with_openai, "responses": decode_with_openai_responses, "anthropic": decode_with_anthropic}


def _http(chunks: list[bytes]) -> httpx2.Client:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=iter(chunks))

    return httpx2.Client(transport=httpx2.MockTransport(answer))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # of a call that was cut off


# the streams

LETTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WORDS = LETTERS | st.sampled_from(["", "😀🇩🇪", "a\u2028b\x85c\r\nd", "data: x\n\n", "\u00e9\ufeff"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
CALLS = st.builds(
    PlannedCall, st.sampled_from(["view", "bash"]), st.dictionaries(WORDS, VALUES, max_size=3), st.just("")
)
COUNTS = st.integers(0, 10**6)
PLANS = st.builds(
    Plan,
    text=WORDS,
    reasoning=WORDS,
    signature=st.sampled_from(["", "c2ln=="]),
    redacted=st.sampled_from(["", "ZGF0YQ=="]),
    refusal=st.booleans(),
    phase=st.sampled_from(["", "commentary", "final_answer"]),
    tool_calls=st.lists(CALLS, max_size=3).map(tuple),
    piece=st.integers(0, 3),
    units=st.booleans(),
    input_piece=st.integers(0, 4),
    interleave=st.booleans(),
    call_style=st.sampled_from(["", "whole", "empty_id"]),
    finish=st.sampled_from(["", "length", "content_filter"]),
    input_tokens=st.integers(1, 10**6),
    output_tokens=COUNTS,
    cache_read_tokens=COUNTS,
    cache_write_tokens=COUNTS,
    raw=st.booleans(),
    crlf=st.booleans(),
    comments=st.booleans(),
    unknown=st.booleans(),
)


def stream_of(wire: WireName, plan: Plan) -> bytes:
    if plan.units or wire == "anthropic":
        plan = dataclasses.replace(plan, raw=plan.raw and not plan.units)  # half a pair has no bytes of its own
    return b"".join(frame.data for frame in SERVERS[wire].frames(plan, "m", "call-1"))


@st.composite
def cuts(draw: st.DrawFn, size: int) -> list[int]:
    return [0, *sorted(draw(st.sets(st.integers(0, size), max_size=8))), size]


def cut(stream: bytes, edges: list[int]) -> list[bytes]:
    return [stream[start:end] for start, end in pairwise(edges) if start < end]


@wires
@given(plan=PLANS, data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_any_stream_is_understood_as_the_vendor_does(wire: WireName, plan: Plan, data: st.DataObject) -> None:
    stream = stream_of(wire, plan)
    chunks = cut(stream, data.draw(cuts(len(stream))))
    assert decode(wire, chunks) == SDKS[wire](chunks)


@wires
@given(plan=PLANS, error=st.sampled_from(["overloaded_error", "server_error"]), data=st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_said_before_an_error_is_understood_as_the_vendor_does(
    wire: WireName, plan: Plan, error: str, data: st.DataObject
) -> None:
    malformed = "failed" if wire == "responses" and plan.comments else "error"
    stream = stream_of(wire, dataclasses.replace(plan, malformed=malformed, error=error))
    chunks = cut(stream, data.draw(cuts(len(stream))))
    ours, theirs = decode(wire, chunks), SDKS[wire](chunks)
    assert ours.is_broken
    assert ours == theirs


RICH = Plan(
    text="héllo 😀 \u2028",
    piece=2,
    reasoning="hm 😀",
    signature="c2ln",
    redacted="ZGF0YQ",
    tool_calls=(PlannedCall("view", {"path": "ä/😀"}), PlannedCall("bash", {"command": "ls", "n": [1, 2.5, None]})),
    input_piece=7,
    interleave=True,
    cache_read_tokens=5,
    cache_write_tokens=6,
    raw=True,
    crlf=True,
    unknown=True,
)


def events_of(chunks: Iterable[bytes]) -> list[SseEvent]:
    reader = SseReader()
    return [event for chunk in chunks for event in reader.feed(chunk)]


@wires
def test_a_cut_at_every_byte_changes_nothing(wire: WireName) -> None:
    for plan in (RICH, dataclasses.replace(RICH, raw=False, units=True, crlf=False, comments=True)):
        frames = [frame.data for frame in SERVERS[wire].frames(plan, "m", "call-1")]
        stream = b"".join(frames)
        theirs = SDKS[wire]([stream])
        assert len(theirs.calls) == 2
        assert decode(wire, [stream[i : i + 1] for i in range(len(stream))]) == theirs
        # The reader keeps nothing between events, so each cut of each two neighbors is enough.
        for two in map(b"".join, pairwise(frames)):
            whole = events_of([two])
            assert all(events_of([two[:at], two[at:]]) == whole for at in range(len(two) + 1))

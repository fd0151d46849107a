"""Requests and streams of Anthropic's Messages API. Unknown events and fields are ignored."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from kedge.config.schema import Effort
from kedge.models import values
from kedge.models.values import Delta, Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import chat, gemini, hosted_search, requests, responses
from kedge.models.wires.decoding import AnswerStream, as_object, is_count, make_json_decoder
from kedge.models.wires.history import GO_ON, Abilities, EncodingState, valid_history
from kedge.models.wires.provider_errors import error_from_event
from kedge.models.wires.requests import EncodedCache
from kedge.protocol.messages import File, FinishReason, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult

VERSION = "2023-06-01"  # of the API; there is no later one
# The API requires a limit. All models since the fourth generation can write this much, and a file that is written in
# one call needs it.
MAX_TOKENS = 32_000
# Reasoning counts toward the limit of the answer; a smaller budget than the first number is rejected.
LEAST_BUDGET = 1024
ROOM = 4096  # left for the answer itself
BUDGETS: dict[Effort, int] = {
    "minimal": LEAST_BUDGET, "low": 4096, "medium": 12_288, "high": 24_576, "xhigh": 32_768, "max": 65_536,
}  # fmt: skip
# Models that take a token budget for reasoning. Later ones take an effort and reject a budget.
_BUDGETED = re.compile(r"claude-(?:[23]\b|instant|(?:opus|sonnet|haiku)-(?:4-[015]\b|4-20|4$))")

_CACHE_MARK = {"type": "ephemeral"}
_SEARCH_TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}  # in one step
_SEARCH_BLOCKS = ("server_tool_use", "web_search_tool_result")


def prepare_request(endpoint: Endpoint, request: StepRequest, cache: EncodedCache | None = None) -> HttpRequest:
    able = requests.find_abilities(endpoint, request, "anthropic")
    # Other models behind this API accept images but no documents.
    able = msgspec.structs.replace(able, pdfs=able.images and "claude" in endpoint.model)
    messages = requests.encode_messages(cache, encode, request, able, {"content": [{"type": "text", "text": GO_ON}]})
    _mark_for_cache(messages)
    system = {"type": "text", "text": request.system, "cache_control": _CACHE_MARK}
    max_tokens = request.max_output_tokens or endpoint.info.max_output_tokens or MAX_TOKENS
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": max_tokens,
        "tools": _encode_tools(request.tools, searches=able.searches is not None) if able.tools else None,
        "system": [system] if request.system else None,
        "messages": messages,
        "stream": True,
    }
    if request.effort is not None and endpoint.info.reasoning:
        fields |= _make_thinking_fields(endpoint, request.effort, max_tokens, messages)
    return requests.make_stream_request(endpoint, f"{_base(endpoint)}/messages", _own_headers(endpoint), fields)


def prepare_listing(endpoint: Endpoint) -> HttpRequest:
    return requests.make_listing_request(endpoint, f"{_base(endpoint)}/models?limit=1000", _own_headers(endpoint))


def encode(history: Sequence[Message], abilities: Abilities, state: EncodingState) -> list[dict[str, Any]]:
    """Encode messages. Consecutive ones of the same role are merged; results come first."""
    encoded: list[dict[str, Any]] = []
    valid = valid_history(history, abilities, state)
    for is_assistant, group in groupby(valid, lambda message: message.role == "assistant"):
        blocks = [block for message in group for block in _blocks(message)]
        encoded.append({"role": "assistant" if is_assistant else "user", "content": blocks})
    return encoded


def _own_headers(endpoint: Endpoint) -> dict[str, str]:
    key = {} if endpoint.api_key is None else {"x-api-key": endpoint.api_key}
    return {"anthropic-version": VERSION, **key}


def _base(endpoint: Endpoint) -> str:
    """Anthropic's own URL has no version; those of other servers often do."""
    return endpoint.base_url if endpoint.base_url.endswith("/v1") else f"{endpoint.base_url}/v1"


def _encode_tools(tools: Sequence[ToolSpec], *, searches: bool) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema} for tool in tools
    ]
    if searches:
        encoded.append(_SEARCH_TOOL)
    return [*encoded[:-1], {**encoded[-1], "cache_control": _CACHE_MARK}]


def _mark_for_cache(messages: list[Any]) -> None:
    """Mark the end of this request and of the previous one: the cache is read up to a mark of an earlier request.

    With those of tools and system prompt these are four marks, the maximum.
    """
    prompts = [message for message in messages if not isinstance(message, msgspec.Raw) and message["role"] == "user"]
    for message in prompts[-2:]:
        message["content"][-1] = {**message["content"][-1], "cache_control": _CACHE_MARK}


def _make_thinking_fields(
    endpoint: Endpoint, effort: Effort, max_tokens: int, messages: Sequence[Any]
) -> dict[str, Any]:
    has_effort = "claude" in endpoint.model and not _BUDGETED.search(endpoint.model)
    if endpoint.info.adaptive_thinking or has_effort:
        known = endpoint.info.clamp_effort(effort)
        level = "low" if known == "minimal" else known
        return {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": level}}
    budget = min(BUDGETS[effort], max_tokens - ROOM)
    if budget < LEAST_BUDGET or not _may_think(messages):
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _may_think(messages: Sequence[Any]) -> bool:
    """False in a turn that began without reasoning (say, with another model): it is rejected until the next prompt."""
    for message in reversed(messages):
        if isinstance(message, msgspec.Raw):
            return True
        first = message["content"][0]["type"]
        if message["role"] == "assistant":
            return first in ("thinking", "redacted_thinking")
        if first != "tool_result":
            return True
    return True


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message.role != "tool":
        return [block for part in message.parts for block in _encode_blocks(part)]
    result, *images = message.parts
    assert isinstance(result, ToolResult)
    content: list[dict[str, Any]] = [{"type": "text", "text": result.content}]
    content += [block for part in images if (block := _encode_block(part)) is not None]
    encoded: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.tool_call_id, "content": content}
    return [{**encoded, "is_error": True} if result.is_error else encoded]


def _encode_blocks(part: Part) -> list[dict[str, Any]]:
    if isinstance(part, Reasoning) and hosted_search.is_marked(part.signature):
        return hosted_search.read_items(part.signature)
    block = _encode_block(part)
    return [] if block is None else [block]


def _encode_block(part: Part) -> dict[str, Any] | None:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(mime_type, data):
            return {"type": "image", "source": _source(mime_type, data)}
        case File(name, mime_type, data):
            return {"type": "document", "source": _source(mime_type, data), "title": name}
        case ToolCall(call_id, name, arguments):
            return {"type": "tool_use", "id": call_id, "name": name, "input": msgspec.Raw(arguments.encode())}
        case Reasoning(_, signature) if _is_foreign(signature or ""):
            return None
        case Reasoning(_, signature, redacted) if redacted:
            return {"type": "redacted_thinking", "data": signature}
        case Reasoning(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case _:
            return None


def _source(mime_type: str, data: bytes) -> dict[str, str]:
    return {"type": "base64", "media_type": mime_type, "data": requests.encode_base64(data)}


def _is_foreign(signature: str) -> bool:
    """True for a signature of another wire, which the provider used earlier."""
    return chat.is_marked(signature) or responses.is_marked(signature) or gemini.is_marked(signature)


_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "tool_use": "tool_use",
    "refusal": "content_filter",
}
_COUNTS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}


class _Block(msgspec.Struct):
    """The start of a content block, or a delta of one: the API uses the same names for both."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    partial_json: str | None = None
    stop_reason: str | None = None  # only of a message


class _Message(msgspec.Struct):
    usage: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Block | None = None
    usage: Any = None


_decode = make_json_decoder(_Event)


class AnthropicStream(AnswerStream):
    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        super().__init__(endpoint, request)
        self._blocks: dict[int, _Block] = {}
        self._inputs: dict[int, Any] = {}  # of calls that have no input deltas yet
        self._has_calls = False
        self._has_counts = False
        self._search_price = request.search_price  # of the provider's own; None: it may not search
        self._has_searched = False
        self._searches: dict[int, dict[str, Any]] = {}  # blocks of searches by the provider, as they are sent
        self._search_inputs: dict[int, str] = {}
        self._uses: dict[str, dict[str, Any]] = {}  # searches without results so far, by id

    def _parse_data(self, data: bytes, event_name: str) -> list[Delta]:
        if event_name == "error":
            raise error_from_event(data, self._endpoint)
        decoded = _decode(data)
        match decoded.type or event_name:
            case "content_block_delta" if decoded.delta is not None:
                return self._continue_block(decoded.index, decoded.delta)
            case "content_block_start" if decoded.content_block is not None:
                if self._search_price is not None and decoded.content_block.type in _SEARCH_BLOCKS:
                    raw: Any = msgspec.json.decode(data)
                    self._searches[decoded.index] = raw["content_block"]
                    return []
                return self._start_block(decoded.index, decoded.content_block)
            case "content_block_stop":
                if (search := self._searches.pop(decoded.index, None)) is not None:
                    return self._end_search(decoded.index, search)
                return self._end_block(decoded.index)
            case "message_start" if decoded.message is not None:
                return self._parse_usage(decoded.message.usage)
            case "message_delta":
                return [*self._parse_usage(decoded.usage), *self._parse_end(decoded.delta)]
            case "message_stop":
                return [values.StreamEnd()]
            case "error":
                raise error_from_event(data, self._endpoint)
            case _:
                return []

    def _start_block(self, index: int, start: _Block) -> list[Delta]:
        block = str(index)
        self._blocks[index] = start
        match start.type:
            case "text" if start.text:
                return [values.TextDelta(start.text, block)]
            case "thinking" if start.thinking or start.signature:
                return [values.ReasoningDelta(start.thinking or "", block, start.signature or "")]
            case "redacted_thinking":
                return [values.ReasoningDelta("", block, start.data or "", redacted=True)]
            case "tool_use":
                self._has_calls = True
                self._inputs[index] = start.input
                return [values.ToolCallDelta(block, self._ids.make_unique(start.id or "", index), start.name or "")]
            case _:
                return []

    def _continue_block(self, index: int, piece: _Block) -> list[Delta]:
        if index in self._searches:
            self._search_inputs[index] = self._search_inputs.get(index, "") + (piece.partial_json or "")
            return []
        block = str(index)
        match piece.type:
            case "text_delta" if piece.text:
                return [values.TextDelta(piece.text, block)]
            case "thinking_delta" if piece.thinking:
                return [values.ReasoningDelta(piece.thinking, block)]
            case "signature_delta" if piece.signature:
                return [values.ReasoningDelta("", block, piece.signature)]
            case "input_json_delta" if piece.partial_json and self._is_call(index):
                self._inputs.pop(index, None)
                return [values.ToolCallDelta(block, input=piece.partial_json)]
            case _:
                return []

    def _end_block(self, index: int) -> list[Delta]:
        start = self._blocks.pop(index, None)
        if start is None:
            return []
        block = str(index)
        if index not in self._inputs:
            return [values.BlockEnd(block)]
        # The call has no input, or had all of it at its start.
        arguments = msgspec.json.encode(self._inputs.pop(index) or {}).decode()
        return [values.ToolCallDelta(block, input=arguments), values.BlockEnd(block)]

    def _end_search(self, index: int, block: dict[str, Any]) -> list[Delta]:
        """Show the query when it is complete, and the sources when they are there."""
        if block["type"] == "server_tool_use":
            given = self._search_inputs.pop(index, "")
            with contextlib.suppress(msgspec.DecodeError):
                block["input"] = msgspec.json.decode(given) if given else block.get("input") or {}
            use_id = str(block.get("id"))
            self._uses[use_id] = block
            self._has_searched = True
            query = as_object(block.get("input")).get("query")
            return [values.ReasoningDelta(hosted_search.describe_queries([query]), f"search-{use_id}")]
        use_id = str(block.get("tool_use_id"))
        use = self._uses.pop(use_id, None)
        if use is None:
            return []
        found: Any = block.get("content")
        listed = [as_object(each) for each in found] if isinstance(found, list) else []  # pyright: ignore[reportUnknownVariableType]
        sources = hosted_search.describe_sources([(each.get("title"), each.get("url")) for each in listed])
        failed = as_object(found).get("error_code")
        text = f"\n{sources}" if sources else f"\nIt failed: {failed}." if failed else "\nNothing was found."
        signature = hosted_search.mark("anthropic", [use, block])
        name = f"search-{use_id}"
        return [values.ReasoningDelta(text, name, signature), values.BlockEnd(name)]

    def _parse_end(self, delta: _Block | None) -> list[Delta]:
        if delta is None or not delta.stop_reason:
            return []
        reason = _FINISH_REASONS.get(delta.stop_reason, "unknown")
        if delta.stop_reason == "pause_turn" and self._has_searched:  # it goes on with the next request
            reason = "tool_use"
        if reason == "end_turn" and self._has_calls:
            reason = "tool_use"
        return [values.StepEnd(reason)]

    def _parse_usage(self, report: Any) -> list[Delta]:
        """Ignore invalid counts, and reports with only zeros: those servers do not count."""
        fields = as_object(report)
        known = {ours: fields[name] for name, ours in _COUNTS.items() if is_count(fields.get(name))}
        self._has_counts = self._has_counts or any(known.values())
        searches = as_object(fields.get("server_tool_use")).get("web_search_requests")
        if self._search_price is not None and is_count(searches) and searches:
            return [values.UsageReport(**known, search_cost=searches * self._search_price)]
        return [values.UsageReport(**known)] if known and self._has_counts else []

    def _is_call(self, index: int) -> bool:
        start = self._blocks.get(index)
        return start is not None and start.type == "tool_use"

"""Requests of Anthropic's Messages API."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from kedge.config.schema import Effort
from kedge.models.values import Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import chat, gemini, requests, responses
from kedge.models.wires.encoded_cache import EncodedCache
from kedge.models.wires.history import GO_ON, Abilities, EncodingState, valid_history
from kedge.protocol.messages import File, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult

VERSION = "2023-06-01"  # of the API; there is no later one
# The API requires a limit. All models since the fourth generation can write this much, and a file that is written in
# one call needs it.
MAX_TOKENS = 32_000
# Reasoning counts toward the limit of the answer; a smaller budget than the first number is rejected.
LEAST_BUDGET = 1024
ROOM = 4096  # left for the answer itself
BUDGETS: dict[Effort, int] = {"minimal": LEAST_BUDGET, "low": 4096, "medium": 12_288, "high": 24_576}
# Models that take a token budget for reasoning. Later ones take an effort and reject a budget.
_BUDGETED = re.compile(r"claude-(?:[23]\b|instant|(?:opus|sonnet|haiku)-(?:4-[015]\b|4-20|4$))")

_CACHE_MARK = {"type": "ephemeral"}


def prepare_request(endpoint: Endpoint, request: StepRequest, cache: EncodedCache | None = None) -> HttpRequest:
    able = requests.find_abilities(endpoint, request, "anthropic")
    # Other models behind this API accept images but no documents.
    able = msgspec.structs.replace(able, pdfs=able.images and "claude" in endpoint.model)
    messages = requests.encode_messages(cache, encode, request, able, [{"type": "text", "text": GO_ON}])
    _mark_for_cache(messages)
    system = {"type": "text", "text": request.system, "cache_control": _CACHE_MARK}
    max_tokens = request.max_output_tokens or endpoint.info.max_output_tokens or MAX_TOKENS
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": max_tokens,
        "tools": _tools(request.tools) if able.tools else None,
        "system": [system] if request.system else None,
        "messages": messages,
        "stream": True,
    }
    if request.effort is not None and endpoint.info.reasoning:
        fields |= _thinking(endpoint, request.effort, max_tokens, messages)
    headers = requests.make_headers(endpoint, _own_headers(endpoint), is_stream=True)
    return HttpRequest("POST", f"{_base(endpoint)}/messages", headers, requests.encode_body(endpoint, fields))


def prepare_listing(endpoint: Endpoint) -> HttpRequest:
    headers = requests.make_headers(endpoint, _own_headers(endpoint), is_stream=False)
    return HttpRequest("GET", f"{_base(endpoint)}/models?limit=1000", headers)


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


def _tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema} for tool in tools
    ]
    return [*encoded[:-1], {**encoded[-1], "cache_control": _CACHE_MARK}]


def _mark_for_cache(messages: list[Any]) -> None:
    """Mark the end of this request and of the previous one: the cache is read up to a mark of an earlier request.

    With those of tools and system prompt these are four marks, the maximum.
    """
    prompts = [message for message in messages if not isinstance(message, msgspec.Raw) and message["role"] == "user"]
    for message in prompts[-2:]:
        message["content"][-1] = {**message["content"][-1], "cache_control": _CACHE_MARK}


def _thinking(endpoint: Endpoint, effort: Effort, max_tokens: int, messages: Sequence[Any]) -> dict[str, Any]:
    has_effort = "claude" in endpoint.model and not _BUDGETED.search(endpoint.model)
    if endpoint.info.adaptive_thinking or has_effort:
        level = "low" if effort == "minimal" else effort
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
        return [block for part in message.parts if (block := _block(part)) is not None]
    result, *images = message.parts
    assert isinstance(result, ToolResult)
    content: list[dict[str, Any]] = [{"type": "text", "text": result.content}]
    content += [block for part in images if (block := _block(part)) is not None]
    encoded: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.tool_call_id, "content": content}
    return [{**encoded, "is_error": True} if result.is_error else encoded]


def _block(part: Part) -> dict[str, Any] | None:
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
    return {"type": "base64", "media_type": mime_type, "data": base64.b64encode(data).decode()}


def _is_foreign(signature: str) -> bool:
    """True for a signature of another wire, which the provider used earlier."""
    return chat.is_marked(signature) or responses.is_marked(signature) or gemini.is_marked(signature)

"""The wire of Anthropic Messages, outwards: a step becomes a request. Pure: no network in here."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from kedge.config.schema import Effort
from kedge.models.values import Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import gemini, requests, responses
from kedge.models.wires.chat import is_of_chat
from kedge.models.wires.encoded_cache import Said
from kedge.models.wires.history import GO_ON, Abilities, Past, valid_history
from kedge.protocol.messages import File, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult

VERSION = "2023-06-01"  # of the wire; there is no later one
# The wire wants a number. Every model of the vendor since the fourth generation writes that much, and a file that is
# written in one call needs room.
MAX_TOKENS = 32_000
# Thoughts count against the answer's bound, and are refused below the first number.
LEAST_BUDGET = 1024
ROOM = 4096  # that is left for the answer itself
BUDGETS: dict[Effort, int] = {"minimal": LEAST_BUDGET, "low": 4096, "medium": 12_288, "high": 24_576}
# The generations that are told how many tokens to think; later ones are told how hard, and refuse a number.
_BUDGETED = re.compile(r"claude-(?:[23]\b|instant|(?:opus|sonnet|haiku)-(?:4-[015]\b|4-20|4$))")

_MARK = {"type": "ephemeral"}


def prepare_request(endpoint: Endpoint, request: StepRequest, said: Said | None = None) -> HttpRequest:
    able = requests.abilities(endpoint, request, "anthropic")
    # Others that speak this wire know images, and no documents.
    able = msgspec.structs.replace(able, pdfs=able.images and "claude" in endpoint.model)
    messages = requests.messages(said, encode, request, able, [{"type": "text", "text": GO_ON}])
    _mark_prompts(messages)
    system = {"type": "text", "text": request.system, "cache_control": _MARK}
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
    headers = requests.headers(endpoint, _own_headers(endpoint), is_stream=True)
    return HttpRequest("POST", f"{_base(endpoint)}/messages", headers, requests.body(endpoint, fields))


def prepare_listing(endpoint: Endpoint) -> HttpRequest:
    headers = requests.headers(endpoint, _own_headers(endpoint), is_stream=False)
    return HttpRequest("GET", f"{_base(endpoint)}/models?limit=1000", headers)


def encode(history: Sequence[Message], abilities: Abilities, past: Past) -> list[dict[str, Any]]:
    """Messages of one role are one message here, and results come first in theirs."""
    encoded: list[dict[str, Any]] = []
    valid = valid_history(history, abilities, past)
    for is_answer, group in groupby(valid, lambda message: message.role == "assistant"):
        blocks = [block for message in group for block in _blocks(message)]
        encoded.append({"role": "assistant" if is_answer else "user", "content": blocks})
    return encoded


def _own_headers(endpoint: Endpoint) -> dict[str, str]:
    key = {} if endpoint.api_key is None else {"x-api-key": endpoint.api_key}
    return {"anthropic-version": VERSION, **key}


def _base(endpoint: Endpoint) -> str:
    """The vendor's address is written without the version; those of others often have it."""
    return endpoint.base_url if endpoint.base_url.endswith("/v1") else f"{endpoint.base_url}/v1"


def _tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema} for tool in tools
    ]
    return [*told[:-1], {**told[-1], "cache_control": _MARK}]


def _mark_prompts(messages: list[Any]) -> None:
    """The cache reaches up to the last mark that was set before: mark this request's end, and the one before it.

    With those of the tools and the system prompt these are four, and more are refused.
    """
    prompts = [message for message in messages if not isinstance(message, msgspec.Raw) and message["role"] == "user"]
    for message in prompts[-2:]:
        message["content"][-1] = {**message["content"][-1], "cache_control": _MARK}


def _thinking(endpoint: Endpoint, effort: Effort, max_tokens: int, messages: Sequence[Any]) -> dict[str, Any]:
    is_later = "claude" in endpoint.model and not _BUDGETED.search(endpoint.model)
    if endpoint.info.adaptive_thinking or is_later:
        told = "low" if effort == "minimal" else effort
        return {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": told}}
    budget = min(BUDGETS[effort], max_tokens - ROOM)
    if budget < LEAST_BUDGET or not _may_think(messages):
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _may_think(messages: Sequence[Any]) -> bool:
    """Within a turn that began without thoughts (with another model, say) thinking is refused until the next prompt."""
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
    told: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.tool_call_id, "content": content}
    return [{**told, "is_error": True} if result.is_error else told]


def _block(part: Part) -> dict[str, Any] | None:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(mime_type, data):
            return {"type": "image", "source": _source(mime_type, data)}
        case File(name, mime_type, data):
            return {"type": "document", "source": _source(mime_type, data), "title": name}
        case ToolCall(call_id, name, given):
            return {"type": "tool_use", "id": call_id, "name": name, "input": msgspec.Raw(given.encode())}
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
    """Is it of another wire, which the provider spoke before?"""
    return is_of_chat(signature) or responses.is_marked(signature) or gemini.is_marked(signature)

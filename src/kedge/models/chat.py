"""The wire of OpenAI-compatible Chat Completions, outwards: a step becomes a request. Pure: no network in here."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from kedge.models import outgoing
from kedge.models.history import Abilities, Past, valid_history
from kedge.models.ids import IdRule
from kedge.models.said import Said
from kedge.models.values import Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.protocol.messages import Image, Message, Part, Reasoning, Text, ToolCall, ToolResult, text_of

# The results of tools are only text here, so their images follow as a user's.
IMAGES_NOTE = "[images of the tool results above]"
# What goes back with an answer, and the field it goes back in. Servers that think in `reasoning_content` refuse a
# history of calls without it; those that use another name take none back.
REASONING_FIELD = "reasoning_content"
# What a server attaches to a call and wants to see again (Gemini signs its thoughts so).
EXTRA_FIELD = "extra_content"

_EFFORTS = ("minimal", "low", "medium", "high")
_OPENAI_HOST = "api.openai.com"
_MISTRAL_HOST = "api.mistral.ai"


def prepare_request(endpoint: Endpoint, request: StepRequest, said: Said | None = None) -> HttpRequest:
    able = outgoing.abilities(endpoint, request, _id_rule(endpoint))
    messages = outgoing.messages(said, encode, request, able)
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    is_openai = endpoint.host == _OPENAI_HOST
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "tools": [_tool(tool) for tool in request.tools] if able.tools else None,
        "messages": messages,
        # OpenAI's own reasoning models refuse the older name; most others know only that.
        "max_completion_tokens" if is_openai else "max_tokens": request.max_output_tokens,
        "reasoning_effort": _effort(endpoint, request, has_tools=able.tools),
        # Steps of one session go where its cache is.
        "prompt_cache_key": request.history[0].session_id if is_openai and request.history else None,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = outgoing.headers(endpoint, outgoing.key_headers(endpoint), is_stream=True)
    return HttpRequest("POST", f"{endpoint.base_url}/chat/completions", headers, outgoing.body(endpoint, fields))


def prepare_listing(endpoint: Endpoint) -> HttpRequest:
    headers = outgoing.headers(endpoint, outgoing.key_headers(endpoint), is_stream=False)
    return HttpRequest("GET", f"{endpoint.base_url}/models", headers)


def encode(history: Sequence[Message], abilities: Abilities, past: Past) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = []
    for role, group in groupby(valid_history(history, abilities, past), lambda message: message.role):
        match role:
            case "user":
                encoded += [{"role": "user", "content": _user_content(message.parts)} for message in group]
            case "assistant":
                encoded += [_answer(message) for message in group]
            case _:
                encoded += _results(list(group))
    return encoded


def _id_rule(endpoint: Endpoint) -> IdRule:
    return "mistral" if endpoint.host == _MISTRAL_HOST else "any"


def _effort(endpoint: Endpoint, request: StepRequest, *, has_tools: bool) -> str | None:
    info = endpoint.info
    if has_tools and info.effort_with_tools == "none":
        return "none"  # also where nobody asked: left to themselves these models reason, and refuse the tools
    if request.effort is None or not info.reasoning or (has_tools and info.effort_with_tools == "unset"):
        return None
    return max(request.effort, info.least_effort, key=_EFFORTS.index)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _user_content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Plain text where it is only that, because some servers understand nothing else."""
    if len(parts) == 1 and isinstance(parts[0], Text):  # nearly all, in a history of thousands
        return parts[0].text
    if not any(isinstance(part, Image) for part in parts):
        return "\n\n".join(part.text for part in parts if isinstance(part, Text))
    blocks: list[dict[str, Any]] = []
    for part in parts:
        match part:
            case Text(text):
                blocks.append({"type": "text", "text": text})
            case Image(mime_type, data):
                url = f"data:{mime_type};base64,{base64.b64encode(data).decode()}"
                blocks.append({"type": "image_url", "image_url": {"url": url}})
            case _:
                pass
    return blocks


def _answer(message: Message) -> dict[str, Any]:
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCall)]
    # Some servers refuse an answer without content, and others one whose content is empty.
    answer: dict[str, Any] = {"role": "assistant", "content": text_of(message.parts) or None}
    if not calls:
        return answer
    thoughts = [part for part in message.parts if isinstance(part, Reasoning)]
    if thought := "".join(part.text for part in thoughts if part.signature == REASONING_FIELD):
        answer[REASONING_FIELD] = thought
    for part in thoughts:
        place, is_extra, extra = (part.signature or "").partition(f":{EXTRA_FIELD}:")
        if is_extra and place.isdecimal() and int(place) < len(calls):
            calls[int(place)][EXTRA_FIELD] = msgspec.Raw(extra.encode())
    return {**answer, "tool_calls": calls}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.input}}


def _results(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """All results of a step come right after it, and then what they show."""
    encoded: list[dict[str, Any]] = []
    images: list[Part] = []
    for message in messages:
        for part in message.parts:
            match part:
                case ToolResult(call_id, _, content):
                    encoded.append({"role": "tool", "tool_call_id": call_id, "content": content})
                case Image():
                    images.append(part)
                case _:
                    pass
    if images:
        encoded.append({"role": "user", "content": _user_content([Text(IMAGES_NOTE), *images])})
    return encoded

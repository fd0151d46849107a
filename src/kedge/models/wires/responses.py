"""Requests of OpenAI's Responses API.

Nothing is stored at the provider (`store: false`): items that it needs again are sent with each request, unchanged.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kedge.models.values import Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import requests
from kedge.models.wires.encoded_cache import EncodedCache
from kedge.models.wires.history import Abilities, EncodingState, valid_history
from kedge.protocol.messages import File, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult

LEAST_OUTPUT = 16  # tokens; a smaller limit is rejected

_MARKED = "responses:"  # prefix of signatures of this wire


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of a reasoning part's signature: data of the provider's item that must be returned.

    An item with several summaries becomes several reasoning parts with the same id; the last one has the encrypted
    content. `phase` belongs to the next text, whose part has no field for it.
    """

    id: str = ""
    encrypted_content: str = ""
    is_raw: bool = False  # the text is the reasoning itself, not a summary
    phase: str = ""

    @property
    def signature(self) -> str:
        return _MARKED + msgspec.json.encode(self).decode()


def read_mark(signature: str | None) -> Mark | None:
    if signature is None or not is_marked(signature):
        return None
    try:
        return msgspec.json.decode(signature.removeprefix(_MARKED), type=Mark)
    except msgspec.MsgspecError:
        return None


def is_marked(signature: str) -> bool:
    """True for a signature of this wire."""
    return signature.startswith(_MARKED)


def prepare_request(endpoint: Endpoint, request: StepRequest, cache: EncodedCache | None = None) -> HttpRequest:
    able = requests.find_abilities(endpoint, request, "any")
    able = msgspec.structs.replace(able, pdfs=able.images, encrypted_reasoning=endpoint.info.reasoning)
    limit = request.max_output_tokens
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "instructions": request.system or None,
        "tools": [_tool(tool) for tool in request.tools] if able.tools else None,
        "input": requests.encode_messages(cache, encode, request, able),
        "max_output_tokens": None if limit is None else max(limit, LEAST_OUTPUT),
        "reasoning": _reasoning(endpoint, request),
        # Models without reasoning reject it.
        "include": ["reasoning.encrypted_content"] if endpoint.info.reasoning else None,
        # Routes the steps of a session to its prompt cache.
        "prompt_cache_key": request.history[0].session_id if request.history else None,
        "store": False,
        "stream": True,
    }
    headers = requests.make_headers(endpoint, requests.make_key_headers(endpoint), is_stream=True)
    return HttpRequest("POST", f"{endpoint.base_url}/responses", headers, requests.encode_body(endpoint, fields))


def encode(history: Sequence[Message], abilities: Abilities, state: EncodingState) -> list[dict[str, Any]]:
    """Encode messages; each part is an item of its own."""
    items: list[dict[str, Any]] = []
    for message in valid_history(history, abilities, state):
        match message.role:
            case "user":
                items.append({"role": "user", "content": _content(message.parts)})
            case "assistant":
                items += _answer(message.parts, abilities)
            case _:
                items.append(_result(message.parts))
    return items


def _reasoning(endpoint: Endpoint, request: StepRequest) -> dict[str, Any] | None:
    """Request a summary: without it the user sees nothing for minutes."""
    if not endpoint.info.reasoning:
        return None
    if request.effort is None:
        return {"summary": "auto"}
    return {"effort": endpoint.info.clamp_effort(request.effort), "summary": "auto"}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    # The default is strict, which rejects schemas with optional fields.
    fields = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", **fields, "strict": False}


def _answer(parts: Sequence[Part], abilities: Abilities) -> list[dict[str, Any]]:
    """Encode reasoning, texts and calls in order. Calls and texts have no item ids: with ids the provider would require
    all reasoning before them, even if some was lost."""
    items: list[dict[str, Any]] = []
    phase = ""
    for part in parts:
        match part:
            case Text(text):
                item = {"role": "assistant", "content": text}
                items.append({**item, "phase": phase} if phase else item)
                phase = ""
            case ToolCall(call_id, name, arguments):
                items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
            case Reasoning(text, signature) if mark := read_mark(signature):
                phase = mark.phase or phase
                if mark.id:
                    _add_reasoning(items, mark, text)
            case _:
                pass
    return [item for item in items if item.get("type") != "reasoning" or _can_return(item, abilities)]


def _add_reasoning(items: list[dict[str, Any]], mark: Mark, text: str) -> None:
    if not items or items[-1].get("id") != mark.id:
        items.append({"type": "reasoning", "id": mark.id, "summary": []})
    item = items[-1]
    if text and mark.is_raw:
        item.setdefault("content", []).append({"type": "reasoning_text", "text": text})
    elif text:
        item["summary"].append({"type": "summary_text", "text": text})
    if mark.encrypted_content:
        item["encrypted_content"] = mark.encrypted_content


def _can_return(item: dict[str, Any], abilities: Abilities) -> bool:
    """False for an item with only an id: the provider has not stored it."""
    return abilities.encrypted_reasoning if "encrypted_content" in item else "content" in item


def _result(parts: Sequence[Part]) -> dict[str, Any]:
    result, *images = parts
    assert isinstance(result, ToolResult)
    output = _content([Text(result.content), *images])
    return {"type": "function_call_output", "call_id": result.tool_call_id, "output": output}


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text):  # fast path for nearly all messages
        return parts[0].text
    return list(_blocks(parts))


def _blocks(parts: Iterable[Part]) -> Iterable[dict[str, Any]]:
    for part in parts:
        match part:
            case Text(text):
                yield {"type": "input_text", "text": text}
            case Image(mime_type, data):
                yield {"type": "input_image", "image_url": _data_url(mime_type, data), "detail": "auto"}
            case File(name, mime_type, data):
                yield {"type": "input_file", "filename": name, "file_data": _data_url(mime_type, data)}
            case _:
                pass


def _data_url(mime_type: str, data: bytes) -> str:
    return f"data:{mime_type};base64,{base64.b64encode(data).decode()}"

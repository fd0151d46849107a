"""The wire of OpenAI's Responses, outwards: a step becomes a request. Pure: no network in here.

Nothing is stored at the provider's: what it wants to see again goes back with each request, as it came.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kedge.models.values import Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import requests
from kedge.models.wires.encoded_cache import Said
from kedge.models.wires.history import Abilities, Past, valid_history
from kedge.protocol.messages import File, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult

LEAST_OUTPUT = 16  # tokens; a smaller bound is refused

_MARKED = "responses:"  # how a signature of this wire begins: others leave it alone, and we leave theirs


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept in a thought's signature, to give the provider its items back.

    An item with several summaries is several thoughts, each with its id; the last has the rest. A `phase` is not of a
    thought: it belongs to the text that comes next, which has no place for it.
    """

    id: str = ""
    encrypted_content: str = ""
    is_raw: bool = False  # the text is the thought itself, not a summary of it
    phase: str = ""

    @property
    def signature(self) -> str:
        return _MARKED + msgspec.json.encode(self).decode()


def mark_of(signature: str | None) -> Mark | None:
    if signature is None or not is_marked(signature):
        return None
    try:
        return msgspec.json.decode(signature.removeprefix(_MARKED), type=Mark)
    except msgspec.MsgspecError:
        return None


def is_marked(signature: str) -> bool:
    """Is it this wire's?"""
    return signature.startswith(_MARKED)


def prepare_request(endpoint: Endpoint, request: StepRequest, said: Said | None = None) -> HttpRequest:
    able = requests.abilities(endpoint, request, "any")
    able = msgspec.structs.replace(able, pdfs=able.images, sealed_thoughts=endpoint.info.reasoning)
    bound = request.max_output_tokens
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "instructions": request.system or None,
        "tools": [_tool(tool) for tool in request.tools] if able.tools else None,
        "input": requests.messages(said, encode, request, able),
        "max_output_tokens": None if bound is None else max(bound, LEAST_OUTPUT),
        "reasoning": _reasoning(endpoint, request),
        # Models that do not reason refuse to be asked for it.
        "include": ["reasoning.encrypted_content"] if endpoint.info.reasoning else None,
        # Steps of one session go where its cache is.
        "prompt_cache_key": request.history[0].session_id if request.history else None,
        "store": False,
        "stream": True,
    }
    headers = requests.headers(endpoint, requests.key_headers(endpoint), is_stream=True)
    return HttpRequest("POST", f"{endpoint.base_url}/responses", headers, requests.body(endpoint, fields))


def encode(history: Sequence[Message], abilities: Abilities, past: Past) -> list[dict[str, Any]]:
    """A message is as many items as it has parts: nothing is joined here."""
    items: list[dict[str, Any]] = []
    for message in valid_history(history, abilities, past):
        match message.role:
            case "user":
                items.append({"role": "user", "content": _content(message.parts)})
            case "assistant":
                items += _answer(message.parts, abilities)
            case _:
                items.append(_result(message.parts))
    return items


def _reasoning(endpoint: Endpoint, request: StepRequest) -> dict[str, Any] | None:
    """Without a summary nobody would see for minutes that the model works."""
    if not endpoint.info.reasoning:
        return None
    if request.effort is None:
        return {"summary": "auto"}
    return {"effort": endpoint.info.taken(request.effort), "summary": "auto"}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    # Strict is what the wire takes for granted, and it refuses schemas with fields that may be left out.
    known = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", **known, "strict": False}


def _answer(parts: Sequence[Part], abilities: Abilities) -> list[dict[str, Any]]:
    """Thoughts, texts and calls in their order. Calls and texts go without the ids of their items: with them the
    provider would insist on every thought before them, also on one that was lost."""
    items: list[dict[str, Any]] = []
    phase = ""
    for part in parts:
        match part:
            case Text(text):
                said = {"role": "assistant", "content": text}
                items.append({**said, "phase": phase} if phase else said)
                phase = ""
            case ToolCall(call_id, name, given):
                items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": given})
            case Reasoning(text, signature) if mark := mark_of(signature):
                phase = mark.phase or phase
                if mark.id:
                    _add_thought(items, mark, text)
            case _:
                pass
    return [item for item in items if item.get("type") != "reasoning" or _can_return(item, abilities)]


def _add_thought(items: list[dict[str, Any]], mark: Mark, text: str) -> None:
    if not items or items[-1].get("id") != mark.id:
        items.append({"type": "reasoning", "id": mark.id, "summary": []})
    item = items[-1]
    if text and mark.is_raw:
        item.setdefault("content", []).append({"type": "reasoning_text", "text": text})
    elif text:
        item["summary"].append({"type": "summary_text", "text": text})
    if mark.encrypted_content:
        item["encrypted_content"] = mark.encrypted_content


def _can_return(thought: dict[str, Any], abilities: Abilities) -> bool:
    """Nothing was stored there, so that an id alone means nothing."""
    return abilities.sealed_thoughts if "encrypted_content" in thought else "content" in thought


def _result(parts: Sequence[Part]) -> dict[str, Any]:
    result, *images = parts
    assert isinstance(result, ToolResult)
    shown = _content([Text(result.content), *images])
    return {"type": "function_call_output", "call_id": result.tool_call_id, "output": shown}


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text):  # nearly all, in a history of thousands
        return parts[0].text
    return list(_blocks(parts))


def _blocks(parts: Iterable[Part]) -> Iterable[dict[str, Any]]:
    for part in parts:
        match part:
            case Text(text):
                yield {"type": "input_text", "text": text}
            case Image(mime_type, data):
                yield {"type": "input_image", "image_url": _url(mime_type, data), "detail": "auto"}
            case File(name, mime_type, data):
                yield {"type": "input_file", "filename": name, "file_data": _url(mime_type, data)}
            case _:
                pass


def _url(mime_type: str, data: bytes) -> str:
    return f"data:{mime_type};base64,{base64.b64encode(data).decode()}"

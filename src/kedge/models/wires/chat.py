"""Requests of the Chat Completions API, and the differences between the many servers that support it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from kedge.models.values import Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import requests
from kedge.models.wires.call_ids import IdRule
from kedge.models.wires.encoded_cache import EncodedCache
from kedge.models.wires.history import Abilities, EncodingState, valid_history
from kedge.protocol.messages import Image, Message, Part, Reasoning, Text, ToolCall, ToolResult, text_of


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of a server from what nearly all servers accept."""

    host: str = ""  # identifies the server even if the provider has another name
    ids: IdRule = "any"  # of calls
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    has_usage_option: bool = True  # most servers report usage only with this option; some reject it
    user_after_results: bool = True  # False: an assistant message must come between results and a prompt
    # Field or header with the session id, which routes a session's steps to its prompt cache.
    session_field: str = ""
    session_header: str = ""
    marks_claude: bool = False  # can be asked to set the cache marks that Anthropic's models need


PLAIN = Dialect()
# By provider. OpenAI's applies only at its own host: OPENAI_BASE_URL means some other server.
DIALECTS: Mapping[str, Dialect] = {
    "openai": Dialect(
        host="api.openai.com",
        max_tokens_field="max_completion_tokens",  # reasoning models reject the older name, other servers the newer
        session_field="prompt_cache_key",
    ),
    "mistral": Dialect(host="api.mistral.ai", ids="mistral", has_usage_option=False, user_after_results=False),
    "openrouter": Dialect(host="openrouter.ai", session_field="session_id", marks_claude=True),
    "xai": Dialect(host="api.x.ai", session_header="x-grok-conv-id"),
}
_DIALECTS_BY_HOST = {dialect.host: dialect for dialect in DIALECTS.values()}


def find_dialect(endpoint: Endpoint) -> Dialect:
    if (found := _DIALECTS_BY_HOST.get(endpoint.host)) is not None:
        return found
    return PLAIN if endpoint.provider == "openai" else DIALECTS.get(endpoint.provider, PLAIN)


# Tool results are only text in this API, so their images follow in a user message.
IMAGES_NOTE = "[images of the tool results above]"
# Field for reasoning. Servers that send it reject later requests where an answer with calls lacks it; servers with
# another field accept no reasoning.
REASONING_FIELD = "reasoning_content"
# Data that a server attaches to a call and that must be returned (signatures of Gemini).
EXTRA_FIELD = "extra_content"
# Reasoning data of gateways that must be returned unchanged.
DETAILS_FIELD = "reasoning_details"
# Type of a content part with reasoning (Mistral).
THINKING_PART = "thinking"
# Inserted if the server accepts no prompt right after results.
BETWEEN = "Understood."


def prepare_request(endpoint: Endpoint, request: StepRequest, cache: EncodedCache | None = None) -> HttpRequest:
    dialect = find_dialect(endpoint)
    able = requests.find_abilities(endpoint, request, dialect.ids)
    able = msgspec.structs.replace(able, user_after_results=dialect.user_after_results)
    messages = requests.encode_messages(cache, encode, request, able)
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    session = request.history[0].session_id if request.history else None
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "tools": [_tool(tool) for tool in request.tools] if able.tools else None,
        "messages": messages,
        dialect.max_tokens_field: request.max_output_tokens,
        "reasoning_effort": _effort(endpoint, request, has_tools=able.tools),
        "stream": True,
        "stream_options": {"include_usage": True} if dialect.has_usage_option else None,
    }
    if dialect.session_field:
        fields[dialect.session_field] = session
    if dialect.marks_claude and "claude" in endpoint.model:
        fields["cache_control"] = {"type": "ephemeral"}
    own = requests.make_key_headers(endpoint) | _session_headers(dialect, session)
    headers = requests.make_headers(endpoint, own, is_stream=True)
    return HttpRequest("POST", f"{endpoint.base_url}/chat/completions", headers, requests.encode_body(endpoint, fields))


def prepare_listing(endpoint: Endpoint) -> HttpRequest:
    headers = requests.make_headers(endpoint, requests.make_key_headers(endpoint), is_stream=False)
    return HttpRequest("GET", f"{endpoint.base_url}/models", headers)


def encode(history: Sequence[Message], abilities: Abilities, state: EncodingState) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = []
    for role, group in groupby(valid_history(history, abilities, state), lambda message: message.role):
        match role:
            case "user":
                encoded += [{"role": "user", "content": _user_content(message.parts)} for message in group]
            case "assistant":
                encoded += [_answer(message) for message in group]
            case _:
                encoded += _results(list(group))
    return encoded if abilities.user_after_results else _insert_between(encoded)


def is_marked(signature: str) -> bool:
    """True for a signature of this wire, which other wires cannot return."""
    return signature in (REASONING_FIELD, THINKING_PART) or (
        f":{EXTRA_FIELD}:" in signature or signature.startswith(f"{DETAILS_FIELD}:")
    )


def _session_headers(dialect: Dialect, session: str | None) -> dict[str, str]:
    return {dialect.session_header: session} if dialect.session_header and session else {}


def _insert_between(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    spaced: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "user" and spaced and spaced[-1]["role"] == "tool":
            spaced.append({"role": "assistant", "content": BETWEEN})
        spaced.append(message)
    return spaced


def _effort(endpoint: Endpoint, request: StepRequest, *, has_tools: bool) -> str | None:
    info = endpoint.info
    if has_tools and info.effort_with_tools == "none":
        return "none"  # even without an effort: by default these models reason, and then reject tools
    if request.effort is None or not info.reasoning or (has_tools and info.effort_with_tools == "unset"):
        return None
    return info.clamp_effort(request.effort)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _user_content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Return a plain string for text, because some servers accept nothing else."""
    if len(parts) == 1 and isinstance(parts[0], Text):  # fast path for nearly all messages
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
    # Some servers reject a missing content field, others an empty string: null works everywhere.
    answer: dict[str, Any] = {"role": "assistant", "content": text_of(message.parts) or None}
    if not calls:
        return answer
    reasoning = [part for part in message.parts if isinstance(part, Reasoning)]
    if field_text := "".join(part.text for part in reasoning if part.signature == REASONING_FIELD):
        answer[REASONING_FIELD] = field_text
    if thinking := "".join(part.text for part in reasoning if part.signature == THINKING_PART):
        text = [{"type": "text", "text": answer["content"]}] if answer["content"] else []
        block = {"type": THINKING_PART, "thinking": [{"type": "text", "text": thinking}], "closed": True}
        answer["content"] = [block, *text]
    for part in reasoning:
        if (part.signature or "").startswith(f"{DETAILS_FIELD}:"):
            answer[DETAILS_FIELD] = msgspec.Raw((part.signature or "").partition(":")[2].encode())
        index, is_extra, extra = (part.signature or "").partition(f":{EXTRA_FIELD}:")
        if is_extra and index.isdecimal() and int(index) < len(calls):
            calls[int(index)][EXTRA_FIELD] = msgspec.Raw(extra.encode())
    return {**answer, "tool_calls": calls}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.input}}


def _results(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Encode the results of a step, followed by their images."""
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

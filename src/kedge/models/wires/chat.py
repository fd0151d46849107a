"""The wire of OpenAI-compatible Chat Completions, outwards: a step becomes a request. Pure: no network in here."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from kedge.models.values import Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import requests
from kedge.models.wires.call_ids import IdRule
from kedge.models.wires.encoded_cache import Said
from kedge.models.wires.history import Abilities, Past, valid_history
from kedge.protocol.messages import Image, Message, Part, Reasoning, Text, ToolCall, ToolResult, text_of


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    host: str = ""  # by whose address it is known, also where the provider has another name
    ids: IdRule = "any"  # of calls
    bound_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    # Usage is told by all; some tell it only when asked to, and some refuse to be asked.
    asks_usage: bool = True
    # A prompt right after results is refused: a word of the assistant's comes between.
    user_after_results: bool = True
    # Steps of one session go where its cache is: the field, or the header, that says which session it is.
    session_field: str = ""
    session_header: str = ""
    # Models of Anthropic's cache what is marked, and the server sets the marks itself when asked to.
    marks_claude: bool = False


PLAIN = Dialect()
# By the provider's name. OpenAI's is that of its address alone: who sets OPENAI_BASE_URL means some other server.
DIALECTS: Mapping[str, Dialect] = {
    "openai": Dialect(
        host="api.openai.com",
        bound_field="max_completion_tokens",  # its reasoning models refuse the older name; most others know only that
        session_field="prompt_cache_key",
    ),
    "mistral": Dialect(host="api.mistral.ai", ids="mistral", asks_usage=False, user_after_results=False),
    "openrouter": Dialect(host="openrouter.ai", session_field="session_id", marks_claude=True),
    "xai": Dialect(host="api.x.ai", session_header="x-grok-conv-id"),
}
_BY_HOST = {dialect.host: dialect for dialect in DIALECTS.values()}


def dialect_of(endpoint: Endpoint) -> Dialect:
    if (found := _BY_HOST.get(endpoint.host)) is not None:
        return found
    return PLAIN if endpoint.provider == "openai" else DIALECTS.get(endpoint.provider, PLAIN)


# The results of tools are only text here, so their images follow as a user's.
IMAGES_NOTE = "[images of the tool results above]"
# What goes back with an answer, and the field it goes back in. Servers that think in `reasoning_content` refuse a
# history of calls without it; those that use another name take none back.
REASONING_FIELD = "reasoning_content"
# What a server attaches to a call and wants to see again (Gemini signs its thoughts so).
EXTRA_FIELD = "extra_content"

# What a gateway knows of the thoughts of whoever answered behind it, and wants to see again as it was.
DETAILS_FIELD = "reasoning_details"
# Thoughts that were parts of the content (as Mistral has it), and go back as that.
THINKING_PART = "thinking"
# For a server that takes no prompt right after results.
BETWEEN = "Understood."


def prepare_request(endpoint: Endpoint, request: StepRequest, said: Said | None = None) -> HttpRequest:
    dialect = dialect_of(endpoint)
    able = requests.abilities(endpoint, request, dialect.ids)
    able = msgspec.structs.replace(able, user_after_results=dialect.user_after_results)
    messages = requests.messages(said, encode, request, able)
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    session = request.history[0].session_id if request.history else None
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "tools": [_tool(tool) for tool in request.tools] if able.tools else None,
        "messages": messages,
        dialect.bound_field: request.max_output_tokens,
        "reasoning_effort": _effort(endpoint, request, has_tools=able.tools),
        "stream": True,
        "stream_options": {"include_usage": True} if dialect.asks_usage else None,
    }
    if dialect.session_field:
        fields[dialect.session_field] = session
    if dialect.marks_claude and "claude" in endpoint.model:
        fields["cache_control"] = {"type": "ephemeral"}
    own = requests.key_headers(endpoint) | _affinity(dialect, session)
    headers = requests.headers(endpoint, own, is_stream=True)
    return HttpRequest("POST", f"{endpoint.base_url}/chat/completions", headers, requests.body(endpoint, fields))


def prepare_listing(endpoint: Endpoint) -> HttpRequest:
    headers = requests.headers(endpoint, requests.key_headers(endpoint), is_stream=False)
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
    return encoded if abilities.user_after_results else _with_words_between(encoded)


def is_of_chat(signature: str) -> bool:
    """Is it how this wire marks thoughts? Another one cannot send those back."""
    return signature in (REASONING_FIELD, THINKING_PART) or (
        f":{EXTRA_FIELD}:" in signature or signature.startswith(f"{DETAILS_FIELD}:")
    )


def _affinity(dialect: Dialect, session: str | None) -> dict[str, str]:
    return {dialect.session_header: session} if dialect.session_header and session else {}


def _with_words_between(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    spaced: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "user" and spaced and spaced[-1]["role"] == "tool":
            spaced.append({"role": "assistant", "content": BETWEEN})
        spaced.append(message)
    return spaced


def _effort(endpoint: Endpoint, request: StepRequest, *, has_tools: bool) -> str | None:
    info = endpoint.info
    if has_tools and info.effort_with_tools == "none":
        return "none"  # also where nobody asked: left to themselves these models reason, and refuse the tools
    if request.effort is None or not info.reasoning or (has_tools and info.effort_with_tools == "unset"):
        return None
    return info.taken(request.effort)


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
    if thinking := "".join(part.text for part in thoughts if part.signature == THINKING_PART):
        said = [{"type": "text", "text": answer["content"]}] if answer["content"] else []
        block = {"type": THINKING_PART, "thinking": [{"type": "text", "text": thinking}], "closed": True}
        answer["content"] = [block, *said]
    for part in thoughts:
        if (part.signature or "").startswith(f"{DETAILS_FIELD}:"):
            answer[DETAILS_FIELD] = msgspec.Raw((part.signature or "").partition(":")[2].encode())
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

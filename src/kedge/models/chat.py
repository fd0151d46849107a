"""The wire of OpenAI-compatible Chat Completions: history to request, event to deltas. Pure: no network in here."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from kedge.models.errors import Refused
from kedge.models.faults import fault_of_event
from kedge.models.said import Said
from kedge.models.sse import SseEvent
from kedge.models.values import (
    Delta,
    Endpoint,
    HttpRequest,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    StreamEnd,
    TextDelta,
    UsageReport,
)
from kedge.protocol.messages import File, FinishReason, Image, Message, Text, finish_of, text_of
from kedge.version import VERSION

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "content_filter",
}
_STREAM_END = b"[DONE]"


def prepare_request(endpoint: Endpoint, request: StepRequest, said: Said | None = None) -> HttpRequest:
    encoded = said.messages if said else chat_messages
    body = {
        "model": endpoint.model,
        "messages": [{"role": "system", "content": request.system}, *encoded(request.history)],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {**_headers(endpoint), "Accept": "text/event-stream", "Content-Type": "application/json"}
    return HttpRequest("POST", f"{endpoint.base_url}/chat/completions", headers, msgspec.json.encode(body))


def prepare_listing(endpoint: Endpoint) -> HttpRequest:
    return HttpRequest("GET", f"{endpoint.base_url}/models", {**_headers(endpoint), "Accept": "application/json"})


def parse_listing(body: bytes) -> list[str]:
    """The names of the models that a server offers, in its order."""
    try:
        return [model.id for model in msgspec.json.decode(body, type=_Listing).data]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused("bad_response", f"the list of models cannot be read: {error}") from error


def chat_messages(history: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation as a provider accepts it: nothing empty, nothing interrupted."""
    messages: list[dict[str, Any]] = []
    for message in history:
        if message.role == "user":
            if content := _user_content(message):
                messages.append({"role": "user", "content": content})
        elif message.role == "assistant" and not _is_interrupted(message) and (text := text_of(message.parts)):
            messages.append({"role": "assistant", "content": text})
    return messages


def parse_event(event: SseEvent, key: str | None = None) -> list[Delta]:
    """What one event says. Raises the `ModelError` that it tells of, or that it is; `key` is not to be told."""
    data = event.data.strip()
    if data == _STREAM_END:
        return [StreamEnd()]
    chunk = _decode(data)
    if chunk.error is not None or event.name == "error":
        raise fault_of_event(data, key)
    deltas: list[Delta] = []
    for choice in chunk.choices or ():
        if choice.finish_reason == "error":
            raise fault_of_event(data, key)
        if choice.index == 0:  # one answer was asked for
            deltas += _choice_deltas(choice)
    if (usage := _usage(chunk.usage)) is not None:
        deltas.append(usage)
    return deltas


class _Said(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    # One thing under two names; servers that send both send the same text twice.
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Said | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


class _Model(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Model]


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def _headers(endpoint: Endpoint) -> dict[str, str]:
    # Compressed streams are held back until a block is full: ask for plain ones.
    headers = {"User-Agent": f"kedge/{VERSION}", "Accept-Encoding": "identity"}
    if endpoint.api_key is not None:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    return headers


def _is_interrupted(message: Message) -> bool:
    finish = finish_of(message.parts)
    return finish is not None and finish.reason == "interrupted"


def _user_content(message: Message) -> str | list[dict[str, Any]]:
    """Plain text where it is only that, because some servers understand nothing else."""
    if len(message.parts) == 1 and isinstance(message.parts[0], Text):  # nearly all, in a history of thousands
        return message.parts[0].text
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case Text(text):
                blocks.append({"type": "text", "text": text})
            case Image(mime_type, data):
                url = f"data:{mime_type};base64,{base64.b64encode(data).decode()}"
                blocks.append({"type": "image_url", "image_url": {"url": url}})
            case File():
                blocks.append({"type": "text", "text": _file_text(part)})
            case _:
                pass
    if all(block["type"] == "text" for block in blocks):
        return "\n\n".join(block["text"] for block in blocks)
    return blocks


def _file_text(file: File) -> str:
    if file.mime_type.startswith("text/"):
        return f"Attached file {file.name}:\n\n{file.data.decode('utf-8', 'replace')}"
    return f"Attached file {file.name} ({file.mime_type}, {len(file.data)} bytes; its content cannot be shown)"


def _decode(data: bytes) -> _Chunk:
    try:
        return _decode_chunk(data)
    except msgspec.ValidationError as error:
        raise _malformed(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_leniently(data)


def _decode_leniently(data: bytes) -> _Chunk:
    """Half a surrogate pair is valid JSON; its other half may be in the next event, and the writer joins them."""
    try:
        return msgspec.convert(json.loads(data.decode()), _Chunk)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise _malformed(error) from error


def _malformed(error: Exception) -> Refused:
    return Refused("bad_response", f"the model's answer is malformed: {error}")


def _choice_deltas(choice: _Choice) -> list[Delta]:
    deltas: list[Delta] = []
    if (said := choice.delta) is not None:
        if thought := said.reasoning_content or said.reasoning:
            deltas.append(ReasoningDelta(thought))
        if text := said.content or said.refusal:
            deltas.append(TextDelta(text))
    if choice.finish_reason:
        deltas.append(StepEnd(_FINISH_REASONS.get(choice.finish_reason, "unknown")))
    return deltas


def _usage(report: Any) -> UsageReport | None:
    """Read with care: a wrong count must not cost a good answer."""
    if not isinstance(report, dict):
        return None
    fields = cast("dict[str, Any]", report)
    details = fields.get("prompt_tokens_details")
    cached = _count(cast("dict[str, Any]", details).get("cached_tokens")) if isinstance(details, dict) else 0
    # The provider counts what came from its cache among the input; we count each token once.
    return UsageReport(
        input_tokens=max(0, _count(fields.get("prompt_tokens")) - cached),
        output_tokens=_count(fields.get("completion_tokens")),
        cache_read_tokens=cached,
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0

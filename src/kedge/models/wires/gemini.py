"""Requests and streams of Google's Gemini API. Unknown fields are ignored.

Gemini signs parts, and a signature must be returned on the same part. We store it in a `Reasoning` part: before the
signed call, after the signed text, or with the signed reasoning itself. `mark` and `read_mark` encode which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from kedge.config.schema import Effort
from kedge.models import values
from kedge.models.errors import Refused, Transient
from kedge.models.values import Delta, Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import hosted_search, requests
from kedge.models.wires.chat import IMAGES_NOTE
from kedge.models.wires.decoding import AnswerStream, as_object, count, make_json_decoder
from kedge.models.wires.history import GO_ON, Abilities, EncodingState, valid_history
from kedge.models.wires.provider_errors import error_from_event
from kedge.models.wires.requests import EncodedCache
from kedge.protocol.messages import File, FinishReason, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult
from kedge.protocol.text_safety import shorten

VERSION = "v1beta"  # of the API; all servers and gateways support this one
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})
# The third generation rejects a step whose first call is not signed. Google documents this value for calls of others.
NOT_SIGNED = "skip_thought_signature_validator"
# Earlier generations take a token budget for reasoning; these are Google's own numbers for each effort.
BUDGETS: dict[Effort, int] = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576}
HIGHEST: Effort = "high"  # of any model of this API
PAGE_SIZE = 1000  # of the list of models; the maximum

_OLDER = re.compile(r"gemini-(?:pro\b(?!-latest)|[12]\b)|gemma|learnlm", re.I)
_MARKED = "gemini:"  # prefix of signatures of this wire
_MARK = re.compile(_MARKED + r"(thought|call|text-\d{1,9}):(.+)", re.S)


def prepare_request(endpoint: Endpoint, request: StepRequest, cache: EncodedCache | None = None) -> HttpRequest:
    is_new = not is_older(endpoint.model)
    able = _abilities(endpoint, request)
    encoder = encode if is_new else encode_older
    contents = requests.encode_messages(cache, encoder, request, able, {"parts": [{"text": GO_ON}]})
    fields: dict[str, Any] = {
        "systemInstruction": {"parts": [{"text": request.system}]} if request.system else None,
        "tools": _encode_tools(request, able) if able.tools else None,
        "toolConfig": {"includeServerSideToolInvocations": True} if able.tools and able.searches else None,
        "generationConfig": _generation_config(endpoint, request, is_new=is_new) or None,
        "contents": contents,
    }
    url = f"{_base(endpoint)}/{_model_path(endpoint.model)}:streamGenerateContent?alt=sse"
    return requests.make_stream_request(endpoint, url, _key(endpoint), fields)


def prepare_listing(endpoint: Endpoint) -> HttpRequest:
    return requests.make_listing_request(endpoint, f"{_base(endpoint)}/models?pageSize={PAGE_SIZE}", _key(endpoint))


class _Model(msgspec.Struct, rename="camel"):
    name: str
    supported_generation_methods: list[str] | None = None  # None: not reported

    @property
    def generates_text(self) -> bool:
        return self.supported_generation_methods is None or "generateContent" in self.supported_generation_methods


class _Listing(msgspec.Struct, rename="camel"):
    models: list[_Model] = []
    next_page_token: str = ""


def parse_listing(data: bytes) -> list[str]:
    """Return the names of the models that generate text."""
    models = requests.decode_listing(data, _Listing).models
    return [model.name.removeprefix("models/") for model in models if model.generates_text]


def next_listing(request: HttpRequest, data: bytes) -> HttpRequest | None:
    """Return the request for the next page, or None after the last one."""
    if not (token := requests.decode_listing(data, _Listing).next_page_token):
        return None
    page = urlencode({"pageSize": PAGE_SIZE, "pageToken": token})
    return msgspec.structs.replace(request, url=f"{urlsplit(request.url)._replace(query='').geturl()}?{page}")


def encode(history: Sequence[Message], abilities: Abilities, state: EncodingState) -> list[dict[str, Any]]:
    return _contents(history, abilities, state, is_new=True)


def encode_older(history: Sequence[Message], abilities: Abilities, state: EncodingState) -> list[dict[str, Any]]:
    """Encode for generations without signatures, whose results are only text: images follow in a user message."""
    return _contents(history, abilities, state, is_new=False)


def is_older(model: str) -> bool:
    """True for generations before the third."""
    return _OLDER.search(model) is not None


def mark(kind: str, signature: str) -> str:
    """Encode a signature and what it signs: `thought` (its reasoning), `call` (the next call), or `text-N` (the last N
    characters of the preceding text; 0: an empty part)."""
    return f"{_MARKED}{kind}:{signature}"


def read_mark(signature: str | None) -> tuple[str, str] | None:
    """Return kind and signature, or None for a signature of another wire."""
    match = _MARK.fullmatch(signature or "")
    return (match[1], match[2]) if match else None


def is_marked(signature: str) -> bool:
    """True for a signature of this wire."""
    return signature.startswith(_MARKED)


def _key(endpoint: Endpoint) -> dict[str, str]:
    return {} if endpoint.api_key is None else {"x-goog-api-key": endpoint.api_key}


def _base(endpoint: Endpoint) -> str:
    """Google's own URL has no version; those of other servers may have one."""
    is_versioned = re.search(r"/v\d\w*$", endpoint.base_url) is not None
    return endpoint.base_url if is_versioned else f"{endpoint.base_url}/{VERSION}"


def _model_path(model: str) -> str:
    is_qualified = model.startswith(("models/", "tunedModels/"))
    return quote(model if is_qualified else f"models/{model}", safe="/:@")


def _abilities(endpoint: Endpoint, request: StepRequest) -> Abilities:
    able = requests.find_abilities(endpoint, request, "any")
    return msgspec.structs.replace(able, image_types=IMAGE_TYPES, pdfs=endpoint.info.images, trailing_reasoning=True)


def _generation_config(endpoint: Endpoint, request: StepRequest, *, is_new: bool) -> dict[str, Any]:
    info = endpoint.info
    config: dict[str, Any] = {}
    if limit := request.max_output_tokens or info.max_output_tokens:
        config["maxOutputTokens"] = limit
    if not info.reasoning:
        return config
    thinking: dict[str, Any] = {"includeThoughts": True}  # it reasons anyway; show it
    if request.effort is not None:
        effort = info.clamp_effort(request.effort)
        effort = effort if effort in BUDGETS else HIGHEST
        thinking |= {"thinkingLevel": effort.upper()} if is_new else {"thinkingBudget": BUDGETS[effort]}
    return {**config, "thinkingConfig": thinking}


def _encode_tools(request: StepRequest, able: Abilities) -> list[dict[str, Any]]:
    declared: list[dict[str, Any]] = [{"functionDeclarations": [_encode_tool(tool) for tool in request.tools]}]
    return [*declared, {"googleSearch": {}}] if able.searches else declared


def _encode_tool(tool: ToolSpec) -> dict[str, Any]:
    """Use `parametersJsonSchema`: the older field supports only a part of JSON Schema."""
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.input_schema}


def _contents(
    history: Sequence[Message], abilities: Abilities, state: EncodingState, *, is_new: bool
) -> list[dict[str, Any]]:
    """Merge consecutive answers, because a call must follow a user message, and all results of a step: the API requires
    one message with exactly the results of the calls."""
    encoded: list[dict[str, Any]] = []
    for role, group in groupby(valid_history(history, abilities, state), lambda message: message.role):
        match role:
            case "user":
                encoded += [_content("user", [_encode_part(part) for part in message.parts]) for message in group]
            case "assistant":
                parts = [part for message in group for part in _encode_answer(message, is_new=is_new)]
                encoded.append(_content("model", _sign_first_call(parts) if is_new else parts))
            case _:
                encoded += _encode_results(list(group), is_new=is_new)
    return encoded


def _content(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": role, "parts": parts}


def _encode_answer(message: Message, *, is_new: bool) -> list[dict[str, Any]]:
    model = (message.model or "").partition("/")[2]
    can_return = is_older(model) != is_new  # signatures are valid only for the same generation
    parts: list[dict[str, Any]] = []
    call_signature = ""
    for part in message.parts:
        match part:
            case Text(text):
                call_signature = ""
                parts.append({"text": text})
            case ToolCall(call_id, name, arguments):
                call = {"functionCall": {"id": call_id, "name": name, "args": msgspec.Raw(arguments.encode())}}
                parts.append(_add_signature(call, call_signature))
                call_signature = ""
            case Reasoning(_, kept) if hosted_search.is_marked(kept):
                parts += hosted_search.read_items(kept)
            case Reasoning(text, kept) if can_return and (marked := read_mark(kept)):
                kind, signature = marked
                if kind == "call":
                    call_signature = signature
                elif kind == "thought":
                    parts.append(_add_signature({"text": text, "thought": True}, signature))
                else:
                    _sign_text(parts, int(kind.removeprefix("text-")), signature)
            case _:
                pass
    return parts


def _sign_text(parts: list[dict[str, Any]], size: int, signature: str) -> None:
    """Split the signed characters from the text, which is stored joined. If they are gone, sign an empty part."""
    last = parts[-1] if parts else {}
    text = "" if "thoughtSignature" in last else last.get("text", "")
    if not 0 < size <= len(text):
        parts.append(_add_signature({"text": ""}, signature))
        return
    rest = text[:-size]
    parts[-1:] = [*([{"text": rest}] if rest else []), _add_signature({"text": text[-size:]}, signature)]


def _add_signature(part: dict[str, Any], signature: str) -> dict[str, Any]:
    return {**part, "thoughtSignature": signature} if signature else part


def _sign_first_call(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add `NOT_SIGNED` to the first call if it has no signature."""
    first = next((i for i, part in enumerate(parts) if "functionCall" in part), None)
    if first is not None and "thoughtSignature" not in parts[first]:
        parts[first] = _add_signature(parts[first], NOT_SIGNED)
    return parts


def _encode_results(messages: Sequence[Message], *, is_new: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    images_after: list[dict[str, Any]] = []
    for message in messages:
        result, *images = message.parts
        assert isinstance(result, ToolResult)
        content = {"error" if result.is_error else "output": result.content}
        response: dict[str, Any] = {"id": result.tool_call_id, "name": result.name, "response": content}
        encoded = [_encode_part(image) for image in images]
        if is_new and encoded:
            response["parts"] = encoded
        else:
            images_after += encoded
        parts.append({"functionResponse": response})
    extra = [_content("user", [{"text": IMAGES_NOTE}, *images_after])] if images_after else []
    return [_content("user", parts), *extra]


def _encode_part(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"text": text}
        case Image(mime_type, data) | File(_, mime_type, data):
            return {"inlineData": {"mimeType": mime_type, "data": requests.encode_base64(data)}}
        case _:
            raise AssertionError(f"not a user part: {type(part).__name__}")


_FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "end_turn",
    "MAX_TOKENS": "max_tokens",
    "CONTINUATION": "max_tokens",  # of a limit per request
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "LANGUAGE": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}
# The server could not parse the model's output. Another attempt may succeed.
_MALFORMED = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"})
_UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"
_COUNTS = (
    "promptTokenCount",
    "toolUsePromptTokenCount",
    "cachedContentTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
)


class _Call(msgspec.Struct):
    id: str | None = None
    name: str | None = None
    args: Any = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _Call | None = None
    tool_call: Any = None  # of the provider's own tools
    tool_response: Any = None


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    index: int | None = 0
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    grounding_metadata: Any = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class _Chunk(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: Any = None
    error: Any = None


_decode = make_json_decoder(_Chunk)


class GeminiStream(AnswerStream):
    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        super().__init__(endpoint, request)
        self._open = ""  # kind of the open part: "text" or "thought"
        self._index = 0  # of the current part
        self._calls = 0
        self._counts: dict[str, int] = {}
        self._is_ended = False
        self._search_price = request.search_price  # of one by the provider; None: it may not search
        self._search_cost = 0.0

    def _parse_data(self, data: bytes, event_name: str) -> list[Delta]:
        chunk = _decode(data)
        if chunk.error is not None or event_name == "error":
            raise error_from_event(data, self._endpoint)
        deltas: list[Delta] = []
        ends: list[Delta] = []
        for candidate in chunk.candidates or ():
            if not candidate.index:  # we request one answer
                for part in (candidate.content and candidate.content.parts) or ():
                    deltas += self._parse_part(part)
                if self._search_price is not None and candidate.grounding_metadata is not None:
                    deltas += self._parse_grounding(candidate.grounding_metadata)
                ends += self._parse_end(candidate)
        self._check_prompt(chunk.prompt_feedback)
        return [*deltas, *self._parse_usage(chunk.usage_metadata), *ends]

    def _parse_part(self, part: _Part) -> list[Delta]:
        if part.function_call is not None:
            return self._parse_call(part.function_call, part.thought_signature or "")
        if self._search_price is not None and (part.tool_call is not None or part.tool_response is not None):
            return self._parse_search(part)
        if part.thought:
            return self._parse_reasoning(part.text or "", part.thought_signature or "")
        return self._parse_text(part.text or "", part.thought_signature or "")

    def _parse_text(self, text: str, signature: str) -> list[Delta]:
        deltas: list[Delta] = []
        if text:
            deltas += self._switch_to("text")
            deltas.append(values.TextDelta(text, self._block))
        if signature:
            deltas += [*self._close(), *self._store_signature(f"text-{len(text)}", signature)]
        return deltas

    def _parse_reasoning(self, text: str, signature: str) -> list[Delta]:
        if signature:  # signed reasoning is a part of its own
            return [
                *self._close(),
                values.ReasoningDelta(text, self._block, mark("thought", signature)),
                *self._end_block(),
            ]
        return [*self._switch_to("thought"), values.ReasoningDelta(text, self._block)] if text else []

    def _parse_call(self, call: _Call, signature: str) -> list[Delta]:
        if not call.name:
            return []
        deltas = self._close()
        if signature:
            deltas += self._store_signature("call", signature)
        call_id = self._ids.make_unique(call.id or "", self._calls)
        self._calls += 1
        arguments = json.dumps(as_object(call.args), ensure_ascii=False)
        deltas.append(values.ToolCallDelta(self._block, call_id, call.name, arguments))
        return [*deltas, *self._end_block()]

    def _parse_search(self, part: _Part) -> list[Delta]:
        """Store a part of a search by the provider, which gets it back unchanged."""
        if part.tool_call is not None:
            item, text = {"toolCall": part.tool_call}, ""
            given = as_object(as_object(part.tool_call).get("args"))
            queries: Any = given.get("queries")
            if as_object(part.tool_call).get("toolType") == "GOOGLE_SEARCH_WEB":
                listed = cast("list[Any]", queries) if isinstance(queries, list) else [given.get("query")]
                text = hosted_search.describe_queries(listed)
                self._search_cost += (self._search_price or 0.0) * max(1, len(listed))
        else:
            item, text = {"toolResponse": part.tool_response}, ""
        return self._store_search(text, [_add_signature(item, part.thought_signature or "")])

    def _parse_grounding(self, metadata: Any) -> list[Delta]:
        chunks: Any = as_object(metadata).get("groundingChunks")
        pages = [as_object(as_object(each).get("web")) for each in chunks] if isinstance(chunks, list) else []  # pyright: ignore[reportUnknownVariableType]
        sources = hosted_search.describe_sources([(page.get("title"), page.get("uri")) for page in pages])
        return self._store_search(f"Sources:\n{sources}", []) if sources else []

    def _store_search(self, text: str, items: list[Any]) -> list[Delta]:
        stored = values.ReasoningDelta(text, "", hosted_search.mark("gemini", items))
        closed = self._close()
        return [*closed, msgspec.structs.replace(stored, block=self._block), *self._end_block()]

    def _store_signature(self, kind: str, signature: str) -> list[Delta]:
        """Return the signature as a part of its own: reasoning without text, which is not shown."""
        return [values.ReasoningDelta("", self._block, mark(kind, signature)), *self._end_block()]

    @property
    def _block(self) -> str:
        return str(self._index)

    def _switch_to(self, kind: str) -> list[Delta]:
        """Close the open part if it is of another kind."""
        ended = self._close() if self._open != kind else []
        self._open = kind
        return ended

    def _close(self) -> list[Delta]:
        return self._end_block() if self._open else []

    def _end_block(self) -> list[Delta]:
        ended = values.BlockEnd(self._block)
        self._open = ""
        self._index += 1
        return [ended]

    def _parse_end(self, candidate: _Candidate) -> list[Delta]:
        name = candidate.finish_reason
        if not name or name == _UNSPECIFIED or self._is_ended:
            return []
        if name in _MALFORMED:
            reason = shorten(candidate.finish_message or "malformed output", 200)
            raise Transient("provider_error", f"The provider stopped the answer: {name} ({reason})")
        self._is_ended = True
        reason = _FINISH_REASONS.get(name, "unknown")
        if reason in ("end_turn", "unknown") and self._calls:
            reason = "tool_use"
        return [*self._close(), values.StepEnd(reason)]

    def _check_prompt(self, feedback: _Feedback | None) -> None:
        if feedback is None or not feedback.block_reason or feedback.block_reason == "BLOCKED_REASON_UNSPECIFIED":
            return
        message = shorten(feedback.block_reason_message or "", 200)
        reason = f"{feedback.block_reason}: {message}" if message else feedback.block_reason
        text = f"{self._endpoint.host} blocked the prompt ({reason}): the provider's content filter refused the request"
        raise Refused("content_filter", text)

    def _parse_usage(self, report: Any) -> list[Delta]:
        """Ignore invalid counts. Each report covers the whole step so far."""
        fields = as_object(report)
        known = self._counts | {name: count(fields[name]) for name in _COUNTS if name in fields}
        if known == self._counts:
            return []
        self._counts = known
        prompt, tools, cached, answer, reasoning = (self._counts.get(name, 0) for name in _COUNTS)
        if not (prompt or answer or reasoning):
            return []  # the server does not count
        # The prompt includes cached tokens; we count each token once.
        return [
            values.UsageReport(
                input_tokens=max(0, prompt + tools - cached),
                output_tokens=answer + reasoning,
                cache_read_tokens=cached,
                search_cost=self._search_cost or None,
            )
        ]

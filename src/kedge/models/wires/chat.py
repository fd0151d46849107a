"""Requests and streams of the Chat Completions API, with the variations of the many servers that support it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, cast

import msgspec

from kedge.models import values
from kedge.models.values import Delta, Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import requests
from kedge.models.wires.decoding import AnswerStream, as_object, count, make_json_decoder
from kedge.models.wires.history import Abilities, EncodingState, IdRule, valid_history
from kedge.models.wires.provider_errors import error_from_event
from kedge.models.wires.requests import EncodedCache
from kedge.protocol.messages import FinishReason, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult, text_of


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
        "tools": [_encode_tool(tool) for tool in request.tools] if able.tools else None,
        "messages": messages,
        dialect.max_tokens_field: request.max_output_tokens,
        "reasoning_effort": _choose_effort(endpoint, request, has_tools=able.tools),
        "stream": True,
        "stream_options": {"include_usage": True} if dialect.has_usage_option else None,
    }
    if dialect.session_field:
        fields[dialect.session_field] = session
    if dialect.marks_claude and "claude" in endpoint.model:
        fields["cache_control"] = {"type": "ephemeral"}
    own = requests.make_key_headers(endpoint)
    if dialect.session_header and session:
        own[dialect.session_header] = session
    return requests.make_stream_request(endpoint, f"{endpoint.base_url}/chat/completions", own, fields)


def prepare_listing(endpoint: Endpoint) -> HttpRequest:
    return requests.make_listing_request(endpoint, f"{endpoint.base_url}/models", requests.make_key_headers(endpoint))


def encode(history: Sequence[Message], abilities: Abilities, state: EncodingState) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = []
    for role, group in groupby(valid_history(history, abilities, state), lambda message: message.role):
        match role:
            case "user":
                encoded += [{"role": "user", "content": _user_content(message.parts)} for message in group]
            case "assistant":
                encoded += [_encode_answer(message) for message in group]
            case _:
                encoded += _encode_results(list(group))
    return encoded if abilities.user_after_results else _insert_between(encoded)


def is_marked(signature: str) -> bool:
    """True for a signature of this wire, which other wires cannot return."""
    return signature in (REASONING_FIELD, THINKING_PART) or (
        f":{EXTRA_FIELD}:" in signature or signature.startswith(f"{DETAILS_FIELD}:")
    )


def _insert_between(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    spaced: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "user" and spaced and spaced[-1]["role"] == "tool":
            spaced.append({"role": "assistant", "content": BETWEEN})
        spaced.append(message)
    return spaced


def _choose_effort(endpoint: Endpoint, request: StepRequest, *, has_tools: bool) -> str | None:
    info = endpoint.info
    if has_tools and info.effort_with_tools == "none":
        return "none"  # even without an effort: by default these models reason, and then reject tools
    if request.effort is None or not info.reasoning or (has_tools and info.effort_with_tools == "unset"):
        return None
    return info.clamp_effort(request.effort)


def _encode_tool(tool: ToolSpec) -> dict[str, Any]:
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
                url = requests.make_data_url(mime_type, data)
                blocks.append({"type": "image_url", "image_url": {"url": url}})
            case _:
                pass
    return blocks


def _encode_answer(message: Message) -> dict[str, Any]:
    calls = [_encode_call(part) for part in message.parts if isinstance(part, ToolCall)]
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


def _encode_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.input}}


def _encode_results(messages: Sequence[Message]) -> list[dict[str, Any]]:
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


_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "content_filter",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}
_DETAILS = "details"
_JOINED = frozenset({"text", "summary", "data"})


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None  # a string; some servers send the object


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Any = None


class _Delta(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None  # Mistral sends a list of pieces
    refusal: str | None = None
    # Two names for the same text; some servers send both.
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Any] | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int | None = 0
    delta: _Delta | None = None
    finish_reason: str | None = None
    usage: Any = None  # some servers report it here


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_decode = make_json_decoder(_Chunk)


class _OpenCall:
    """A call whose input is still arriving."""

    def __init__(self, index: int, call_id: str) -> None:
        self.index = index
        self.block = f"call-{index}"
        self.id = call_id  # as the server gave it
        self.name = ""
        self.input: list[str] = []

    @property
    def is_complete(self) -> bool:
        last = next((piece for piece in reversed(self.input) if piece.strip()), "")
        if not last.rstrip().endswith("}"):
            return False  # the common case, without decoding everything again for each piece
        try:
            msgspec.json.decode("".join(self.input))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return False
        return True


class ChatStream(AnswerStream):
    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        super().__init__(endpoint, request)
        self._calls: list[_OpenCall] = []
        self._by_index: dict[int, _OpenCall] = {}
        self._has_reasoning = False
        self._details: list[dict[str, Any]] = []
        self._is_ended = False

    def _parse_data(self, data: bytes, event_name: str) -> list[Delta]:
        chunk = _decode(data)
        if chunk.error is not None or event_name == "error":
            raise error_from_event(data, self._endpoint)
        deltas: list[Delta] = []
        for choice in chunk.choices or ():
            if choice.finish_reason == "error":
                raise error_from_event(data, self._endpoint)
            if not choice.index:  # we request one answer
                deltas += self._parse_choice(choice)
        if (usage := _parse_usage(chunk.usage)) is not None:
            deltas.append(usage)
        return deltas

    def _end_stream(self) -> list[Delta]:
        ended = [values.StepEnd("tool_use")] if self._calls and not self._is_ended else []
        return [*ended, values.StreamEnd()]

    def _parse_choice(self, choice: _Choice) -> list[Delta]:
        deltas: list[Delta] = []
        if (delta := choice.delta) is not None:
            deltas += self._parse_reasoning(delta)
            if text := _text(delta.content) or delta.refusal:
                deltas.append(values.TextDelta(text))
            for piece in delta.tool_calls or ():
                deltas += self._parse_piece(piece)
        if (usage := _parse_usage(choice.usage)) is not None:
            deltas.append(usage)
        if choice.finish_reason and not self._is_ended:
            self._is_ended = True
            deltas += [
                values.ToolCallDelta(call.block, input="{}") for call in self._calls if call.name and not call.input
            ]
            if self._details:
                details = msgspec.json.encode(self._details).decode()
                deltas.append(
                    values.ReasoningDelta(block=_DETAILS, signature=f"{DETAILS_FIELD}:{details}", redacted=True)
                )
            deltas.append(values.StepEnd(self._finish_reason(choice.finish_reason)))
        return deltas

    def _parse_reasoning(self, delta: _Delta) -> list[Delta]:
        """Return reasoning to show, and to return later: the field, pieces of the content, or a gateway's details."""
        deltas: list[Delta] = []
        if delta.reasoning_details:
            if not self._details:  # opens its part before the answer; its content follows at the end
                deltas.append(values.ReasoningDelta(block=_DETAILS, redacted=True))
            _add_details(self._details, delta.reasoning_details)
        thinking = "" if isinstance(delta.content, str | None) else "".join(map(_thinking_text, delta.content))
        if delta.reasoning_content and not self._details:
            deltas.append(values.ReasoningDelta(delta.reasoning_content, signature=self._sign_once(REASONING_FIELD)))
        elif thinking:
            deltas.append(values.ReasoningDelta(thinking, signature=self._sign_once(THINKING_PART)))
        elif text := delta.reasoning or delta.reasoning_content:
            deltas.append(values.ReasoningDelta(text))
        return deltas

    def _sign_once(self, signature: str) -> str:
        """Return the signature only the first time: signatures of a block are concatenated."""
        first, self._has_reasoning = "" if self._has_reasoning else signature, True
        return first

    def _finish_reason(self, name: str) -> FinishReason:
        """Correct servers that report "stop" with calls, or "tool_calls" without."""
        reason = _FINISH_REASONS.get(name, "unknown")
        if reason in ("end_turn", "unknown") and self._calls:
            return "tool_use"
        return "end_turn" if reason == "tool_use" and not self._calls else reason

    def _parse_piece(self, piece: _Call) -> list[Delta]:
        name = (piece.function and piece.function.name) or ""
        text = _arguments(piece.function.arguments if piece.function else None)
        if not (piece.id or name or text):
            return []
        call = self._find_call(piece, name)
        deltas: list[Delta] = []
        if piece.extra_content is not None:
            extra = msgspec.json.encode(piece.extra_content).decode()
            signature = f"{call.index}:{EXTRA_FIELD}:{extra}"
            deltas.append(values.ReasoningDelta(block=f"extra-{call.index}", signature=signature, redacted=True))
        if text:
            call.input.append(text)
        if name and not call.name:
            call.name = name
            deltas.append(
                values.ToolCallDelta(call.block, self._ids.make_unique(call.id, call.index), name, "".join(call.input))
            )
        elif text and call.name:  # pieces before the name are sent with it
            deltas.append(values.ToolCallDelta(call.block, input=text))
        return deltas

    def _find_call(self, piece: _Call, name: str) -> _OpenCall:
        """Return the call that a piece belongs to. Some servers give all calls the same index, or none."""
        if piece.index is None:
            known = next((call for call in self._calls if piece.id and call.id == piece.id), None)
            call = known or (self._calls[-1] if self._calls and not piece.id else None)
        else:
            call = self._by_index.get(piece.index)
        if call is not None and name and call.name:
            is_new_call = call.id != piece.id if piece.id else call.is_complete or call.name != name
        else:
            is_new_call = False
        if call is None or is_new_call:
            call = _OpenCall(len(self._calls), piece.id or "")
            self._calls.append(call)
            if piece.index is not None:
                self._by_index[piece.index] = call
        elif piece.id and not call.id:
            call.id = piece.id
        return call


def _text(content: str | list[dict[str, Any]] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_piece_text(piece) for piece in content if piece.get("type") == "text")


def _thinking_text(piece: dict[str, Any]) -> str:
    pieces = piece.get("thinking") if piece.get("type") == THINKING_PART else None
    return "".join(map(_piece_text, cast("list[Any]", pieces))) if isinstance(pieces, list) else ""


def _piece_text(piece: Any) -> str:
    text = as_object(piece).get("text")
    return text if isinstance(text, str) else ""


def _add_details(details: list[dict[str, Any]], more: Iterable[Any]) -> None:
    """Join the pieces of each detail, so that it is returned as one; other fields are kept unchanged."""
    for piece in more:
        new = as_object(piece)
        last = details[-1] if details else {}
        if not details or any(last.get(name) != new.get(name) for name in ("type", "index")):
            details.append(dict(new))
            continue
        for name, value in new.items():
            if name in _JOINED and isinstance(value, str) and isinstance(last.get(name), str):
                last[name] += value
            elif value is not None or name not in last:
                last[name] = value


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()


def _parse_usage(report: Any) -> values.UsageReport | None:
    fields = as_object(report)
    input_details = as_object(fields.get("prompt_tokens_details"))
    output_details = as_object(fields.get("completion_tokens_details"))
    prompt, output = count(fields.get("prompt_tokens")), count(fields.get("completion_tokens"))
    if not prompt and not output:
        return None
    cached = count(input_details.get("cached_tokens")) or count(fields.get("prompt_cache_hit_tokens"))
    reasoning = count(output_details.get("reasoning_tokens"))
    if reasoning and count(fields.get("total_tokens")) == prompt + output + reasoning:
        output += reasoning  # some servers count reasoning separately
    stored = count(input_details.get("cache_write_tokens"))
    cost = fields.get("cost")
    # The provider counts cached tokens as input, too; we count each token once.
    return values.UsageReport(
        input_tokens=max(0, prompt - cached - stored),
        output_tokens=output,
        cache_read_tokens=cached,
        cache_write_tokens=stored or None,
        cost=float(cost) if isinstance(cost, int | float) and 0 <= cost < 1e6 and not isinstance(cost, bool) else None,
    )

"""Streams of the Chat Completions API, with the variations of the many servers that support it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from kedge.models.values import (
    Delta,
    Endpoint,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from kedge.models.wires.call_ids import StepIds
from kedge.models.wires.chat import DETAILS_FIELD, EXTRA_FIELD, REASONING_FIELD, THINKING_PART
from kedge.models.wires.decoding import SseEvent, as_object, count, make_json_decoder
from kedge.models.wires.provider_errors import error_from_event
from kedge.protocol.messages import FinishReason

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "content_filter",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}
_STREAM_END = b"[DONE]"
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


class ChatStream:
    """Decodes the events of one answer."""

    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        self._endpoint = endpoint
        self._ids = StepIds(request.history)
        self._calls: list[_OpenCall] = []
        self._by_index: dict[int, _OpenCall] = {}
        self._has_reasoning = False
        self._details: list[dict[str, Any]] = []
        self._is_ended = False

    def parse_event(self, event: SseEvent) -> list[Delta]:
        """Return the deltas of an event. Raises the `ModelError` that it reports, or `Refused` if it is malformed."""
        data = event.data.strip()
        if data == _STREAM_END:
            ended = [StepEnd("tool_use")] if self._calls and not self._is_ended else []
            return [*ended, StreamEnd()]
        chunk = _decode(data)
        if chunk.error is not None or event.name == "error":
            raise error_from_event(data, self._endpoint)
        deltas: list[Delta] = []
        for choice in chunk.choices or ():
            if choice.finish_reason == "error":
                raise error_from_event(data, self._endpoint)
            if not choice.index:  # we request one answer
                deltas += self._choice(choice)
        if (usage := _usage(chunk.usage)) is not None:
            deltas.append(usage)
        return deltas

    def _choice(self, choice: _Choice) -> list[Delta]:
        deltas: list[Delta] = []
        if (delta := choice.delta) is not None:
            deltas += self._reasoning(delta)
            if text := _text(delta.content) or delta.refusal:
                deltas.append(TextDelta(text))
            for piece in delta.tool_calls or ():
                deltas += self._piece(piece)
        if (usage := _usage(choice.usage)) is not None:
            deltas.append(usage)
        if choice.finish_reason and not self._is_ended:
            self._is_ended = True
            deltas += [ToolCallDelta(call.block, input="{}") for call in self._calls if call.name and not call.input]
            if self._details:
                details = msgspec.json.encode(self._details).decode()
                deltas.append(ReasoningDelta(block=_DETAILS, signature=f"{DETAILS_FIELD}:{details}", redacted=True))
            deltas.append(StepEnd(self._finish_reason(choice.finish_reason)))
        return deltas

    def _reasoning(self, delta: _Delta) -> list[Delta]:
        """Return reasoning to show, and to return later: the field, pieces of the content, or a gateway's details."""
        deltas: list[Delta] = []
        if delta.reasoning_details:
            if not self._details:  # opens its part before the answer; its content follows at the end
                deltas.append(ReasoningDelta(block=_DETAILS, redacted=True))
            _add_details(self._details, delta.reasoning_details)
        thinking = "" if isinstance(delta.content, str | None) else "".join(map(_thinking, delta.content))
        if delta.reasoning_content and not self._details:
            deltas.append(ReasoningDelta(delta.reasoning_content, signature=self._sign_once(REASONING_FIELD)))
        elif thinking:
            deltas.append(ReasoningDelta(thinking, signature=self._sign_once(THINKING_PART)))
        elif text := delta.reasoning or delta.reasoning_content:
            deltas.append(ReasoningDelta(text))
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

    def _piece(self, piece: _Call) -> list[Delta]:
        name = (piece.function and piece.function.name) or ""
        text = _arguments(piece.function.arguments if piece.function else None)
        if not (piece.id or name or text):
            return []
        call = self._find_call(piece, name)
        deltas: list[Delta] = []
        if piece.extra_content is not None:
            extra = msgspec.json.encode(piece.extra_content).decode()
            signature = f"{call.index}:{EXTRA_FIELD}:{extra}"
            deltas.append(ReasoningDelta(block=f"extra-{call.index}", signature=signature, redacted=True))
        if text:
            call.input.append(text)
        if name and not call.name:
            call.name = name
            deltas.append(
                ToolCallDelta(call.block, self._ids.make_unique(call.id, call.index), name, "".join(call.input))
            )
        elif text and call.name:  # pieces before the name are sent with it
            deltas.append(ToolCallDelta(call.block, input=text))
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


def _thinking(piece: dict[str, Any]) -> str:
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


def _usage(report: Any) -> UsageReport | None:
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
    return UsageReport(
        input_tokens=max(0, prompt - cached - stored),
        output_tokens=output,
        cache_read_tokens=cached,
        cache_write_tokens=stored or None,
        cost=float(cost) if isinstance(cost, int | float) and 0 <= cost < 1e6 and not isinstance(cost, bool) else None,
    )

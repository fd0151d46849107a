"""The wire of Chat Completions, inwards: events become deltas, whatever liberties a server takes with the standard."""

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
from kedge.models.wires.decoding import SseEvent, count, fields_of, json_reader
from kedge.models.wires.provider_errors import fault_of_event
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
    arguments: Any = None  # text; some servers send the object


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Any = None


class _Said(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None  # a text; of servers that think in it, also a list of pieces
    refusal: str | None = None
    # One thing under two names; servers that send both send the same text twice.
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Any] | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int | None = 0
    delta: _Said | None = None
    finish_reason: str | None = None
    usage: Any = None  # some servers tell it here


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_read = json_reader(_Chunk)


class _Open:
    """A call whose input is coming."""

    def __init__(self, place: int, call_id: str) -> None:
        self.place = place
        self.block = f"call-{place}"
        self.id = call_id  # as the server gave it
        self.name = ""
        self.input: list[str] = []

    @property
    def is_whole(self) -> bool:
        last = next((piece for piece in reversed(self.input) if piece.strip()), "")
        if not last.rstrip().endswith("}"):
            return False  # the usual case, without reading all of it again for each piece
        try:
            msgspec.json.decode("".join(self.input))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return False
        return True


class ChatStream:
    """The events of one answer."""

    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        self._endpoint = endpoint
        self._ids = StepIds(request.history)
        self._calls: list[_Open] = []
        self._by_index: dict[int, _Open] = {}
        self._has_thought = False
        self._details: list[dict[str, Any]] = []
        self._is_ended = False

    def parse_event(self, event: SseEvent) -> list[Delta]:
        """What one event says. Raises the `ModelError` that it tells of, or that it is."""
        data = event.data.strip()
        if data == _STREAM_END:
            ended = [StepEnd("tool_use")] if self._calls and not self._is_ended else []
            return [*ended, StreamEnd()]
        chunk = _read(data)
        if chunk.error is not None or event.name == "error":
            raise fault_of_event(data, self._endpoint)
        deltas: list[Delta] = []
        for choice in chunk.choices or ():
            if choice.finish_reason == "error":
                raise fault_of_event(data, self._endpoint)
            if not choice.index:  # one answer was asked for
                deltas += self._choice(choice)
        if (usage := _usage(chunk.usage)) is not None:
            deltas.append(usage)
        return deltas

    def _choice(self, choice: _Choice) -> list[Delta]:
        deltas: list[Delta] = []
        if (said := choice.delta) is not None:
            deltas += self._thoughts(said)
            if text := _text(said.content) or said.refusal:
                deltas.append(TextDelta(text))
            for piece in said.tool_calls or ():
                deltas += self._piece(piece)
        if (usage := _usage(choice.usage)) is not None:
            deltas.append(usage)
        if choice.finish_reason and not self._is_ended:
            self._is_ended = True
            deltas += [ToolCallDelta(call.block, input="{}") for call in self._calls if call.name and not call.input]
            if self._details:
                details = msgspec.json.encode(self._details).decode()
                deltas.append(ReasoningDelta(block=_DETAILS, signature=f"{DETAILS_FIELD}:{details}", redacted=True))
            deltas.append(StepEnd(self._reason(choice.finish_reason)))
        return deltas

    def _thoughts(self, said: _Said) -> list[Delta]:
        """What is shown of them, and what goes back: the field, the pieces of the content, or a gateway's details."""
        deltas: list[Delta] = []
        if said.reasoning_details:
            if not self._details:  # its part comes before what was thought about; it is whole at the end
                deltas.append(ReasoningDelta(block=_DETAILS, redacted=True))
            _add_details(self._details, said.reasoning_details)
        thinking = "" if isinstance(said.content, str | None) else "".join(map(_thinking, said.content))
        if said.reasoning_content and not self._details:
            deltas.append(ReasoningDelta(said.reasoning_content, signature=self._first(REASONING_FIELD)))
        elif thinking:
            deltas.append(ReasoningDelta(thinking, signature=self._first(THINKING_PART)))
        elif text := said.reasoning or said.reasoning_content:
            deltas.append(ReasoningDelta(text))
        return deltas

    def _first(self, signature: str) -> str:
        """It is told once: pieces are joined."""
        told, self._has_thought = "" if self._has_thought else signature, True
        return told

    def _reason(self, told: str) -> FinishReason:
        """Some servers stop, as they say, although the model called tools, or the other way round."""
        reason = _FINISH_REASONS.get(told, "unknown")
        if reason in ("end_turn", "unknown") and self._calls:
            return "tool_use"
        return "end_turn" if reason == "tool_use" and not self._calls else reason

    def _piece(self, piece: _Call) -> list[Delta]:
        name = (piece.function and piece.function.name) or ""
        text = _arguments(piece.function.arguments if piece.function else None)
        if not (piece.id or name or text):
            return []
        call = self._call_of(piece, name)
        deltas: list[Delta] = []
        if piece.extra_content is not None:
            extra = msgspec.json.encode(piece.extra_content).decode()
            signature = f"{call.place}:{EXTRA_FIELD}:{extra}"
            deltas.append(ReasoningDelta(block=f"extra-{call.place}", signature=signature, redacted=True))
        if text:
            call.input.append(text)
        if name and not call.name:
            call.name = name
            deltas.append(ToolCallDelta(call.block, self._ids.unique(call.id, call.place), name, "".join(call.input)))
        elif text and call.name:  # without a name, it waits for it
            deltas.append(ToolCallDelta(call.block, input=text))
        return deltas

    def _call_of(self, piece: _Call, name: str) -> _Open:
        """The call that a piece belongs to. Some servers number all calls alike, or none of them."""
        if piece.index is None:
            known = next((call for call in self._calls if piece.id and call.id == piece.id), None)
            call = known or (self._calls[-1] if self._calls and not piece.id else None)
        else:
            call = self._by_index.get(piece.index)
        if call is not None and name and call.name:
            is_another = call.id != piece.id if piece.id else call.is_whole or call.name != name
        else:
            is_another = False
        if call is None or is_another:
            call = _Open(len(self._calls), piece.id or "")
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
    text = fields_of(piece).get("text")
    return text if isinstance(text, str) else ""


def _add_details(details: list[dict[str, Any]], more: Iterable[Any]) -> None:
    """The pieces of one thought are joined, so that it goes back as one; everything else stays as it is."""
    for piece in more:
        new = fields_of(piece)
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
    fields = fields_of(report)
    read, written = fields_of(fields.get("prompt_tokens_details")), fields_of(fields.get("completion_tokens_details"))
    prompt, output = count(fields.get("prompt_tokens")), count(fields.get("completion_tokens"))
    if not prompt and not output:
        return None
    cached = count(read.get("cached_tokens")) or count(fields.get("prompt_cache_hit_tokens"))
    thought = count(written.get("reasoning_tokens"))
    if thought and count(fields.get("total_tokens")) == prompt + output + thought:
        output += thought  # thoughts are output; some servers count them apart
    stored = count(read.get("cache_write_tokens"))
    cost = fields.get("cost")
    # The provider counts what came from its cache among the input; we count each token once.
    return UsageReport(
        input_tokens=max(0, prompt - cached - stored),
        output_tokens=output,
        cache_read_tokens=cached,
        cache_write_tokens=stored or None,
        cost=float(cost) if isinstance(cost, int | float) and 0 <= cost < 1e6 and not isinstance(cost, bool) else None,
    )

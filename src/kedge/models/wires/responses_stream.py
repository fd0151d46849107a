"""The wire of OpenAI's Responses, inwards: events become deltas. What is not known is passed over."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from kedge.models.errors import ModelError, Refused
from kedge.models.values import (
    BlockEnd,
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
from kedge.models.wires.decoding import SseEvent, count, fields_of, json_reader
from kedge.models.wires.provider_errors import fault_of_event
from kedge.models.wires.responses import Mark
from kedge.protocol.messages import FinishReason

T = TypeVar("T")

_CUT_OFF: dict[str, FinishReason] = {"max_output_tokens": "max_tokens", "content_filter": "content_filter"}


class _Piece(msgspec.Struct):
    """A part of an item: of a message, or of a thought."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None

    @property
    def words(self) -> str:
        return self.text or self.refusal or ""


class _Item(msgspec.Struct):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    phase: str | None = None
    content: list[_Piece] | None = None
    summary: list[_Piece] | None = None
    encrypted_content: str | None = None


class _Details(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    incomplete_details: _Details | None = None
    error: Any = None
    usage: Any = None
    output: Any = None


class _Event(msgspec.Struct):
    """Events that we do not know use the same names for other things, so that only those we know are looked into."""

    type: str = ""
    output_index: int | None = None
    item_id: str | None = None
    content_index: int = 0
    summary_index: int = 0
    delta: Any = None
    item: Any = None
    response: Any = None
    error: Any = None
    code: Any = None
    message: Any = None


_KNOWN = frozenset({"message", "reasoning", "function_call"})
_read = json_reader(_Event)


class _Open:
    """An item that is coming: its parts, and whether anything of a part has come."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.parts: dict[str, bool] = {}
        self.is_call = False
        self.has_phase = False

    def part(self, kind: str, index: int = 0) -> str:
        block = f"{self.place}.{kind}{index}" if kind else self.place
        self.parts.setdefault(block, False)
        return block


class ResponsesStream:
    """The events of one answer."""

    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        self._endpoint = endpoint
        self._ids = StepIds(request.history)
        self._open: dict[str, _Open] = {}
        self._ended: set[str] = set()
        self._calls = 0

    def parse_event(self, event: SseEvent) -> list[Delta]:
        """What one event says. Raises the `ModelError` that it tells of, or that it is."""
        data = event.data.strip()
        if data == b"[DONE]":  # of servers that speak Chat Completions too
            return [StreamEnd()]
        told = _read(data)
        match told.type or event.name:
            case "response.output_text.delta" | "response.refusal.delta":
                return self._text(told)
            case "response.function_call_arguments.delta":
                return self._input(told)
            case "response.reasoning_summary_text.delta":
                return self._thought(told, "s", told.summary_index)
            case "response.reasoning_text.delta":
                return self._thought(told, "t", told.content_index)
            case "response.output_item.added":
                return self._begin(told)
            case "response.output_item.done":
                return self._end(_place(told), _item(told.item))
            case "response.completed" | "response.incomplete":
                return self._finish(_known(told.response, _Response))
            case "response.failed":
                raise self._fault(_known(told.response, _Response).error)
            case "error":
                raise self._fault(told.error or {"code": told.code, "message": told.message})
            case "" if told.error is not None:  # of a gateway before the server
                raise self._fault(told.error)
            case _:
                return []

    # pieces

    def _text(self, told: _Event) -> list[Delta]:
        item = self._item(told)
        return self._piece(item, TextDelta(_words(told.delta), item.part("c", told.content_index)))

    def _thought(self, told: _Event, kind: str, index: int) -> list[Delta]:
        item = self._item(told)
        return self._piece(item, ReasoningDelta(_words(told.delta), item.part(kind, index)))

    def _input(self, told: _Event) -> list[Delta]:
        item = self._item(told)
        given = _words(told.delta)
        return self._piece(item, ToolCallDelta(item.part(""), input=given)) if item.is_call else []

    def _piece(self, item: _Open, piece: TextDelta | ReasoningDelta | ToolCallDelta) -> list[Delta]:
        is_empty = not (piece.input if isinstance(piece, ToolCallDelta) else piece.text)
        if is_empty or item.place in self._ended:
            return []
        item.parts[piece.block] = True
        return [piece]

    # items

    def _begin(self, told: _Event) -> list[Delta]:
        item = _item(told.item)
        return [] if item is None else self._begun(self._item(told), item)

    def _begun(self, coming: _Open, item: _Item) -> list[Delta]:
        match item.type:
            case "function_call" if not coming.is_call:
                coming.is_call = True
                call_id = self._ids.unique(item.call_id or item.id or "", self._calls)
                self._calls += 1
                return [ToolCallDelta(coming.part(""), call_id, item.name or "")]
            case "message" if item.phase and not coming.has_phase:
                coming.has_phase = True
                block = f"{coming.place}.phase"
                return [ReasoningDelta("", block, Mark(phase=item.phase).signature), BlockEnd(block)]
            case _:
                return []

    def _end(self, place: str, item: _Item | None) -> list[Delta]:
        """The item as it is. What came of it piece by piece is not told again."""
        if item is None or place in self._ended:
            return []
        coming = self._open.setdefault(place, _Open(place))
        deltas = [] if coming.parts else self._begun(coming, item)
        match item.type:
            case "function_call":
                block = coming.part("")
                if not coming.parts[block]:
                    deltas.append(ToolCallDelta(block, input=item.arguments or "{}"))
            case "message":
                for i, piece in enumerate(item.content or ()):
                    if piece.words and not coming.parts[coming.part("c", i)]:
                        deltas.append(TextDelta(piece.words, coming.part("c", i)))
            case _:
                deltas += _thoughts(coming, item)
        self._ended.add(place)
        del self._open[place]
        return [*deltas, *(BlockEnd(block) for block in coming.parts)]

    def _finish(self, response: _Response) -> list[Delta]:
        deltas: list[Delta] = []
        output: object = response.output
        if not self._ended and not self._open and isinstance(output, list):  # all of it comes at once
            for i, item in enumerate(cast("list[Any]", output)):
                deltas += self._end(str(i), _item(item))
        for item in self._open.values():  # nothing came of its input
            if item.is_call and not item.parts[item.part("")]:
                deltas.append(ToolCallDelta(item.part(""), input="{}"))
        if (usage := _usage(response.usage)) is not None:
            deltas.append(usage)
        return [*deltas, StepEnd(self._reason(response)), StreamEnd()]

    def _reason(self, response: _Response) -> FinishReason:
        if response.incomplete_details is not None and response.incomplete_details.reason:
            return _CUT_OFF.get(response.incomplete_details.reason, "unknown")
        if response.status == "incomplete":
            return "unknown"
        return "tool_use" if self._calls else "end_turn"

    def _fault(self, error: Any) -> ModelError:
        return fault_of_event(msgspec.json.encode({"error": error}), self._endpoint)

    def _item(self, told: _Event) -> _Open:
        place = _place(told)
        return self._open.setdefault(place, _Open(place)) if place not in self._ended else _Open(place)


def _place(told: _Event) -> str:
    return str(told.output_index) if told.output_index is not None else told.item_id or "0"


def _thoughts(coming: _Open, item: _Item) -> list[Delta]:
    """What came at the end only, and what must go back with it."""
    raw = [(coming.part("t", i), piece.words) for i, piece in enumerate(item.content or ()) if piece.words]
    summaries = [(coming.part("s", i), piece.words) for i, piece in enumerate(item.summary or ()) if piece.words]
    deltas: list[Delta] = [
        ReasoningDelta(words, block) for block, words in [*summaries, *raw] if not coming.parts[block]
    ]
    if not item.id:
        return deltas
    blocks = list(coming.parts) or [coming.part("s")]
    for block in blocks:
        kept = item.encrypted_content or "" if block == blocks[-1] else ""
        is_raw = block.startswith(f"{coming.place}.t")
        deltas.append(ReasoningDelta("", block, Mark(id=item.id, encrypted_content=kept, is_raw=is_raw).signature))
    return deltas


def _item(told: Any) -> _Item | None:
    return _known(told, _Item) if fields_of(told).get("type") in _KNOWN else None


def _known(told: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise Refused("bad_response", f"the model's answer is malformed: {error}") from error


def _words(told: Any) -> str:
    return _known(told, str)


def _usage(report: Any) -> UsageReport | None:
    fields = fields_of(report)
    read = fields_of(fields.get("input_tokens_details"))
    prompt, output = count(fields.get("input_tokens")), count(fields.get("output_tokens"))
    if not prompt and not output:
        return None
    cached, stored = count(read.get("cached_tokens")), count(read.get("cache_write_tokens"))
    # The provider counts what came from its cache among the input; we count each token once. Thoughts are output.
    return UsageReport(
        input_tokens=max(0, prompt - cached - stored),
        output_tokens=output,
        cache_read_tokens=cached,
        cache_write_tokens=stored or None,
    )

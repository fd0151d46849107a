"""The wire of Anthropic Messages, inwards: events become deltas. What is not known is passed over."""

from __future__ import annotations

from typing import Any

import msgspec

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
from kedge.models.wires.decoding import SseEvent, fields_of, is_count, json_reader
from kedge.models.wires.provider_errors import fault_of_event
from kedge.protocol.messages import FinishReason

_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "tool_use": "tool_use",
    "refusal": "content_filter",
}
_COUNTS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}


class _Block(msgspec.Struct):
    """What a block begins with, or a piece of one: the wire uses the same names."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    partial_json: str | None = None
    stop_reason: str | None = None  # of a message


class _Message(msgspec.Struct):
    usage: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Block | None = None
    usage: Any = None


_read = json_reader(_Event)


class AnthropicStream:
    """The events of one answer."""

    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        self._endpoint = endpoint
        self._ids = StepIds(request.history)
        self._begun: dict[int, _Block] = {}
        self._waiting: dict[int, Any] = {}  # inputs of calls of which no piece came
        self._has_calls = False
        self._is_counted = False

    def parse_event(self, event: SseEvent) -> list[Delta]:
        """What one event says. Raises the `ModelError` that it tells of, or that it is."""
        data = event.data.strip()
        if data == b"[DONE]":  # of servers that speak the other wire too
            return [StreamEnd()]
        if event.name == "error":
            raise fault_of_event(data, self._endpoint)
        told = _read(data)
        match told.type or event.name:
            case "content_block_delta" if told.delta is not None:
                return self._piece(told.index, told.delta)
            case "content_block_start" if told.content_block is not None:
                return self._start(told.index, told.content_block)
            case "content_block_stop":
                return self._stop(told.index)
            case "message_start" if told.message is not None:
                return self._usage(told.message.usage)
            case "message_delta":
                return [*self._usage(told.usage), *self._end(told.delta)]
            case "message_stop":
                return [StreamEnd()]
            case "error":
                raise fault_of_event(data, self._endpoint)
            case _:
                return []

    def _start(self, index: int, begun: _Block) -> list[Delta]:
        block = str(index)
        self._begun[index] = begun
        match begun.type:
            case "text" if begun.text:
                return [TextDelta(begun.text, block)]
            case "thinking" if begun.thinking or begun.signature:
                return [ReasoningDelta(begun.thinking or "", block, begun.signature or "")]
            case "redacted_thinking":
                return [ReasoningDelta("", block, begun.data or "", redacted=True)]
            case "tool_use":
                self._has_calls = True
                self._waiting[index] = begun.input
                return [ToolCallDelta(block, self._ids.unique(begun.id or "", index), begun.name or "")]
            case _:
                return []

    def _piece(self, index: int, piece: _Block) -> list[Delta]:
        block = str(index)
        match piece.type:
            case "text_delta" if piece.text:
                return [TextDelta(piece.text, block)]
            case "thinking_delta" if piece.thinking:
                return [ReasoningDelta(piece.thinking, block)]
            case "signature_delta" if piece.signature:
                return [ReasoningDelta("", block, piece.signature)]
            case "input_json_delta" if piece.partial_json and self._is_call(index):
                self._waiting.pop(index, None)
                return [ToolCallDelta(block, input=piece.partial_json)]
            case _:
                return []

    def _stop(self, index: int) -> list[Delta]:
        begun = self._begun.pop(index, None)
        if begun is None:
            return []
        block = str(index)
        if index not in self._waiting:
            return [BlockEnd(block)]
        # A call without input, or with all of it at its start.
        given = msgspec.json.encode(self._waiting.pop(index) or {}).decode()
        return [ToolCallDelta(block, input=given), BlockEnd(block)]

    def _end(self, told: _Block | None) -> list[Delta]:
        if told is None or not told.stop_reason:
            return []
        reason = _FINISH_REASONS.get(told.stop_reason, "unknown")
        if reason == "end_turn" and self._has_calls:
            reason = "tool_use"
        return [StepEnd(reason)]

    def _usage(self, report: Any) -> list[Delta]:
        """Read with care: a wrong count must not cost a good answer. A server that does not count says only 0."""
        fields = fields_of(report)
        known = {ours: fields[name] for name, ours in _COUNTS.items() if is_count(fields.get(name))}
        self._is_counted = self._is_counted or any(known.values())
        return [UsageReport(**known)] if known and self._is_counted else []

    def _is_call(self, index: int) -> bool:
        begun = self._begun.get(index)
        return begun is not None and begun.type == "tool_use"

"""Streams of Anthropic's Messages API. Unknown events and fields are ignored."""

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
from kedge.models.wires.decoding import SseEvent, as_object, is_count, make_json_decoder
from kedge.models.wires.provider_errors import error_from_event
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
    """The start of a content block, or a delta of one: the API uses the same names for both."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    partial_json: str | None = None
    stop_reason: str | None = None  # only of a message


class _Message(msgspec.Struct):
    usage: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Block | None = None
    usage: Any = None


_decode = make_json_decoder(_Event)


class AnthropicStream:
    """Decodes the events of one answer."""

    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        self._endpoint = endpoint
        self._ids = StepIds(request.history)
        self._blocks: dict[int, _Block] = {}
        self._inputs: dict[int, Any] = {}  # of calls that have no input deltas yet
        self._has_calls = False
        self._has_counts = False

    def parse_event(self, event: SseEvent) -> list[Delta]:
        """Return the deltas of an event. Raises the `ModelError` that it reports, or `Refused` if it is malformed."""
        data = event.data.strip()
        if data == b"[DONE]":  # sent by servers that support Chat Completions, too
            return [StreamEnd()]
        if event.name == "error":
            raise error_from_event(data, self._endpoint)
        decoded = _decode(data)
        match decoded.type or event.name:
            case "content_block_delta" if decoded.delta is not None:
                return self._continue_block(decoded.index, decoded.delta)
            case "content_block_start" if decoded.content_block is not None:
                return self._start_block(decoded.index, decoded.content_block)
            case "content_block_stop":
                return self._end_block(decoded.index)
            case "message_start" if decoded.message is not None:
                return self._usage(decoded.message.usage)
            case "message_delta":
                return [*self._usage(decoded.usage), *self._end(decoded.delta)]
            case "message_stop":
                return [StreamEnd()]
            case "error":
                raise error_from_event(data, self._endpoint)
            case _:
                return []

    def _start_block(self, index: int, start: _Block) -> list[Delta]:
        block = str(index)
        self._blocks[index] = start
        match start.type:
            case "text" if start.text:
                return [TextDelta(start.text, block)]
            case "thinking" if start.thinking or start.signature:
                return [ReasoningDelta(start.thinking or "", block, start.signature or "")]
            case "redacted_thinking":
                return [ReasoningDelta("", block, start.data or "", redacted=True)]
            case "tool_use":
                self._has_calls = True
                self._inputs[index] = start.input
                return [ToolCallDelta(block, self._ids.make_unique(start.id or "", index), start.name or "")]
            case _:
                return []

    def _continue_block(self, index: int, piece: _Block) -> list[Delta]:
        block = str(index)
        match piece.type:
            case "text_delta" if piece.text:
                return [TextDelta(piece.text, block)]
            case "thinking_delta" if piece.thinking:
                return [ReasoningDelta(piece.thinking, block)]
            case "signature_delta" if piece.signature:
                return [ReasoningDelta("", block, piece.signature)]
            case "input_json_delta" if piece.partial_json and self._is_call(index):
                self._inputs.pop(index, None)
                return [ToolCallDelta(block, input=piece.partial_json)]
            case _:
                return []

    def _end_block(self, index: int) -> list[Delta]:
        start = self._blocks.pop(index, None)
        if start is None:
            return []
        block = str(index)
        if index not in self._inputs:
            return [BlockEnd(block)]
        # The call has no input, or had all of it at its start.
        arguments = msgspec.json.encode(self._inputs.pop(index) or {}).decode()
        return [ToolCallDelta(block, input=arguments), BlockEnd(block)]

    def _end(self, delta: _Block | None) -> list[Delta]:
        if delta is None or not delta.stop_reason:
            return []
        reason = _FINISH_REASONS.get(delta.stop_reason, "unknown")
        if reason == "end_turn" and self._has_calls:
            reason = "tool_use"
        return [StepEnd(reason)]

    def _usage(self, report: Any) -> list[Delta]:
        """Ignore invalid counts, and reports with only zeros: those servers do not count."""
        fields = as_object(report)
        known = {ours: fields[name] for name, ours in _COUNTS.items() if is_count(fields.get(name))}
        self._has_counts = self._has_counts or any(known.values())
        return [UsageReport(**known)] if known and self._has_counts else []

    def _is_call(self, index: int) -> bool:
        start = self._blocks.get(index)
        return start is not None and start.type == "tool_use"

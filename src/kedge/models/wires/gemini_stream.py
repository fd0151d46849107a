"""Streams of Google's Gemini API. Unknown fields are ignored."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kedge.models.errors import Refused, Transient
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
from kedge.models.wires.decoding import SseEvent, as_object, count, make_json_decoder
from kedge.models.wires.gemini import mark
from kedge.models.wires.provider_errors import error_from_event
from kedge.protocol.messages import FinishReason

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


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    index: int | None = 0
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class _Chunk(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: Any = None
    error: Any = None


_decode = make_json_decoder(_Chunk)


class GeminiStream:
    """Decodes the events of one answer."""

    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        self._endpoint = endpoint
        self._ids = StepIds(request.history)
        self._open = ""  # kind of the open part: "text" or "thought"
        self._index = 0  # of the current part
        self._calls = 0
        self._counts: dict[str, int] = {}
        self._is_ended = False

    def parse_event(self, event: SseEvent) -> list[Delta]:
        """Return the deltas of an event. Raises the `ModelError` that it reports, or `Refused` if it is malformed."""
        data = event.data.strip()
        if data == b"[DONE]":  # sent by servers that support Chat Completions, too; Google's streams just end
            return [StreamEnd()]
        chunk = _decode(data)
        if chunk.error is not None or event.name == "error":
            raise error_from_event(data, self._endpoint)
        deltas: list[Delta] = []
        ends: list[Delta] = []
        for candidate in chunk.candidates or ():
            if not candidate.index:  # we request one answer
                for part in (candidate.content and candidate.content.parts) or ():
                    deltas += self._part(part)
                ends += self._end(candidate)
        self._check_prompt(chunk.prompt_feedback)
        return [*deltas, *self._usage(chunk.usage_metadata), *ends]

    def _part(self, part: _Part) -> list[Delta]:
        if part.function_call is not None:
            return self._call(part.function_call, part.thought_signature or "")
        if part.thought:
            return self._reasoning(part.text or "", part.thought_signature or "")
        return self._text(part.text or "", part.thought_signature or "")

    def _text(self, text: str, signature: str) -> list[Delta]:
        deltas: list[Delta] = []
        if text:
            deltas += self._switch_to("text")
            deltas.append(TextDelta(text, self._block))
        if signature:
            deltas += [*self._close(), *self._store_signature(f"text-{len(text)}", signature)]
        return deltas

    def _reasoning(self, text: str, signature: str) -> list[Delta]:
        if signature:  # signed reasoning is a part of its own
            return [
                *self._close(),
                ReasoningDelta(text, self._block, mark("thought", signature)),
                *self._end_block(),
            ]
        return [*self._switch_to("thought"), ReasoningDelta(text, self._block)] if text else []

    def _call(self, call: _Call, signature: str) -> list[Delta]:
        if not call.name:
            return []
        deltas = self._close()
        if signature:
            deltas += self._store_signature("call", signature)
        call_id = self._ids.make_unique(call.id or "", self._calls)
        self._calls += 1
        arguments = json.dumps(as_object(call.args), ensure_ascii=False)
        deltas.append(ToolCallDelta(self._block, call_id, call.name, arguments))
        return [*deltas, *self._end_block()]

    def _store_signature(self, kind: str, signature: str) -> list[Delta]:
        """Return the signature as a part of its own: reasoning without text, which is not shown."""
        return [ReasoningDelta("", self._block, mark(kind, signature)), *self._end_block()]

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
        ended = BlockEnd(self._block)
        self._open = ""
        self._index += 1
        return [ended]

    def _end(self, candidate: _Candidate) -> list[Delta]:
        name = candidate.finish_reason
        if not name or name == _UNSPECIFIED or self._is_ended:
            return []
        if name in _MALFORMED:
            reason = " ".join((candidate.finish_message or "malformed output").split())[:200]
            raise Transient("provider_error", f"The provider stopped the answer: {name} ({reason})")
        self._is_ended = True
        reason = _FINISH_REASONS.get(name, "unknown")
        if reason in ("end_turn", "unknown") and self._calls:
            reason = "tool_use"
        return [*self._close(), StepEnd(reason)]

    def _check_prompt(self, feedback: _Feedback | None) -> None:
        if feedback is None or not feedback.block_reason or feedback.block_reason == "BLOCKED_REASON_UNSPECIFIED":
            return
        message = " ".join((feedback.block_reason_message or "").split())[:200]
        reason = f"{feedback.block_reason}: {message}" if message else feedback.block_reason
        text = f"{self._endpoint.host} blocked the prompt ({reason}): the provider's content filter refused the request"
        raise Refused("content_filter", text)

    def _usage(self, report: Any) -> list[Delta]:
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
            UsageReport(
                input_tokens=max(0, prompt + tools - cached),
                output_tokens=answer + reasoning,
                cache_read_tokens=cached,
            )
        ]

"""The wire of Google's Gemini, inwards: events become deltas. What is not known is passed over."""

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
from kedge.models.wires.decoding import SseEvent, count, fields_of, json_reader
from kedge.models.wires.gemini import mark
from kedge.models.wires.provider_errors import fault_of_event
from kedge.protocol.messages import FinishReason

_FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "end_turn",
    "MAX_TOKENS": "max_tokens",
    "CONTINUATION": "max_tokens",  # of one request
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
# What the model wrote cannot be read by its own server: nothing of it is passed on, and the next attempt is another.
_BOTCHED = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"})
_UNSAID = "FINISH_REASON_UNSPECIFIED"
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


_read = json_reader(_Chunk)


class GeminiStream:
    """The events of one answer."""

    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        self._endpoint = endpoint
        self._ids = StepIds(request.history)
        self._open = ""  # the kind of the part that is being written: "text", "thought"
        self._place = 0  # its number
        self._calls = 0
        self._counts: dict[str, int] = {}
        self._is_ended = False

    def parse_event(self, event: SseEvent) -> list[Delta]:
        """What one event says. Raises the `ModelError` that it tells of, or that it is."""
        data = event.data.strip()
        if data == b"[DONE]":  # of servers that speak the other wires too; the vendor's just ends
            return [StreamEnd()]
        chunk = _read(data)
        if chunk.error is not None or event.name == "error":
            raise fault_of_event(data, self._endpoint)
        deltas: list[Delta] = []
        ends: list[Delta] = []
        for candidate in chunk.candidates or ():
            if not candidate.index:  # one answer was asked for
                for part in (candidate.content and candidate.content.parts) or ():
                    deltas += self._part(part)
                ends += self._end(candidate)
        self._check_prompt(chunk.prompt_feedback)
        return [*deltas, *self._usage(chunk.usage_metadata), *ends]

    def _part(self, part: _Part) -> list[Delta]:
        if part.function_call is not None:
            return self._call(part.function_call, part.thought_signature or "")
        if part.thought:
            return self._thought(part.text or "", part.thought_signature or "")
        return self._text(part.text or "", part.thought_signature or "")

    def _text(self, text: str, signature: str) -> list[Delta]:
        deltas: list[Delta] = []
        if text:
            deltas += self._turn("text")
            deltas.append(TextDelta(text, self._block))
        if signature:
            deltas += [*self._close(), *self._kept(f"text-{len(text)}", signature)]
        return deltas

    def _thought(self, text: str, signature: str) -> list[Delta]:
        if signature:  # what is signed goes back by itself
            return [
                *self._close(),
                ReasoningDelta(text, self._block, mark("thought", signature)),
                *self._end_of_block(),
            ]
        return [*self._turn("thought"), ReasoningDelta(text, self._block)] if text else []

    def _call(self, call: _Call, signature: str) -> list[Delta]:
        if not call.name:
            return []
        deltas = self._close()
        if signature:
            deltas += self._kept("call", signature)
        call_id = self._ids.unique(call.id or "", self._calls)
        self._calls += 1
        given = json.dumps(fields_of(call.args), ensure_ascii=False)
        deltas.append(ToolCallDelta(self._block, call_id, call.name, given))
        return [*deltas, *self._end_of_block()]

    def _kept(self, kind: str, signature: str) -> list[Delta]:
        """A signature, as a part of its own: thoughts without a word, which nobody is shown."""
        return [ReasoningDelta("", self._block, mark(kind, signature)), *self._end_of_block()]

    @property
    def _block(self) -> str:
        return str(self._place)

    def _turn(self, kind: str) -> list[Delta]:
        """To a part of that kind, unless it is one already."""
        ended = self._close() if self._open != kind else []
        self._open = kind
        return ended

    def _close(self) -> list[Delta]:
        return self._end_of_block() if self._open else []

    def _end_of_block(self) -> list[Delta]:
        ended = BlockEnd(self._block)
        self._open = ""
        self._place += 1
        return [ended]

    def _end(self, candidate: _Candidate) -> list[Delta]:
        told = candidate.finish_reason
        if not told or told == _UNSAID or self._is_ended:
            return []
        if told in _BOTCHED:
            why = candidate.finish_message or "what the model wrote makes no call"
            raise Transient("provider_error", f"the provider broke off: {told} ({' '.join(why.split())[:200]})")
        self._is_ended = True
        reason = _FINISH_REASONS.get(told, "unknown")
        if reason in ("end_turn", "unknown") and self._calls:
            reason = "tool_use"
        return [*self._close(), StepEnd(reason)]

    def _check_prompt(self, feedback: _Feedback | None) -> None:
        if feedback is None or not feedback.block_reason or feedback.block_reason == "BLOCKED_REASON_UNSPECIFIED":
            return
        words = " ".join((feedback.block_reason_message or "").split())[:200]
        why = f"{feedback.block_reason}: {words}" if words else feedback.block_reason
        text = f"{self._endpoint.host} blocked the prompt ({why}): the provider's content filter refused the request"
        raise Refused("content_filter", text)

    def _usage(self, report: Any) -> list[Delta]:
        """Read with care: a wrong count must not cost a good answer. Each report is of all so far."""
        fields = fields_of(report)
        known = self._counts | {name: count(fields[name]) for name in _COUNTS if name in fields}
        if known == self._counts:
            return []
        self._counts = known
        prompt, tools, cached, answer, thoughts = (self._counts.get(name, 0) for name in _COUNTS)
        if not (prompt or answer or thoughts):
            return []  # of a server that does not count
        # What came from the cache is counted among the prompt; we count each token once.
        return [
            UsageReport(
                input_tokens=max(0, prompt + tools - cached),
                output_tokens=answer + thoughts,
                cache_read_tokens=cached,
            )
        ]

"""Writes the deltas of a model's answer as parts of a message. Each delta is shown before anything is awaited (P12)."""

from __future__ import annotations

import uuid
from typing import NamedTuple

import msgspec

from kedge.engine.message_writer import MessageWriter, PartWriter
from kedge.models.values import BlockEnd, Delta, ReasoningDelta, StepEnd, TextDelta, ToolCallDelta, UsageReport
from kedge.protocol.messages import FinishReason, Part, Reasoning, Text, ToolCall
from kedge.protocol.runs import Usage

# Used by wires that do not number their blocks: a part then ends where one of another kind begins.
_DEFAULT_BLOCKS = frozenset({TextDelta("").block, ReasoningDelta().block})


class _OpenPart(NamedTuple):
    """A part that may still grow, and the pieces of its signature."""

    writer: PartWriter
    head: Part
    signature: list[str]


class DeltaWriter:
    """Writes one attempt's message."""

    def __init__(self, message: MessageWriter) -> None:
        self.message_id = message.id
        self.length = 0  # in characters
        self.has_parts = False
        self.reason: FinishReason = "unknown"
        self.usage: UsageReport | None = None
        self._message = message
        self._open_parts: dict[str, _OpenPart] = {}
        self._call_ids: set[str] = set()

    async def write(self, deltas: list[Delta]) -> None:
        ended: list[tuple[PartWriter, Part]] = []
        for delta in deltas:
            match delta:
                case TextDelta() | ReasoningDelta() | ToolCallDelta():
                    self._show(delta, ended)
                case BlockEnd(block):
                    if block in self._open_parts:
                        ended.append(self._end_part(block))
                case UsageReport():
                    self.usage = merge_usage(self.usage, delta)
                case StepEnd(reason):
                    self.reason = reason
                case _:
                    pass
        for writer, final in ended:
            await writer.finish(final)

    async def finish(self, usage: Usage, note: str | None = None) -> None:
        """End the message. `note` tells people about an unusual end."""
        for block in list(self._open_parts):
            self._end_part(block)
        await self._message.finish(self.reason, message=note, usage=usage)

    async def interrupt(self, reason: str, usage: Usage | None) -> None:
        """End the message of a failed attempt: it stays visible, but is not part of the history."""
        await self._message.finish("interrupted", message=reason, usage=usage)

    def _show(self, delta: TextDelta | ReasoningDelta | ToolCallDelta, ended: list[tuple[PartWriter, Part]]) -> None:
        if (part := self._open_parts.get(delta.block)) is None:
            if isinstance(delta, ToolCallDelta) and not delta.name:
                return  # a piece of a call that never began
            ended += [self._end_part(block) for block in _DEFAULT_BLOCKS & self._open_parts.keys()]
            part = self._begin_part(delta)
        match delta:
            case ToolCallDelta():
                text = delta.input
            case ReasoningDelta():
                part.signature.append(delta.signature)
                text = delta.text
            case TextDelta():
                text = delta.text
        part.writer.write(text)
        self.length += len(text)

    def _begin_part(self, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> _OpenPart:
        match delta:
            case TextDelta():
                head = Text("")
            case ReasoningDelta():
                head = Reasoning("", redacted=delta.redacted)
            case ToolCallDelta():
                head = ToolCall(self._unique_call_id(delta.id), delta.name, "", False)
        self.has_parts = True
        part = self._open_parts[delta.block] = _OpenPart(self._message.open(head), head, [])
        return part

    def _end_part(self, block: str) -> tuple[PartWriter, Part]:
        """Complete the part and return it in its final form."""
        writer, head, signature = self._open_parts.pop(block)
        if not isinstance(head, Reasoning):
            return writer, writer.complete()
        writer.flush()
        final = msgspec.structs.replace(head, text=writer.text, signature="".join(signature) or None)
        return writer, writer.complete(final)

    def _unique_call_id(self, call_id: str) -> str:
        """Replace a missing or repeated id: some servers send them, but a result must find its call."""
        if not call_id or call_id in self._call_ids:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        self._call_ids.add(call_id)
        return call_id


def merge_usage(known: UsageReport | None, report: UsageReport) -> UsageReport:
    """Return `known` with the fields that the later `report` has."""
    if known is None:
        return report
    reported = {name: value for name in report.__struct_fields__ if (value := getattr(report, name)) is not None}
    return msgspec.structs.replace(known, **reported)

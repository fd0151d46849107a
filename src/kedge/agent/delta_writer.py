"""One attempt's message: deltas become parts, and every piece is shown before anything is waited for (P12)."""

from __future__ import annotations

import uuid
from typing import NamedTuple

import msgspec

from kedge.engine.message_writer import MessageWriter, PartWriter
from kedge.models.values import BlockEnd, Delta, ReasoningDelta, StepEnd, TextDelta, ToolCallDelta, UsageReport
from kedge.protocol.messages import FinishReason, Part, Reasoning, Text, ToolCall
from kedge.protocol.runs import Usage

# Wires that do not tell their blocks apart use these: then a part ends where one of another kind begins.
_ONLY_BLOCKS = frozenset({TextDelta("").block, ReasoningDelta().block})


class _Open(NamedTuple):
    """A part that may still grow. `signature` holds pieces of what goes back verbatim."""

    writer: PartWriter
    head: Part
    signature: list[str]


class Answer:
    def __init__(self, message: MessageWriter) -> None:
        self.message_id = message.id
        self.length = 0  # in characters
        self.has_parts = False
        self.reason: FinishReason = "unknown"
        self.usage: UsageReport | None = None
        self._message = message
        self._open: dict[str, _Open] = {}
        self._call_ids: set[str] = set()

    async def write(self, deltas: list[Delta]) -> None:
        ended: list[tuple[PartWriter, Part]] = []
        for delta in deltas:
            match delta:
                case TextDelta() | ReasoningDelta() | ToolCallDelta():
                    self._show(delta, ended)
                case BlockEnd(block):
                    if block in self._open:
                        ended.append(self._ended(block))
                case UsageReport():
                    self.usage = merged(self.usage, delta)
                case StepEnd(reason):
                    self.reason = reason
                case _:
                    pass
        for writer, final in ended:
            await writer.finish(final)

    async def finish(self, usage: Usage, word: str | None = None) -> None:
        """`word` is for people: what there is to know about this end."""
        for block in list(self._open):
            self._ended(block)
        await self._message.finish(self.reason, message=word, usage=usage)

    async def interrupt(self, why: str, usage: Usage | None) -> None:
        """The attempt failed: what was shown stays, and is not the answer."""
        await self._message.finish("interrupted", message=why, usage=usage)

    def _show(self, delta: TextDelta | ReasoningDelta | ToolCallDelta, ended: list[tuple[PartWriter, Part]]) -> None:
        if (part := self._open.get(delta.block)) is None:
            if isinstance(delta, ToolCallDelta) and not delta.name:
                return  # a piece of a call that never began
            ended += [self._ended(block) for block in _ONLY_BLOCKS & self._open.keys()]
            part = self._begun(delta)
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

    def _begun(self, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> _Open:
        match delta:
            case TextDelta():
                head = Text("")
            case ReasoningDelta():
                head = Reasoning("", redacted=delta.redacted)
            case ToolCallDelta():
                head = ToolCall(self._unique(delta.id), delta.name, "", False)
        self.has_parts = True
        part = self._open[delta.block] = _Open(self._message.open(head), head, [])
        return part

    def _ended(self, block: str) -> tuple[PartWriter, Part]:
        """The part as it is for good."""
        writer, head, signature = self._open.pop(block)
        if not isinstance(head, Reasoning):
            return writer, writer.complete()
        writer.flush()
        final = msgspec.structs.replace(head, text=writer.text, signature="".join(signature) or None)
        return writer, writer.complete(final)

    def _unique(self, call_id: str) -> str:
        """Some servers give no id, or the same one twice in a step; a result must find its call."""
        if not call_id or call_id in self._call_ids:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        self._call_ids.add(call_id)
        return call_id


def merged(known: UsageReport | None, report: UsageReport) -> UsageReport:
    """A later report replaces the fields that it has."""
    if known is None:
        return report
    told = {name: value for name in report.__struct_fields__ if (value := getattr(report, name)) is not None}
    return msgspec.structs.replace(known, **told)

"""One model step: its message, its attempts and its usage."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from kedge.agent.history_size import count_request_chars
from kedge.agent.retry import ApiKeys, Attempts, ModelUnavailable, RetryPolicy
from kedge.engine.message_writer import MessageWriter, PartWriter
from kedge.engine.turn import TurnContext
from kedge.models.client import ModelClient
from kedge.models.errors import ModelError
from kedge.models.values import (
    TEXT_CALL_ID,
    BlockEnd,
    Delta,
    Endpoint,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    compute_usage,
)
from kedge.protocol.messages import FinishReason, Part, Reasoning, Text, ToolCall
from kedge.protocol.runs import Usage
from kedge.protocol.tool_input import correct_tool_name

_FINISH_NOTES: dict[FinishReason, str] = {
    "max_tokens": "the answer was cut off at the model's output limit",
    "content_filter": "the provider's content filter stopped the answer",
}


# Of an answer's text: the name and the input of each call that it consists of.
FindCalls = Callable[[Endpoint, str], Sequence[tuple[str, str]]]


class ContextFull(Exception):
    """The conversation is too long for the model; `error` is the provider's."""

    def __init__(self, error: ModelError) -> None:
        super().__init__(error.text)
        self.error = error


class StepRunner:
    def __init__(
        self, ctx: TurnContext, models: ModelClient, endpoint: Endpoint, retry: RetryPolicy, keys: ApiKeys
    ) -> None:
        self.endpoint = endpoint
        self._ctx = ctx
        self._models = models
        self._retry = retry
        self._keys = keys

    async def run(self, request: StepRequest, find_calls: FindCalls | None = None) -> None:
        """Call the model, with retries (P8). Raises `TurnFailed`, `ContextFull` if a shorter request could work, and
        `ModelUnavailable` if another model could.

        `find_calls` finds the calls in the text of an answer without calls.
        """
        attempts = Attempts(self._ctx, self._retry, self._keys)
        self.endpoint = await self._keys.refresh(self.endpoint)
        # The message exists before the model responds, so that its first text is shown at once. An attempt that fails
        # before any text leaves the message to the next attempt.
        writer = await self._begin_message(request)
        while True:
            try:
                await self._stream(writer, request)
                break
            except ModelError as error:
                is_full = error.code == "context_too_long"
                is_used_up = writer.has_parts or is_full
                if is_used_up:
                    usage = self._usage(writer, request) if writer.has_parts else None
                    await writer.interrupt(error.text, usage)
                if is_full:
                    raise ContextFull(error) from error
                try:
                    self.endpoint = await attempts.prepare_next(error, self.endpoint)
                except ModelUnavailable:
                    if not is_used_up:  # the next message is another model's
                        await writer.interrupt(error.text, None)
                    raise
                if is_used_up:
                    writer = await self._begin_message(request)
        usage = self._usage(writer, request)
        if find_calls is not None and not writer.has_calls and writer.reason in ("end_turn", "unknown"):
            writer.add_calls(find_calls(self.endpoint, writer.text))
        await writer.finish(usage, _FINISH_NOTES.get(writer.reason))

    async def _begin_message(self, request: StepRequest) -> DeltaWriter:
        names = [tool.name for tool in request.tools]
        return DeltaWriter(await self._ctx.begin_message(model=self.endpoint.name), names)

    async def _stream(self, writer: DeltaWriter, request: StepRequest) -> None:
        async with contextlib.aclosing(self._models.stream(self.endpoint, request)) as groups:
            async for deltas in groups:
                await writer.write(deltas)

    def _usage(self, writer: DeltaWriter, request: StepRequest) -> Usage:
        """Return the reported usage, with an estimate where the provider reports none."""
        report = writer.usage
        is_reported = report is not None and bool(report.input_tokens or report.cache_read_tokens)
        chars = 0 if is_reported else count_request_chars(request)
        return compute_usage(report, self.endpoint.info, chars, writer.length)


# Used by wires that do not number their blocks: a part then ends where one of another kind begins.
_DEFAULT_BLOCKS = frozenset({TextDelta("").block, ReasoningDelta().block})


class _OpenPart(NamedTuple):
    """A part that may still grow, and the pieces of its signature."""

    writer: PartWriter
    head: Part
    signature: list[str]


class DeltaWriter:
    def __init__(self, message: MessageWriter, tools: Sequence[str] = ()) -> None:
        self.message_id = message.id
        self.length = 0  # in characters
        self.has_parts = False
        self.reason: FinishReason = "unknown"
        self.usage: UsageReport | None = None
        self._message = message
        self._tools = tools
        self._open_parts: dict[str, _OpenPart] = {}
        self._call_ids: set[str] = set()
        self._text: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def has_calls(self) -> bool:
        return bool(self._call_ids)

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

    def add_calls(self, calls: Sequence[tuple[str, str]]) -> None:
        """Add calls (name and input) that are the text of the answer; they are stored with the end of the message."""
        for block in list(self._open_parts) if calls else ():
            self._end_part(block)
        for name, text in calls:
            part = self._message.open(ToolCall(f"{TEXT_CALL_ID}{uuid.uuid4().hex[:24]}", name, "", False))
            part.write(text)
            self.reason = "tool_use"

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
                self._text.append(text)
        part.writer.write(text)
        self.length += len(text)

    def _begin_part(self, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> _OpenPart:
        match delta:
            case TextDelta():
                head = Text("")
            case ReasoningDelta():
                head = Reasoning("", redacted=delta.redacted)
            case ToolCallDelta():
                # From here on everybody sees the tool that runs: permissions, repeats, clients.
                name = correct_tool_name(delta.name, self._tools)
                head = ToolCall(self._unique_call_id(delta.id), name, "", False)
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

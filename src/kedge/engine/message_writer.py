"""Writing messages: text is shown at once, kept in drafts as it grows, and committed part by part (P12, P13)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kedge.engine.concurrency import retry_store
from kedge.engine.turn_writer import TurnWriter
from kedge.protocol.messages import (
    Delta,
    DeltaKind,
    Finish,
    FinishReason,
    Image,
    Part,
    RawMessage,
    Reasoning,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
    whole_characters,
    with_text,
)
from kedge.protocol.runs import Usage
from kedge.store.port import Draft


class PartWriter:
    """One part being streamed. `write` shows text at once; `finish` says what the part is, for good."""

    def __init__(
        self, turn_writer: TurnWriter, message: RawMessage, index: int, head: Part, commit: Callable[[], Any]
    ) -> None:
        self.final: Part | None = None
        self._desk = turn_writer
        self._message = message
        self._index = index
        self._head = head
        self._commit = commit
        self._kind: DeltaKind = _kind_of(head)
        self._pieces: list[str] = []
        self._length = 0
        self._half = ""  # a high surrogate that waits for its other half
        turn_writer.check_claim()
        turn_writer.feed.open_part(message.id, index, head)
        turn_writer.add_draft(Draft(message.id, index, self._kind, "", head))

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def write(self, text: str) -> None:
        self._show(self._whole_characters(text))

    def flush(self) -> None:
        """Nothing more comes: the half of a character that was waited for is a character of its own."""
        if self._half:
            self._half = ""
            self._show("\ufffd")

    def complete(self, final: Part | None = None) -> Part:
        """Decide the part's final form without committing it yet."""
        self.flush()
        if final is not None and not _goes_on(self._kind, self.text, final):
            raise ValueError("text that was shown is never taken back (P12)")
        self.final = self.final or final or _completed(with_text(self._head, self.text))
        return self.final

    async def finish(self, final: Part | None = None) -> None:
        self._desk.check_claim()
        self.complete(final)
        await self._commit()

    def _show(self, text: str) -> None:
        self._desk.check_claim()
        if not text:
            return
        ids = (self._message.id, self._message.session_id, self._message.run_id)
        self._desk.feed.publish_delta(Delta(*ids, self._index, self._kind, self._length, text))
        self._desk.add_draft(Draft(self._message.id, self._index, self._kind, text))
        self._pieces.append(text)
        self._length += len(text)

    def _whole_characters(self, text: str) -> str:
        """Join surrogate halves that were split over two pieces; a lone one becomes U+FFFD."""
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return whole_characters(text)


class MessageWriter:
    """A message being written; its parts only grow, and each is committed when it and all before it are finished."""

    def __init__(self, turn_writer: TurnWriter, message: RawMessage) -> None:
        self.id = message.id
        self._desk = turn_writer
        self._message = message
        self._parts: list[PartWriter] = []
        self._committed = 0
        self._one_by_one = asyncio.Lock()  # a part is stored after all before it, also when the store fails in between

    def open(self, head: Part) -> PartWriter:
        part = PartWriter(self._desk, self._message, len(self._parts), head, self._commit_finished)
        self._parts.append(part)
        return part

    async def add(self, part: Part) -> None:
        """A part that comes whole."""
        await self.open(_head_of(part)).finish(part)

    async def finish(
        self,
        reason: FinishReason,
        *,
        message: str | None = None,
        details: str | None = None,
        usage: Usage | None = None,
    ) -> None:
        """End the message; its open parts and its finish are one event."""
        async with self._one_by_one:
            self._desk.check_claim()
            last = [part.complete() for part in self._parts[self._committed :]]
            await self._commit([*last, Finish(reason, message, details, usage)], usage)

    async def _commit_finished(self) -> None:
        async with self._one_by_one:
            finished: list[Part] = []
            for part in self._parts[self._committed :]:
                if part.final is None:
                    break
                finished.append(part.final)
            if finished:
                await self._commit(finished, None)

    async def _commit(self, parts: list[Part], usage: Usage | None) -> None:
        first = self._committed
        self._committed += len(parts)  # also if nobody waits for the commit to its end: it happens all the same
        await retry_store(lambda: self._desk.store.finish_parts(self._desk.claim, self.id, first, parts, usage))
        self._desk.drop_drafts(self.id, self._committed)  # not before: what could not be stored is still a draft


class _OutputWriter:
    """A message of one streamed part: it is there from the first moment, and its output can be watched."""

    def __init__(self, turn_writer: TurnWriter, message: RawMessage, head: Part) -> None:
        self.id = message.id
        self._desk = turn_writer
        self._beside: tuple[Part, ...] = ()  # what comes with the part, in the same event
        self._part = PartWriter(turn_writer, message, 0, head, self._commit)

    def write(self, text: str) -> None:
        self._part.write(text)

    async def _commit(self) -> None:
        assert self._part.final is not None
        parts = [self._part.final, *self._beside]
        await retry_store(lambda: self._desk.store.finish_parts(self._desk.claim, self.id, 0, parts))
        self._desk.drop_drafts(self.id, 1)


class ToolWriter(_OutputWriter):
    """The result of one tool call."""

    def __init__(self, turn_writer: TurnWriter, message: RawMessage, head: ToolResult) -> None:
        super().__init__(turn_writer, message, head)
        self._head = head

    async def finish(
        self,
        content: str,
        *,
        is_error: bool = False,
        metadata: dict[str, Any] | None = None,
        images: Sequence[Image] = (),
    ) -> None:
        """The result and the images that belong to it are one event."""
        self._beside = tuple(images)
        result = msgspec.structs.replace(self._head, content=content, is_error=is_error, metadata=metadata)
        await self._part.finish(result)


class ShellWriter(_OutputWriter):
    """A person's own command, from its run's start on."""

    def __init__(self, turn_writer: TurnWriter, message: RawMessage, head: ShellCommand) -> None:
        super().__init__(turn_writer, message, head)
        self._head = head

    async def finish(self, output: str, exit_code: int) -> None:
        output = whole_characters(output)
        await self._part.finish(msgspec.structs.replace(self._head, output=output, exit_code=exit_code))


def _kind_of(head: Part) -> DeltaKind:
    match head:
        case Text():
            return "text"
        case Reasoning():
            return "reasoning"
        case ToolCall():
            return "tool_input"
        case ToolResult() | ShellCommand():
            return "tool_output"
        case _:
            return "text"  # comes whole: there will be no delta


def _goes_on(kind: DeltaKind, shown: str, final: Part) -> bool:
    """Whether a part keeps what was shown of it. A tool's output may be cut when it is over."""
    match final:
        case Text() | Reasoning():
            return whole_characters(final.text).startswith(shown)
        case ToolCall():
            return whole_characters(final.input).startswith(shown)
        case _:
            return kind == "tool_output" or not shown


def _completed(part: Part) -> Part:
    return msgspec.structs.replace(part, finished=True) if isinstance(part, ToolCall) else part


def _head_of(part: Part) -> Part:
    """The part without its text; one that is never streamed, as it is."""
    match part:
        case ToolCall():
            return msgspec.structs.replace(part, input="", finished=False)
        case Text() | Reasoning() | ToolResult() | ShellCommand():
            return with_text(part, "")
        case _:
            return part

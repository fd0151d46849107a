"""Writing messages: text is shown at once, kept in drafts as it grows, and committed part by part (P12, P13)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kedge.engine.persist import persist
from kedge.feed.feed import Feed
from kedge.protocol.errors import StoreUnavailable
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
from kedge.protocol.usage import Usage
from kedge.store.errors import ClaimLost
from kedge.store.port import Claim, Draft, Store

DRAFT_S = 0.25  # what a crash may lose of text in flight


class Desk:
    """What the writers of one turn share: the claim, the feed, and drafts on their way to the store."""

    def __init__(self, store: Store, feed: Feed, claim: Claim) -> None:
        self.store = store
        self.feed = feed
        self.claim = claim
        self.is_revoked = False
        self._unsaved: list[Draft] = []
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._one_by_one = asyncio.Lock()  # what is saved later comes later in the text

    def check(self) -> None:
        if self.is_revoked:
            raise ClaimLost(self.claim.run_id)

    def keep(self, draft: Draft) -> None:
        self._unsaved.append(draft)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DRAFT_S, self._save_soon)

    def forget(self, message_id: str, below: int) -> None:
        """Parts that are committed need no draft."""
        self._unsaved = [draft for draft in self._unsaved if draft.message_id != message_id or draft.part >= below]

    async def save(self) -> None:
        """Hand everything in flight to the store; what it cannot take now is kept for later."""
        async with self._one_by_one:
            drafts, self._unsaved = self._unsaved, []
            if not drafts:
                return
            try:
                await self.store.append_drafts(self.claim, _merged(drafts))
            except StoreUnavailable:
                self._unsaved = drafts + self._unsaved
                raise
            except ClaimLost:
                pass  # the run ended meanwhile, with what was saved before

    async def close(self) -> None:
        """The turn is over: it writes no more, and what people saw of it is saved. To be called until it succeeds."""
        self.is_revoked = True
        if self._timer is not None:
            self._timer.cancel()
        if self._saving is not None:
            await self._saving
        await self.save()

    def _save_soon(self) -> None:
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(self._save_if_possible())

    async def _save_if_possible(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self.save()


class PartWriter:
    """One part being streamed. `write` shows text at once; `finish` says what the part is, for good."""

    def __init__(self, desk: Desk, message: RawMessage, index: int, head: Part, commit: Callable[[], Any]) -> None:
        self.final: Part | None = None
        self._desk = desk
        self._message = message
        self._index = index
        self._head = head
        self._commit = commit
        self._kind: DeltaKind = _kind_of(head)
        self._pieces: list[str] = []
        self._length = 0
        self._half = ""  # a high surrogate that waits for its other half
        desk.check()
        desk.feed.open_part(message.id, index, head)
        desk.keep(Draft(message.id, index, self._kind, "", head))

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
        self._desk.check()
        self.complete(final)
        await self._commit()

    def _show(self, text: str) -> None:
        self._desk.check()
        if not text:
            return
        ids = (self._message.id, self._message.session_id, self._message.run_id)
        self._desk.feed.publish_delta(Delta(*ids, self._index, self._kind, self._length, text))
        self._desk.keep(Draft(self._message.id, self._index, self._kind, text))
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

    def __init__(self, desk: Desk, message: RawMessage) -> None:
        self.id = message.id
        self._desk = desk
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
            self._desk.check()
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
        await persist(lambda: self._desk.store.finish_parts(self._desk.claim, self.id, first, parts, usage))
        self._desk.forget(self.id, self._committed)  # not before: what could not be stored is still a draft


class ToolWriter:
    """The message of one tool call's result: it is there while the call runs, and its output can be watched."""

    def __init__(self, desk: Desk, message: RawMessage, head: ToolResult) -> None:
        self.id = message.id
        self._desk = desk
        self._head = head
        self._images: tuple[Image, ...] = ()
        self._part = PartWriter(desk, message, 0, head, self._commit)

    def write(self, text: str) -> None:
        self._part.write(text)

    async def finish(
        self,
        content: str,
        *,
        is_error: bool = False,
        metadata: dict[str, Any] | None = None,
        images: Sequence[Image] = (),
    ) -> None:
        """The result and the images that belong to it are one event."""
        self._images = tuple(images)
        result = msgspec.structs.replace(self._head, content=content, is_error=is_error, metadata=metadata)
        await self._part.finish(result)

    async def _commit(self) -> None:
        result = self._part.final
        assert result is not None
        parts: list[Part] = [result, *self._images]
        await persist(lambda: self._desk.store.finish_parts(self._desk.claim, self.id, 0, parts))
        self._desk.forget(self.id, 1)


class ShellWriter:
    """The message of a person's own command: it is there from the run's start, and its output can be watched."""

    def __init__(self, desk: Desk, message: RawMessage, head: ShellCommand) -> None:
        self.id = message.id
        self._desk = desk
        self._head = head
        self._part = PartWriter(desk, message, 0, head, self._commit)

    def write(self, text: str) -> None:
        self._part.write(text)

    async def finish(self, output: str, exit_code: int) -> None:
        output = whole_characters(output)
        await self._part.finish(msgspec.structs.replace(self._head, output=output, exit_code=exit_code))

    async def _commit(self) -> None:
        command = self._part.final
        assert command is not None
        await persist(lambda: self._desk.store.finish_parts(self._desk.claim, self.id, 0, [command]))
        self._desk.forget(self.id, 1)


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


def _merged(drafts: list[Draft]) -> list[Draft]:
    """One row for each part and flush, however many pieces came."""
    merged: dict[tuple[str, int], list[Draft]] = {}
    for draft in drafts:
        merged.setdefault((draft.message_id, draft.part), []).append(draft)
    return [
        msgspec.structs.replace(pieces[0], text="".join(piece.text for piece in pieces)) for pieces in merged.values()
    ]

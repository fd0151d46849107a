"""Writers of messages: text is published at once, saved in drafts, and committed part by part (P12, P13)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kedge.engine.concurrency import retry_store
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
    replace_surrogates,
    with_text,
)
from kedge.protocol.runs import Usage
from kedge.store.errors import ClaimLost
from kedge.store.port import Claim, Draft, Store

DRAFT_S = 0.25  # text in flight that a crash may lose


class TurnWriter:
    """The right of a turn to write (P13), and its text in flight on the way to the store (P12).

    Shared by all message writers of the turn. After it is revoked, `check_claim` raises and only drafts are saved.
    """

    def __init__(self, store: Store, feed: Feed, claim: Claim) -> None:
        self.store = store
        self.feed = feed
        self.claim = claim
        self.is_revoked = False
        self._unsaved: list[Draft] = []
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._save_lock = asyncio.Lock()  # drafts of a part are stored in the order of its text

    def check_claim(self) -> None:
        if self.is_revoked:
            raise ClaimLost(self.claim.run_id)

    def add_draft(self, draft: Draft) -> None:
        self._unsaved.append(draft)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DRAFT_S, self._save_soon)

    def drop_drafts(self, message_id: str, below: int) -> None:
        """Drop drafts of the message's parts below this index: they are committed."""
        self._unsaved = [draft for draft in self._unsaved if draft.message_id != message_id or draft.part >= below]

    async def save_drafts(self) -> None:
        """Store all drafts. Raises `StoreUnavailable`, and then keeps them for the next call."""
        async with self._save_lock:
            drafts, self._unsaved = self._unsaved, []
            if not drafts:
                return
            try:
                await self.store.append_drafts(self.claim, _merge_drafts(drafts))
            except StoreUnavailable:
                self._unsaved = drafts + self._unsaved
                raise
            except ClaimLost:
                pass  # the run has ended, with the drafts saved before

    async def close(self) -> None:
        """Revoke the right to write and save the text that clients have seen. Call it until it does not raise."""
        self.is_revoked = True
        if self._timer is not None:
            self._timer.cancel()
        if self._saving is not None:
            await self._saving
        await self.save_drafts()

    def _save_soon(self) -> None:
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(self._try_to_save())

    async def _try_to_save(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self.save_drafts()


def _merge_drafts(drafts: list[Draft]) -> list[Draft]:
    by_part: dict[tuple[str, int], list[Draft]] = {}
    for draft in drafts:
        by_part.setdefault((draft.message_id, draft.part), []).append(draft)
    return [
        msgspec.structs.replace(group[0], text="".join(draft.text for draft in group)) for group in by_part.values()
    ]


class PartWriter:
    """One streamed part: `write` publishes text at once, `finish` commits the final part."""

    def __init__(
        self,
        turn_writer: TurnWriter,
        message: RawMessage,
        index: int,
        head: Part,
        commit: Callable[[], Any],
        text: str = "",
    ) -> None:
        """`text`: what was published and stored before a restart."""
        self.final: Part | None = None
        self._turn_writer = turn_writer
        self._message = message
        self._index = index
        self._head = head
        self._commit = commit
        self._kind: DeltaKind = _kind_of(head)
        self._pieces: list[str] = [text]
        self._length = len(text)
        self._high_surrogate = ""  # a high surrogate whose low one has not come yet
        turn_writer.check_claim()
        if text:
            return
        turn_writer.feed.open_items.open_part(message.id, index, head)
        turn_writer.add_draft(Draft(message.id, index, self._kind, "", head))

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def write(self, text: str) -> None:
        self._publish(self._join_surrogates(text))

    def flush(self) -> None:
        """Publish a lone high surrogate as U+FFFD: no more text comes."""
        if self._high_surrogate:
            self._high_surrogate = ""
            self._publish("\ufffd")

    def complete(self, final: Part | None = None) -> Part:
        """Set the final part without committing it. Raises `ValueError` if it does not continue the published text."""
        self.flush()
        if final is not None and not _continues(self._kind, self.text, final):
            raise ValueError("published text is never taken back (P12)")
        self.final = self.final or final or _mark_finished(with_text(self._head, self.text))
        return self.final

    async def finish(self, final: Part | None = None) -> None:
        self._turn_writer.check_claim()
        self.complete(final)
        await self._commit()

    def _publish(self, text: str) -> None:
        self._turn_writer.check_claim()
        if not text:
            return
        ids = (self._message.id, self._message.session_id, self._message.run_id)
        self._turn_writer.feed.publish_delta(Delta(*ids, self._index, self._kind, self._length, text))
        self._turn_writer.add_draft(Draft(self._message.id, self._index, self._kind, text))
        self._pieces.append(text)
        self._length += len(text)

    def _join_surrogates(self, text: str) -> str:
        """Join surrogate pairs that were split over two writes; a lone surrogate becomes U+FFFD."""
        text = self._high_surrogate + text
        self._high_surrogate = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._high_surrogate = text[:-1], text[-1]
        return replace_surrogates(text)


class MessageWriter:
    """A message being written; a part is committed when it and all parts before it are finished."""

    def __init__(self, turn_writer: TurnWriter, message: RawMessage) -> None:
        self.id = message.id
        self._turn_writer = turn_writer
        self._message = message
        self._parts: list[PartWriter] = []
        self._committed = 0
        self._commit_lock = asyncio.Lock()  # parts are stored in order, also if the store fails in between

    def open(self, head: Part) -> PartWriter:
        part = PartWriter(self._turn_writer, self._message, len(self._parts), head, self._commit_finished)
        self._parts.append(part)
        return part

    async def add(self, part: Part) -> None:
        """Add a part that is not streamed."""
        await self.open(_without_text(part)).finish(part)

    async def finish(
        self,
        reason: FinishReason,
        *,
        message: str | None = None,
        details: str | None = None,
        usage: Usage | None = None,
    ) -> None:
        """End the message: its open parts and its `Finish` are one event."""
        async with self._commit_lock:
            self._turn_writer.check_claim()
            last = [part.complete() for part in self._parts[self._committed :]]
            await self._commit([*last, Finish(reason, message, details, usage)], usage)

    async def _commit_finished(self) -> None:
        async with self._commit_lock:
            finished: list[Part] = []
            for part in self._parts[self._committed :]:
                if part.final is None:
                    break
                finished.append(part.final)
            if finished:
                await self._commit(finished, None)

    async def _commit(self, parts: list[Part], usage: Usage | None) -> None:
        first = self._committed
        self._committed += len(parts)  # before the await: the commit happens even if this call is canceled
        await retry_store(
            lambda: self._turn_writer.store.finish_parts(self._turn_writer.claim, self.id, first, parts, usage)
        )
        self._turn_writer.drop_drafts(self.id, self._committed)  # after the commit: until then the drafts are needed


class _OutputWriter:
    """A message of one part whose output is streamed."""

    def __init__(self, turn_writer: TurnWriter, message: RawMessage, head: Part, text: str = "") -> None:
        self.id = message.id
        self._turn_writer = turn_writer
        self._extra_parts: tuple[Part, ...] = ()  # committed with the part, in the same event
        self._part = PartWriter(turn_writer, message, 0, head, self._commit, text)

    def write(self, text: str) -> None:
        self._part.write(text)

    async def _commit(self) -> None:
        assert self._part.final is not None
        parts = [self._part.final, *self._extra_parts]
        await retry_store(lambda: self._turn_writer.store.finish_parts(self._turn_writer.claim, self.id, 0, parts))
        self._turn_writer.drop_drafts(self.id, 1)


class ToolWriter(_OutputWriter):
    def __init__(self, turn_writer: TurnWriter, message: RawMessage, head: ToolResult, text: str = "") -> None:
        super().__init__(turn_writer, message, head, text)
        self._head = head
        self._turn_writer = turn_writer

    async def state(self) -> bytes | None:
        """Return what `keep_state` stored, also before a restart."""
        return await retry_store(lambda: self._turn_writer.store.call_state(self.id))

    async def keep_state(self, state: bytes | None) -> None:
        """Store what the next server needs to go on with the call. None: from now on a crash interrupts it (P13)."""
        self._turn_writer.check_claim()
        await retry_store(lambda: self._turn_writer.store.keep_call_state(self._turn_writer.claim, self.id, state))

    async def finish(
        self,
        content: str,
        *,
        is_error: bool = False,
        metadata: dict[str, Any] | None = None,
        images: Sequence[Image] = (),
    ) -> None:
        """Commit the result and its images as one event."""
        self._extra_parts = tuple(images)
        result = msgspec.structs.replace(self._head, content=content, is_error=is_error, metadata=metadata)
        await self._part.finish(result)


class ShellWriter(_OutputWriter):
    """The command of a shell run, which a user typed."""

    def __init__(self, turn_writer: TurnWriter, message: RawMessage, head: ShellCommand) -> None:
        super().__init__(turn_writer, message, head)
        self._head = head

    async def finish(self, output: str, exit_code: int) -> None:
        output = replace_surrogates(output)
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
            return "text"  # not streamed: there will be no delta


def _continues(kind: DeltaKind, published: str, final: Part) -> bool:
    """Whether the final part begins with its published text. A tool's output may be shortened at its end."""
    match final:
        case Text() | Reasoning():
            return replace_surrogates(final.text).startswith(published)
        case ToolCall():
            return replace_surrogates(final.input).startswith(published)
        case _:
            return kind == "tool_output" or not published


def _mark_finished(part: Part) -> Part:
    return msgspec.structs.replace(part, finished=True) if isinstance(part, ToolCall) else part


def _without_text(part: Part) -> Part:
    """Return the part without its text; a part that is not streamed, unchanged."""
    match part:
        case ToolCall():
            return msgspec.structs.replace(part, input="", finished=False)
        case Text() | Reasoning() | ToolResult() | ShellCommand():
            return with_text(part, "")
        case _:
            return part

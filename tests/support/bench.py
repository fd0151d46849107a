"""A real store with its feeds, and turns that write by hand: no engine decides when anything happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

from kedge.engine.message_writer import MessageWriter, ToolWriter, TurnWriter
from kedge.feed.feed import RING_BYTES, Feed
from kedge.feed.feeds import ALL_RINGS_BYTES, Feeds, stream
from kedge.protocol.errors import StoreUnavailable
from kedge.protocol.messages import Message, Part, ToolResult
from kedge.protocol.runs import Submission, Usage
from kedge.protocol.sessions import SessionChange
from kedge.store.port import Claim, Draft
from kedge.store.sqlite.store import SqliteStore
from tests.support.reader import LIMIT_S, Reader


class StumblingStore(SqliteStore):
    """A store that refuses what it is told to refuse, as a full disk would."""

    failing: frozenset[str] = frozenset()
    holding: asyncio.Event | None = None  # the next flush of drafts waits for this, and then fails
    flushed = 0  # drafts that were stored
    was_flushed: asyncio.Event
    refused: asyncio.Event  # something was

    async def append_drafts(self, claim: Claim, drafts: Sequence[Draft]) -> None:
        if self.holding is not None:
            held, self.holding = self.holding, None
            await held.wait()
            raise StoreUnavailable("the disk is full")
        self._stumble("drafts")
        await super().append_drafts(claim, drafts)
        self.flushed += len(drafts)
        self.was_flushed.set()

    async def finish_parts(
        self, claim: Claim, message_id: str, first: int, parts: Sequence[Part], usage: Usage | None = None
    ) -> None:
        self._stumble("parts")
        await super().finish_parts(claim, message_id, first, parts, usage)

    def _stumble(self, what: str) -> None:
        if what in self.failing:
            self.refused.set()
            raise StoreUnavailable("the disk is full")


class Bench:
    """Use as `async with Bench(directory) as bench`. It has one workspace, and any number of others."""

    def __init__(self, directory: Path, *, ring_bytes: int = RING_BYTES, all_bytes: int = ALL_RINGS_BYTES) -> None:
        store = StumblingStore.open(directory / "data")
        assert isinstance(store, StumblingStore)
        self.store = store
        self.store.was_flushed, self.store.refused = asyncio.Event(), asyncio.Event()
        self.feeds = Feeds(ring_bytes=ring_bytes, all_bytes=all_bytes)
        self.store.on_commit = self.feeds.publish
        self.workspace_id = ""
        self._runs = 0
        self._desks: list[TurnWriter] = []

    async def __aenter__(self) -> Bench:
        self.workspace_id = await self.workspace("/one")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.store.failing = frozenset()
        for turn_writer in self._desks:
            await turn_writer.close()
        self.feeds.close()
        await self.store.close()

    async def workspace(self, path: str) -> str:
        state = await self.store.open_workspace(path)
        self.feeds.open(state)
        return state.workspace.id

    @property
    def feed(self) -> Feed:
        return self.feed_of(self.workspace_id)

    def feed_of(self, workspace_id: str) -> Feed:
        return self.feeds.require(workspace_id)

    async def session(self, title: str = "", workspace_id: str | None = None) -> str:
        return (await self.store.create_session(workspace_id or self.workspace_id, title)).id

    async def events(self, session_id: str, count: int, title: str = "t") -> None:
        """So many events that mean nothing."""
        for _ in range(count):
            await self.store.change_session(self.workspace_id, session_id, SessionChange(title=title))

    async def start(self, session_id: str, prompt: str = "p") -> TurnWriter:
        """A run that is accepted and started; whoever has its turn_writer is its turn."""
        self._runs += 1
        run_id = f"r{self._runs}"
        await self.store.accept(self.workspace_id, run_id, Submission(session_id=session_id, prompt=prompt))
        started = await self.store.start(self.workspace_id, session_id)
        assert started is not None
        assert started.run.run_id == run_id
        turn_writer = TurnWriter(self.store, self.feed, started.claim)
        self._desks.append(turn_writer)
        return turn_writer

    async def message(self, turn_writer: TurnWriter) -> MessageWriter:
        return MessageWriter(turn_writer, await self.store.create_message(turn_writer.claim, "assistant"))

    async def tool(self, turn_writer: TurnWriter, message_id: str, call_id: str, name: str) -> ToolWriter:
        raw = await self.store.create_message(turn_writer.claim, "tool", call=(message_id, call_id, name))
        return ToolWriter(turn_writer, raw, ToolResult(call_id, name, "", False))

    async def messages(self, session_id: str) -> list[Message]:
        return (await self.store.messages(self.workspace_id, session_id)).messages

    async def parts(self, session_id: str) -> list[Part]:
        """Of the newest message."""
        return (await self.messages(session_id))[-1].parts

    def stream(
        self, after: int | None = None, *, log_id: str | None = None, session_id: str | None = None
    ) -> AsyncGenerator[bytes]:
        return stream(self.feed, self.store, after=after, log_id=log_id, session_id=session_id)


async def next_chunk(stream: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        return await anext(stream)


async def read_until(reader: Reader, stream: AsyncIterator[bytes], type: str) -> None:
    """Read chunk by chunk until one brought an event of that type."""
    while True:
        seen = len(reader.frames)
        reader.take(await next_chunk(stream))
        if type in reader.types[seen:]:
            return


async def read_to_end(reader: Reader, stream: AsyncIterator[bytes]) -> None:
    async with asyncio.timeout(LIMIT_S):
        await reader.follow(stream)

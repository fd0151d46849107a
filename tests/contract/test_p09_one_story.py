"""P9, P10, P11: one story for everyone, no silent gap, and nobody is hurt by a slow reader."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kedge.engine.turn import TurnContext
from kedge.protocol.events import CaughtUp, Connected, StreamReset
from kedge.protocol.messages import Text
from kedge.store.port import Retention
from tests.support.harness import Kedge
from tests.support.reader import LIMIT_S, Reader


@asynccontextmanager
async def reading(kedge: Kedge, reader: Reader, *, session_id: str | None = None) -> AsyncGenerator[Reader]:
    """A connection of this reader, until the end of the block."""
    task = asyncio.create_task(kedge.read(reader, session_id=session_id))
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.wait({task})


async def until_shown(reader: Reader, seq: int) -> None:
    await reader.event(lambda event: event.seq == seq or event.payload == CaughtUp(seq))


async def head(kedge: Kedge) -> int:
    return len(await kedge.log())


async def test_every_client_sees_the_same_bytes_in_the_same_order_live_or_replayed(kedge: Kedge) -> None:
    sessions = [await kedge.session() for _ in range(3)]
    readers = [Reader() for _ in range(3)]
    async with reading(kedge, readers[0]), reading(kedge, readers[1]):
        for number in range(12):
            script = ["say a b c", "tool bash done; say d", "fail boom", "ask rm done"][number % 4]
            await kedge.send(sessions[number % 3], script, f"r{number}", permissions="allow")
        await kedge.ends(*(f"r{number}" for number in range(12)))
        async with reading(kedge, readers[2]):
            for reader in readers:
                await until_shown(reader, await head(kedge))
    logged = await kedge.log_frames()
    for reader in readers:
        assert reader.log_frames == logged


async def test_client_that_comes_back_at_any_point_misses_nothing_and_sees_nothing_twice(kedge: Kedge) -> None:
    choice = random.Random(7)
    reader = Reader()
    sessions = [await kedge.session() for _ in range(3)]
    for number in range(30):
        await kedge.send(choice.choice(sessions), "say a b c; tool bash done", f"r{number}")
    connections = 0
    while reader.types.count("run_complete") < 30:
        connections += 1
        stream = kedge.engine.subscribe(kedge.workspace_id, after=reader.cursor, log_id=reader.log_id)
        async with asyncio.timeout(LIMIT_S):
            for _ in range(choice.randint(1, 9)):
                if reader.types.count("run_complete") < 30:
                    reader.take(await anext(stream))
    assert connections > 3
    assert reader.log_frames == await kedge.log_frames()


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_cursor_holds_after_a_restart_and_a_crash_of_the_server(kedge: Kedge, how: str) -> None:
    session_id = await kedge.session()
    reader = Reader()
    async with reading(kedge, reader):
        await kedge.send(session_id, "say one; wait go; say two", "r")
        await kedge.reached("go")
        await until_shown(reader, await head(kedge))
    await (kedge.restart() if how == "restart" else kedge.crash_and_start())
    await kedge.reached("go")
    kedge.gates.open("go")
    await kedge.end("r")
    async with reading(kedge, reader):
        await until_shown(reader, await head(kedge))
    assert reader.log_frames == await kedge.log_frames()
    assert "stream_reset" not in reader.types


async def test_what_was_shown_survives_a_crash(kedge: Kedge) -> None:
    """An event is shown only after its commit."""
    session_id = await kedge.session()
    reader = Reader()
    reading_task = asyncio.create_task(kedge.read(reader))
    for number in range(20):
        await kedge.send(session_id, "say a b; tool bash done", f"r{number}")
    await kedge.seen_run("r3", "completed")
    await kedge.crash_and_start()
    await asyncio.wait({reading_task})
    assert len(reader.log) > 10
    logged = await kedge.log_frames()
    assert reader.log_frames == logged[: len(reader.log_frames)]


async def test_order_on_a_stream(kedge: Kedge) -> None:
    """connected, the log after the cursor, pending requests and snapshots, caught_up, live."""
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done; wait go; say live", "r")
    request = await kedge.asked()
    seen_before = await head(kedge)
    async with reading(kedge, Reader()) as reader:
        await reader.event(lambda event: event.type == "caught_up")
        await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "tui")
        await kedge.reached("go")
        kedge.gates.open("go")
        await reader.event(lambda event: event.type == "run_complete")
    first, *rest = [frame.event for frame in reader.frames]
    assert first.payload == Connected(log_id=kedge.engine.feed(kedge.workspace_id).log_id, head=seen_before, after=0)
    assert [event.seq for event in rest[:seen_before]] == list(range(1, seen_before + 1))
    again, caught_up = rest[seen_before : seen_before + 2]
    assert (again.type, again.seq, again.payload) == ("permission_request", None, request)
    assert caught_up.payload == CaughtUp(seen_before)
    assert rest[-1].type == "run_complete"


async def test_without_a_cursor_a_stream_starts_at_the_head(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say old", "old")
    await kedge.end("old")
    reader = Reader()
    task = asyncio.create_task(reader.follow(kedge.engine.subscribe(kedge.workspace_id)))
    await reader.event(lambda event: event.type == "caught_up")
    await kedge.send(session_id, "say new", "new")
    await reader.event(lambda event: event.type == "run_complete")
    task.cancel()
    await asyncio.wait({task})
    assert {getattr(event.payload, "run_id", "new") for event in reader.log} == {"new"}


async def test_filtered_stream_shows_one_session_and_its_cursor_counts_all(kedge: Kedge) -> None:
    ours, theirs = await kedge.session(), await kedge.session()
    await kedge.send(ours, "say ours", "ours")
    await kedge.send(theirs, "say theirs", "theirs")
    await kedge.ends("ours", "theirs")
    async with reading(kedge, Reader(), session_id=ours) as reader:
        await until_shown(reader, await head(kedge))
    assert {getattr(event.payload, "session_id", ours) for event in reader.log} == {ours}
    assert reader.cursor == await head(kedge)


class TestResets:
    """P10: a cursor that cannot be served is told why, and the stream goes on from the head."""

    async def test_cursor_ahead_of_the_head(self, kedge: Kedge) -> None:
        await kedge.session()
        await self.expect(kedge, "ahead", after=1000)

    async def test_cursor_of_another_log(self, kedge: Kedge) -> None:
        await kedge.session()
        await self.expect(kedge, "other_log", after=1, log_id="another")

    async def test_cursor_below_retention(self, kedge: Kedge) -> None:
        session_id = await kedge.session()
        await kedge.send(session_id, "say old", "old")
        await kedge.end("old")
        kedge.clock.ahead_s = 365 * 86_400
        await kedge.store.retain(Retention())
        await kedge.restart()  # what is still in memory could be served
        kedge.watcher = Reader()  # the first story is gone: what is left begins elsewhere
        await self.expect(kedge, "retention", after=1)

    async def expect(self, kedge: Kedge, reason: str, *, after: int, log_id: str | None = None) -> None:
        place = (await kedge.store.read_log(kedge.workspace_id, 0, 1)).head
        reader = Reader()
        stream = kedge.engine.subscribe(kedge.workspace_id, after=after, log_id=log_id)
        task = asyncio.create_task(reader.follow(stream))
        await reader.event(lambda event: event.type == "caught_up")
        session_id = await kedge.session()
        await reader.event(lambda event: event.seq == place + 1)
        task.cancel()
        await asyncio.wait({task})
        assert reader.types == ["connected", "stream_reset", "caught_up", "session"]
        reset, caught_up = (reader.frames[index].event.payload for index in (1, 2))
        assert isinstance(reset, StreamReset)
        assert (reset.reason, reset.head) == (reason, place)
        assert caught_up == CaughtUp(place)
        assert getattr(reader.log[0].payload, "id", "") == session_id


class TestSlowReaders:
    """P11: a subscriber is a cursor, not a queue."""

    @pytest.mark.slow
    async def test_reader_that_stops_delays_nobody_and_catches_up(self, kedge: Kedge) -> None:
        async def chatty(ctx: TurnContext) -> None:
            message = await ctx.begin_message()
            text = message.open(Text(""))
            for number in range(6000):  # about twice what the ring holds
                text.write(f"{number}:" + "x" * 1000)
            await message.finish("end_turn")

        kedge.turns["prompt"] = chatty
        session_id = await kedge.session()
        stalled, steady = Reader(), Reader()
        stream = kedge.engine.subscribe(kedge.workspace_id, after=0)
        stalled.take(await anext(stream))  # and then it stops
        async with reading(kedge, steady):
            await kedge.send(session_id, "go", "r")
            end = await kedge.end("r")
            await steady.event(lambda event: event.type == "run_complete")
        assert len(end.text) > 6_000_000
        assert kedge.engine.feed(kedge.workspace_id).ring.size_bytes < 16 * 1024 * 1024

        async with asyncio.timeout(LIMIT_S):
            while stalled.cursor < await head(kedge):
                stalled.take(await anext(stream))
        assert stalled.log_frames == await kedge.log_frames()
        assert end.message_id is not None
        for reader in (stalled, steady):
            assert reader.texts[end.message_id][0] == end.text

    async def test_many_stalled_readers_are_only_numbers(self, kedge: Kedge) -> None:
        streams = [kedge.engine.subscribe(kedge.workspace_id, after=0) for _ in range(200)]
        for stream in streams:
            await anext(stream)
        session_id = await kedge.session()
        for number in range(20):
            await kedge.send(session_id, "say a b c", f"r{number}")
        await kedge.end("r19")
        logged = await kedge.log_frames()
        for stream in streams[::40]:
            reader = Reader()
            async with asyncio.timeout(LIMIT_S):
                while reader.cursor < len(logged):
                    reader.take(await anext(stream))
            assert reader.log_frames == logged


async def test_caller_that_leaves_while_a_workspace_is_opened_disturbs_nobody(kedge: Kedge, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    opening = asyncio.create_task(kedge.engine.open_workspace(other))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    workspace = await kedge.engine.open_workspace(other)
    await kedge.engine.create_session(workspace.id)
    await kedge.send(await kedge.session(), "say hello", "r")
    assert (await kedge.end("r")).text == "hello"

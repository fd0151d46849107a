"""A subscriber: the order of a stream, every kind of cursor, and readers that are cut or filtered (P9, P10)."""

import asyncio
import random
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.feed import feeds as stream_module
from kedge.protocol.events import CaughtUp, Connected, Heartbeat, ResetReason, StreamReset
from kedge.protocol.messages import Delta, Finish, MessageOf, Text
from kedge.protocol.requests import PermissionRequest
from kedge.store.port import Outcome, Retention
from tests.feed.streams import SMALL_RING, events_of, seqs
from tests.support.bench import Bench, next_chunk, read_to_end, read_until
from tests.support.reader import LIMIT_S, Reader, split_frames


class TestOrder:
    async def test_connected_log_open_things_caught_up_live(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        part = message.open(Text(""))
        part.write("Hel")
        request = PermissionRequest(
            id="", session_id="", run_id="", tool_call_id="c", tool="t", action="a", description="d", params={}
        )
        await bench.store.ask(turn_writer.claim, "permission", message.id, request)
        head = bench.feed.ring.head

        stream = bench.stream(after=0)
        events = await events_of(stream, until="caught_up")
        assert events[0].payload == Connected(bench.feed.log_id, head, 0)
        assert seqs(events) == list(range(1, head + 1))
        assert [event.type for event in events[1 + head :]] == ["permission_request", "message", "caught_up"]
        assert events[-1].payload == CaughtUp(head)
        snapshot = events[-2].payload
        assert isinstance(snapshot, MessageOf)
        assert snapshot.parts == [Text("Hel")]

        part.write("lo")
        await message.finish("end_turn")
        live = [frame.event for frame in split_frames(await next_chunk(stream))]
        assert isinstance(live[0].payload, Delta)
        assert (live[0].payload.offset, live[0].payload.text) == (3, "lo"), "deltas go on where the snapshot ends"
        assert seqs(live) == [head + 1]

    async def test_deltas_of_the_past_are_not_replayed(self, bench: Bench) -> None:
        turn_writer = await bench.start(await bench.session())
        message = await bench.message(turn_writer)
        message.open(Text("")).write("streamed")
        await message.finish("end_turn")
        events = await events_of(bench.stream(after=0), until="caught_up")
        assert "message_delta" not in [event.type for event in events]
        assert [e.payload.parts for e in events if isinstance(e.payload, MessageOf)][-1] == [
            Text("streamed"),
            Finish("end_turn"),
        ]

    async def test_an_empty_log_is_caught_up_with_at_once(self, bench: Bench) -> None:
        events = await events_of(bench.stream(after=0), until="caught_up")
        assert [event.payload for event in events] == [Connected(bench.feed.log_id, 0, 0), CaughtUp(0)]

    async def test_what_comes_while_a_reader_catches_up_comes_once(self, bench: Bench) -> None:
        session = await bench.session()
        await bench.events(session, 100)
        stream, reader = bench.stream(after=0), Reader()
        while "caught_up" not in reader.types:
            reader.take(await next_chunk(stream))
            if bench.feed.ring.head < 130:
                await bench.events(session, 10)
        assert [event.seq for event in reader.log] == list(range(1, bench.feed.ring.head + 1))


class TestCursors:
    async def test_no_cursor_means_from_the_head(self, bench: Bench) -> None:
        session = await bench.session()
        await bench.events(session, 3)
        stream = bench.stream()
        events = await events_of(stream, until="caught_up")
        assert [event.payload for event in events] == [Connected(bench.feed.log_id, 4, 4), CaughtUp(4)]
        await bench.events(session, 1)
        assert seqs(await events_of(stream, until="session")) == [5]

    @pytest.mark.parametrize("after", [0, 1, 3, 4])
    @pytest.mark.parametrize("names_the_log", [True, False])
    async def test_a_cursor_gets_what_came_after_it(self, bench: Bench, after: int, names_the_log: bool) -> None:
        await bench.events(await bench.session(), 3)
        stream = bench.stream(after, log_id=bench.feed.log_id if names_the_log else None)
        events = await events_of(stream, until="caught_up")
        assert seqs(events) == list(range(after + 1, 5))
        assert "stream_reset" not in [event.type for event in events]

    @pytest.mark.parametrize("after", [0, 5, 99])
    async def test_the_cursor_of_another_log_is_reset(self, bench: Bench, after: int) -> None:
        await bench.events(await bench.session(), 9)
        await self.is_reset(bench, after, "another-log", "other_log", head=10)

    async def test_a_cursor_ahead_of_the_head_is_reset(self, bench: Bench) -> None:
        await bench.events(await bench.session(), 2)
        await self.is_reset(bench, 4, None, "ahead", head=3)

    async def test_a_cursor_below_retention_is_reset(self, bench: Bench) -> None:
        session = await bench.session()
        await bench.events(session, 100)
        await bench.store.retain(Retention(max_bytes=3_000))
        bench.feed.ring.clear()
        page = await bench.store.read_log(bench.workspace_id, 0, 1)
        assert 0 < page.floor < 101
        await self.is_reset(bench, page.floor - 1, None, "retention", head=101)

    async def test_a_cursor_just_at_retention_is_served(self, bench: Bench) -> None:
        await bench.events(await bench.session(), 100)
        await bench.store.retain(Retention(max_bytes=3_000))
        bench.feed.ring.clear()
        floor = (await bench.store.read_log(bench.workspace_id, 0, 1)).floor
        events = await events_of(bench.stream(floor), until="caught_up")
        assert seqs(events) == list(range(floor + 1, 102))

    async def test_no_cursor_needs_no_log(self, bench: Bench) -> None:
        events = await events_of(bench.stream(None, log_id="another-log"), until="caught_up")
        assert [event.type for event in events] == ["connected", "caught_up"]

    async def is_reset(self, bench: Bench, after: int, log_id: str | None, reason: ResetReason, head: int) -> None:
        """The stream says why, and goes on from the head."""
        stream = bench.stream(after, log_id=log_id)
        events = await events_of(stream, until="caught_up")
        assert [event.payload for event in events] == [
            Connected(bench.feed.log_id, head, after),
            StreamReset(reason, head),
            CaughtUp(head),
        ]
        await bench.events(await bench.session(), 1)
        assert seqs(await events_of(stream, until="session"))[0] == head + 1


class TestFilter:
    async def test_a_reader_of_one_session_sees_that_session_alone(self, bench: Bench) -> None:
        mine, other = await bench.session("mine"), await bench.session("other")
        await bench.events(other, 60)
        await bench.events(mine, 2)
        stream, reader = bench.stream(after=0, session_id=mine), Reader()
        await read_until(reader, stream, "caught_up")
        assert [event.seq for event in reader.log] == [1, 63, 64]
        assert reader.frames[-1].event.payload == CaughtUp(64)
        await bench.events(other, 1)
        await bench.events(mine, 1)
        reader.take(await next_chunk(stream))
        assert reader.log[-1].seq == 66

    async def test_caught_up_is_a_valid_cursor_also_when_nothing_was_for_this_reader(self, bench: Bench) -> None:
        mine, other = await bench.session("mine"), await bench.session("other")
        await bench.events(other, 60)
        events = await events_of(bench.stream(after=1, session_id=mine), until="caught_up")
        assert [event.payload for event in events] == [Connected(bench.feed.log_id, 62, 1), CaughtUp(62)]

    async def test_deltas_and_snapshots_of_other_sessions_are_left_out(self, bench: Bench) -> None:
        mine, other = await bench.session("mine"), await bench.session("other")
        part = (await bench.message(await bench.start(other))).open(Text(""))
        part.write("not for you")
        stream = bench.stream(session_id=mine)
        assert [e.type for e in await events_of(stream, until="caught_up")] == ["connected", "caught_up"]
        part.write(" either")
        await bench.events(mine, 1)
        assert [frame.event.type for frame in split_frames(await next_chunk(stream))] == ["session"]


class TestHeartbeats:
    async def test_a_quiet_stream_says_that_it_lives(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        await bench.events(await bench.session(), 2)
        monkeypatch.setattr(stream_module, "HEARTBEAT_S", 0.02)
        stream = bench.stream()
        await events_of(stream, until="caught_up")
        for _ in range(3):
            (beat,) = split_frames(await next_chunk(stream))
            assert beat.event.payload == Heartbeat(3)

    async def test_a_heartbeat_is_a_valid_cursor_also_when_filtered(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mine, other = await bench.session(), await bench.session()
        monkeypatch.setattr(stream_module, "HEARTBEAT_S", 0.02)
        stream = bench.stream(session_id=mine)
        await events_of(stream, until="caught_up")
        await bench.events(other, 5)
        async with asyncio.timeout(LIMIT_S):
            while True:
                (beat,) = split_frames(await next_chunk(stream))
                assert isinstance(beat.event.payload, Heartbeat)
                if beat.event.payload.head == 7:
                    break

    async def test_a_busy_stream_has_heartbeats_too(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """A filtered reader may see nothing of what keeps the stream busy."""
        mine, other = await bench.session(), await bench.session()
        monkeypatch.setattr(stream_module, "HEARTBEAT_S", 0.05)
        stream = bench.stream(session_id=mine)
        await events_of(stream, until="caught_up")

        async def noise() -> None:
            while True:
                await bench.events(other, 1)

        making_noise = asyncio.create_task(noise())
        try:
            assert b'"heartbeat"' in await next_chunk(stream)
        finally:
            making_noise.cancel()
            await asyncio.wait({making_noise})

    def test_the_contract_is_kept(self) -> None:
        assert stream_module.HEARTBEAT_S < 10


class TestClosing:
    async def test_a_closed_feed_ends_its_streams_after_delivery(self, bench: Bench) -> None:
        session = await bench.session()
        keeping_up, behind, new = bench.stream(after=0), bench.stream(after=0), bench.stream(after=0)
        readers = [Reader(), Reader(), Reader()]
        await read_until(readers[0], keeping_up, "caught_up")
        readers[1].take(await next_chunk(behind))
        await bench.events(session, 60)
        bench.feeds.close()
        for reader, stream in zip(readers, [keeping_up, behind, new], strict=True):
            await read_to_end(reader, stream)
            assert [event.seq for event in reader.log] == list(range(1, 62))
        assert not bench.feed.cursors

    async def test_a_waiting_reader_is_woken_by_the_close(self, bench: Bench) -> None:
        stream, reader = bench.stream(after=0), Reader()
        await read_until(reader, stream, "caught_up")
        waiting = asyncio.create_task(read_to_end(reader, stream))
        await asyncio.sleep(0)
        bench.feeds.close()
        async with asyncio.timeout(LIMIT_S):
            await waiting

    async def test_a_reader_behind_when_the_store_closes_ends_quietly(self, bench: Bench) -> None:
        session = await bench.session()
        await bench.events(session, 60)  # more than the ring holds
        stream, reader = bench.stream(after=0), Reader()
        reader.take(await next_chunk(stream))
        bench.feeds.close()
        await bench.store.close()
        await read_to_end(reader, stream)
        assert reader.types == ["connected"]

    async def test_a_reader_that_leaves_is_not_counted_any_more(self, bench: Bench) -> None:
        stream = bench.stream()
        await next_chunk(stream)
        assert len(bench.feed.cursors) == 1
        assert isinstance(stream, AsyncGenerator)
        await stream.aclose()
        assert not bench.feed.cursors


@pytest.mark.parametrize("seed", range(12))
async def test_a_reader_cut_anywhere_has_the_same_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """P9, P12: whatever the chunk after which it lost its connection, and however often."""
    rng = random.Random(seed)
    monkeypatch.setattr(stream_module, "CHUNK_BYTES", 300)
    monkeypatch.setattr(stream_module, "PAGE_EVENTS", 5)
    async with Bench(tmp_path, ring_bytes=SMALL_RING) as bench:
        sessions = [await bench.session(), await bench.session()]
        steady, cut = Reader(), Reader()
        following = asyncio.create_task(steady.follow(bench.stream(after=0)))
        cuts = 0
        stream = bench.stream(after=0)
        for number in range(12):
            await play(bench, rng, rng.choice(sessions), number)
            for _ in range(rng.randint(0, 6)):
                if cut.cursor >= bench.feed.ring.head and "caught_up" in cut.types:
                    break
                cut.take(await next_chunk(stream))
            if rng.random() < 0.5:
                assert isinstance(stream, AsyncGenerator)
                await stream.aclose()
                stream = bench.stream(after=cut.cursor, log_id=cut.log_id)
                cuts += 1
        bench.feeds.close()
        await read_to_end(cut, stream)
        async with asyncio.timeout(LIMIT_S):
            await following
        assert cuts > 1
        assert cut.log_frames == steady.log_frames
        assert [event.seq for event in steady.log] == list(range(1, bench.feed.ring.head + 1))
        assert cut.texts == steady.texts


async def play(bench: Bench, rng: random.Random, session_id: str, number: int) -> None:
    """A turn with a few messages; some end in the middle of a word."""
    turn_writer = await bench.start(session_id)
    for _ in range(rng.randint(1, 3)):
        message = await bench.message(turn_writer)
        part = message.open(Text(""))
        for word in range(rng.randint(1, 20)):
            part.write(f"{number}.{word}😀 ")
        if rng.random() < 0.3:
            break
        await message.finish("end_turn")
    await turn_writer.close()
    await bench.store.finish(turn_writer.claim, Outcome(rng.choice(("completed", "cancelled"))))

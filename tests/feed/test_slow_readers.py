"""Readers that are slow, or stop: they cost bounded memory, delay nobody, and miss nothing (P11, P12)."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from kedge.feed import feeds as stream_module
from kedge.protocol.events import CaughtUp
from kedge.protocol.messages import Delta, MessageOf, Text
from kedge.protocol.requests import QuestionRequest
from kedge.store.port import Committed, LogPage
from tests.feed.streams import SMALL_RING, events_of, seqs
from tests.support.bench import Bench, next_chunk, read_to_end, read_until
from tests.support.reader import Reader


class TestSlowReaders:
    async def test_one_that_fell_off_the_ring_reads_the_log_and_is_told_again_what_is_open(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        part = (await bench.message(turn_writer)).open(Text(""))
        part.write("one ")
        stream, reader = bench.stream(after=0), Reader()
        await read_until(reader, stream, "caught_up")
        seen = len(reader.frames)

        part.write("two ")  # a delta that the reader never gets as such
        await bench.events(session, 60)
        part.write("three")
        assert bench.feed.ring.start > 0
        await read_until(reader, stream, "caught_up")
        types = reader.types[seen:]
        assert types == ["session"] * 60 + ["message", "caught_up"]
        assert reader.texts[desk_message(reader)] == {0: "one two three"}
        assert [event.seq for event in reader.log] == list(range(1, bench.feed.ring.head + 1))

    async def test_one_that_stopped_in_the_middle_of_the_log_goes_on_there(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream_module, "PAGE_EVENTS", 7)
        session = await bench.session()
        await bench.events(session, 100)
        stream, reader = bench.stream(after=0), Reader()
        for _ in range(3):
            reader.take(await next_chunk(stream))
        assert len(reader.log) == 14
        await bench.events(session, 100)
        await read_until(reader, stream, "caught_up")
        assert [event.seq for event in reader.log] == list(range(1, 202))

    async def test_a_ring_that_was_cleared_does_not_disturb_a_reader_that_keeps_up(self, bench: Bench) -> None:
        session = await bench.session()
        stream, reader = bench.stream(after=0), Reader()
        await read_until(reader, stream, "caught_up")
        bench.feed.ring.clear()
        await bench.events(session, 1)
        reader.take(await next_chunk(stream))
        assert reader.types == ["connected", "session", "caught_up", "session"]

    async def test_one_that_never_reads_costs_nothing_and_delays_nobody(self, bench: Bench) -> None:
        session = await bench.session()
        stalled = [bench.stream(after=0) for _ in range(50)]
        for stream in stalled:
            await next_chunk(stream)
        assert len(bench.feed.cursors) == 50
        await bench.events(session, 200)
        assert bench.feed.ring.size_bytes <= SMALL_RING * 5 // 4
        reader = Reader()
        await read_until(reader, stalled[0], "caught_up")
        assert [event.seq for event in reader.log] == list(range(1, 202))

    async def test_chunks_are_bounded(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stream_module, "CHUNK_BYTES", 500)
        stream, reader = bench.stream(), Reader()
        await read_until(reader, stream, "caught_up")
        await bench.events(await bench.session(), 10)
        while reader.cursor < bench.feed.ring.head:
            chunk = await next_chunk(stream)
            assert len(chunk) <= 500
            reader.take(chunk)

    async def test_a_frame_larger_than_a_chunk_goes_alone(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stream_module, "CHUNK_BYTES", 10)
        session = await bench.session()
        stream, reader = bench.stream(), Reader()
        await read_until(reader, stream, "caught_up")
        await bench.events(session, 2)
        for _ in range(2):
            chunk = await next_chunk(stream)
            assert chunk.count(b"\n\n") == 1
            reader.take(chunk)
        assert reader.cursor == 3

    async def test_a_commit_that_is_not_published_yet_is_not_shown(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The store may be ahead of the feed: what it has too early must not come twice."""
        session = await bench.session()
        await bench.events(session, 99)
        publish, read_log = bench.store.on_commit, bench.store.read_log
        unpublished: list[Sequence[Committed]] = []
        bench.store.on_commit = unpublished.append
        await bench.events(session, 5)

        async def read_then_publish(
            workspace_id: str, after: int, limit: int, session_id: str | None = None
        ) -> LogPage:
            page = await read_log(workspace_id, after, limit, session_id)
            while unpublished:
                publish(unpublished.pop(0))
            return page

        stream, reader = bench.stream(after=0), Reader()
        monkeypatch.setattr(bench.store, "read_log", read_then_publish)
        while reader.cursor < 105:
            reader.take(await next_chunk(stream))
        assert [event.seq for event in reader.log] == list(range(1, 106))

    async def test_what_is_not_published_at_all_is_not_shown(self, bench: Bench) -> None:
        """P9: an event is shown in its turn, or not yet; the store's head is not the feed's."""
        session = await bench.session()
        await bench.events(session, 99)
        bench.feed.ring.clear()
        publish, bench.store.on_commit = bench.store.on_commit, [].append
        await bench.events(session, 5)
        bench.store.on_commit = publish
        events = await events_of(bench.stream(after=0), until="caught_up")
        assert (seqs(events), events[-1].payload) == (list(range(1, 101)), CaughtUp(100))


class TestLongSnapshots:
    """A message that is still written may be longer than what one reader may hold."""

    async def test_deltas_go_on_where_the_snapshot_ends_also_while_it_is_sent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream_module, "CHUNK_BYTES", 100)
        async with Bench(tmp_path) as bench:
            message = await bench.message(await bench.start(await bench.session()))
            part = message.open(Text(""))
            part.write('é"\n' * 1_000)
            stream, reader = bench.stream(), Reader()
            chunks = 0
            while "caught_up" not in reader.types:
                chunk = await next_chunk(stream)
                assert len(chunk) <= 100
                reader.take(chunk)
                part.write(f"{chunks}😀 ")
                chunks += 1
            assert chunks > 50
            (snapshot,) = [f.event.payload for f in reader.frames if isinstance(f.event.payload, MessageOf)]
            assert snapshot.parts == [Text('é"\n' * 1_000 + "0😀 ")], "as it was when the first chunk was asked for"
            await message.finish("end_turn")
            bench.feeds.close()
            await read_to_end(reader, stream)
            deltas = [f.event.payload for f in reader.frames if isinstance(f.event.payload, Delta)]
            assert [delta.text for delta in deltas] == [f"{i}😀 " for i in range(1, chunks)]
            assert reader.texts[snapshot.id][0] == part.text

    async def test_one_that_fell_off_the_ring_while_it_was_sent_is_told_again(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream_module, "CHUNK_BYTES", 1_000)
        session = await bench.session()
        part = (await bench.message(await bench.start(session))).open(Text(""))
        part.write("a" * 5_000)
        stream, reader = bench.stream(), Reader()
        for _ in range(3):
            reader.take(await next_chunk(stream))
        assert reader.types == ["connected"]
        part.write("b" * 5_000)
        await bench.events(session, 60)
        await read_until(reader, stream, "caught_up")
        await read_until(reader, stream, "caught_up")
        assert reader.types == ["connected", "message", "caught_up", *["session"] * 60, "message", "caught_up"]
        assert list(reader.texts.values()) == [{0: part.text}]

    async def test_readers_that_stall_in_the_middle_hold_a_chunk_each(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also when each of them came at another moment."""
        monkeypatch.setattr(stream_module, "CHUNK_BYTES", 20_000)
        turn_writer = await bench.start(await bench.session())
        message = await bench.message(turn_writer)
        await message.add(Text("x" * 2_000_000))
        part = message.open(Text(""))
        for _ in range(2_000):
            part.write("y" * 1_000)
        request = QuestionRequest(
            id="", session_id="", run_id="", tool_call_id="c", questions=[{"question": "z" * 20_000}]
        )
        await bench.store.ask(turn_writer.claim, "question", message.id, request)
        streams = [bench.stream() for _ in range(20)]
        for stream in streams:
            await next_chunk(stream)
        tracemalloc.start()
        try:
            held: list[bytes] = []
            for stream in streams:
                held.append(await next_chunk(stream))
                part.write("more ")
            held_bytes = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        # Their chunks, and once for all of them the text that had to move to grow.
        assert held_bytes < len(held) * 40_000 + 3_000_000, f"{held_bytes / len(held):.0f} bytes for each reader"
        reader = Reader()
        reader.take(held[0])
        await read_until(reader, streams[0], "caught_up")
        assert reader.texts[message.id] == {0: "x" * 2_000_000, 1: "y" * 2_000_000}


def desk_message(reader: Reader) -> str:
    return next(e.payload.id for e in reader.log if isinstance(e.payload, MessageOf) and e.payload.role == "assistant")

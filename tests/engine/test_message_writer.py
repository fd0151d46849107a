"""Writing messages: what is shown is exact, what was shown is not lost, and parts are stored in their order."""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.engine.message_writer import PartWriter, TurnWriter
from kedge.feed.feed import Feed
from kedge.feed.open_items import split_chunks
from kedge.protocol.errors import StoreUnavailable
from kedge.protocol.events import encode, frame
from kedge.protocol.messages import (
    Delta,
    Finish,
    Image,
    MessageOf,
    Part,
    RawMessage,
    Reasoning,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
)
from kedge.protocol.runs import Usage
from kedge.protocol.sessions import Workspace
from kedge.store.errors import ClaimLost
from kedge.store.port import Claim, Committed, Outcome, Store, WorkspaceState
from tests.support.bench import Bench, next_chunk
from tests.support.reader import LIMIT_S, Reader, split_frames

FULL_DISK = frozenset({"drafts", "parts"})


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    async with Bench(tmp_path) as bench:
        yield bench


class TestSurrogates:
    """P12: a half surrogate pair is joined, or becomes U+FFFD, before it is counted."""

    # High and low halves, ordinary characters, and those that could be taken for a mark of byte order.
    pieces = st.lists(st.text(st.sampled_from("ab\ufeff\ufffeé😀\ud83d\ud800\udbff\ude00\udc00\udfff"), max_size=4))

    @given(pieces)
    def test_any_split_gives_the_same_text(self, pieces: list[str]) -> None:
        deltas, snapshot, text = asyncio.run(written(pieces))
        assert text == whole("".join(pieces))
        assert "".join(delta.text for delta in deltas) == text
        for delta, shown in zip(deltas, running_totals(deltas), strict=True):
            assert delta.offset == len(shown)
            delta.text.encode()  # never half a character
        assert snapshot == text

    @pytest.mark.parametrize(
        ("pieces", "text"),
        [
            (["\ud83d", "\ude00"], "😀"),
            (["\ud83d", "", "\ude00"], "😀"),
            (["a\ud83d", "\ude00b"], "a😀b"),
            (["\ud83d", "a"], "\ufffda"),
            (["\ud83d", "\ud83d", "\ude00"], "\ufffd😀"),
            (["\ude00"], "\ufffd"),
            (["a", "\ud83d"], "a\ufffd"),
        ],
    )
    def test_halves_meet_or_are_replaced(self, pieces: list[str], text: str) -> None:
        assert asyncio.run(written(pieces))[2] == text

    def test_the_reference_knows_the_standard_answer(self) -> None:
        assert whole("x\ud83d\ude00\ud83dy\ude00") == "x😀\ufffdy\ufffd"


class TestDrafts:
    async def test_what_was_shown_survives_an_end_in_the_middle(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        message.open(Text("")).write("half a sen")
        await turn_writer.close()
        await bench.store.finish(turn_writer.claim, Outcome("cancelled"))
        assert await bench.parts(session) == [Text("half a sen"), Finish("canceled")]

    async def test_text_in_flight_reaches_the_store_by_itself(self, bench: Bench) -> None:
        turn_writer = await bench.start(await bench.session())
        part = (await bench.message(turn_writer)).open(Text(""))
        for word in ("one ", "two ", "three"):
            part.write(word)
        async with asyncio.timeout(LIMIT_S):
            await bench.store.was_flushed.wait()
        assert bench.store.flushed == 1, "pieces of a part are one row"

    async def test_a_draft_that_was_refused_is_kept_and_stays_in_order(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        part = (await bench.message(turn_writer)).open(Text(""))
        part.write("one ")
        bench.store.failing = FULL_DISK
        with pytest.raises(StoreUnavailable):
            await turn_writer.save_drafts()
        part.write("two ")
        with pytest.raises(StoreUnavailable):
            await turn_writer.save_drafts()
        bench.store.failing = frozenset()
        part.write("three")
        await turn_writer.close()
        await bench.store.finish(turn_writer.claim, Outcome("cancelled"))
        assert await bench.parts(session) == [Text("one two three"), Finish("canceled")]

    async def test_a_flush_that_fails_late_is_not_overtaken_by_the_next(self, bench: Bench) -> None:
        """On a nearly full disk a large draft may be refused after a small one behind it was taken."""
        session = await bench.session()
        turn_writer = await bench.start(session)
        part = (await bench.message(turn_writer)).open(Text(""))
        bench.store.holding = held = asyncio.Event()
        part.write("one ")
        first = asyncio.create_task(turn_writer.save_drafts())
        await asyncio.sleep(0)
        part.write("two")
        second = asyncio.create_task(turn_writer.save_drafts())
        await asyncio.sleep(0)
        held.set()
        async with asyncio.timeout(LIMIT_S):
            assert isinstance((await asyncio.gather(first, second, return_exceptions=True))[0], StoreUnavailable)
        await turn_writer.close()
        await bench.store.finish(turn_writer.claim, Outcome("cancelled"))
        assert await bench.parts(session) == [Text("one two"), Finish("canceled")]

    async def test_a_part_that_could_not_be_stored_is_still_a_draft(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        part = message.open(Text(""))
        part.write("shown to everyone")
        bench.store.failing = FULL_DISK
        finishing = asyncio.create_task(part.finish())
        await bench.store.refused.wait()
        finishing.cancel()  # the turn is stopped while it waits for the disk
        bench.store.failing = frozenset()
        await turn_writer.close()
        await bench.store.finish(turn_writer.claim, Outcome("failed", "no", "x"))
        assert await bench.parts(session) == [Text("shown to everyone"), Finish("error", "no")]

    async def test_a_part_that_was_stored_leaves_no_draft(self, bench: Bench) -> None:
        turn_writer = await bench.start(await bench.session())
        message = await bench.message(turn_writer)
        part = message.open(Text(""))
        part.write("whole")
        await part.finish()
        await turn_writer.save_drafts()
        assert bench.store.flushed == 0

    async def test_a_turn_whose_run_ended_elsewhere_saves_nothing_and_says_nothing(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        (await bench.message(turn_writer)).open(Text("")).write("too late")
        await bench.store.finish(turn_writer.claim, Outcome("cancelled"))
        await turn_writer.close()
        assert bench.store.flushed == 0
        assert await bench.parts(session) == [Finish("canceled")]

    async def test_a_turn_that_lost_its_right_shows_nothing(self, bench: Bench) -> None:
        turn_writer = await bench.start(await bench.session())
        message = await bench.message(turn_writer)
        part = message.open(Text(""))
        end = bench.feed.ring.end
        turn_writer.is_revoked = True
        for forbidden in (lambda: part.write("x"), lambda: message.open(Text(""))):
            with pytest.raises(ClaimLost):
                forbidden()
        for late in (part.finish(), message.finish("end_turn"), message.add(Text("x"))):
            with pytest.raises(ClaimLost):
                await late
        assert bench.feed.ring.end == end


class TestParts:
    async def test_a_part_is_stored_when_it_and_all_before_it_are_finished(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        thought, call = message.open(Reasoning("")), message.open(ToolCall("c1", "grep", "", False))
        call.write('{"a"')
        thought.write("hm")
        call.write(":1}")
        await call.finish()
        assert await bench.parts(session) == []
        await thought.finish(Reasoning("hm", "signed"))
        assert await bench.parts(session) == [Reasoning("hm", "signed"), ToolCall("c1", "grep", '{"a":1}', True)]
        await message.finish("tool_use")
        assert (await bench.parts(session))[2:] == [Finish("tool_use")]

    async def test_the_last_parts_and_the_finish_are_one_event(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        message.open(Text("")).write("a")
        message.open(Text("")).write("b")
        head = bench.feed.ring.head
        await message.finish("end_turn", usage=Usage(output_tokens=3))
        assert bench.feed.ring.head == head + 1
        used = Usage(output_tokens=3)
        assert await bench.parts(session) == [Text("a"), Text("b"), Finish("end_turn", usage=used)]
        assert (await bench.store.finish(turn_writer.claim, Outcome("completed"))).state == "completed"
        end = await bench.store.run_end(bench.workspace_id, turn_writer.claim.run_id)
        assert end is not None
        assert (end.text, end.usage) == ("ab", Usage(output_tokens=3))

    @pytest.mark.parametrize("seed", range(8))
    async def test_parts_written_across_each_other_end_up_in_their_places(self, bench: Bench, seed: int) -> None:
        rng = random.Random(seed)
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        stream = bench.stream(after=0)
        reader = Reader()
        parts = [message.open(Text("")) for _ in range(5)]
        texts = [""] * 5
        open_parts = list(range(5))
        tasks: list[asyncio.Task[None]] = []
        while open_parts:
            index = rng.choice(open_parts)
            if rng.random() < 0.3:
                open_parts.remove(index)
                tasks.append(asyncio.create_task(parts[index].finish()))
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
            else:
                word = rng.choice(["ab", "😀", "é "])
                parts[index].write(word)
                texts[index] += word
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*tasks)
        await message.finish("end_turn")
        assert await bench.parts(session) == [*map(Text, texts), Finish("end_turn")]
        while reader.cursor < bench.feed.ring.head:
            reader.take(await next_chunk(stream))  # it finds text that was taken back, or is missing
        grown = [e.payload.parts for e in reader.log if isinstance(e.payload, MessageOf) and e.payload.id == message.id]
        assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(grown))

    async def test_a_part_behind_one_that_could_not_be_stored_waits_for_it(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        one, two = message.open(Text("")), message.open(Text(""))
        one.write("one")
        two.write("two")
        bench.store.failing = frozenset({"parts"})
        finishing = asyncio.create_task(one.finish())
        await bench.store.refused.wait()
        behind = asyncio.create_task(two.finish())
        bench.store.failing = frozenset()
        await asyncio.gather(finishing, behind)
        assert await bench.parts(session) == [Text("one"), Text("two")]
        await message.finish("end_turn")
        assert await bench.parts(session) == [Text("one"), Text("two"), Finish("end_turn")]

    async def test_a_finish_waits_for_a_disk_that_is_full(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        message.open(Text("")).write("a")
        bench.store.failing = FULL_DISK
        finishing = asyncio.create_task(message.finish("end_turn"))
        await bench.store.refused.wait()
        bench.store.failing = frozenset()
        await finishing
        assert await bench.parts(session) == [Text("a"), Finish("end_turn")]

    @pytest.mark.parametrize(
        "part",
        [
            Text("t"),
            Reasoning("r", "sig"),
            ToolCall("c", "n", "{}", True),
            ShellCommand("ls", "out", 0),
            Image("image/png", b"\x89"),
        ],
        ids=lambda part: type(part).__name__,
    )
    async def test_a_part_may_come_whole(self, bench: Bench, part: Part) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        waiting = message.open(Text(""))
        waiting.write("before")
        whole_part = asyncio.create_task(message.add(part))
        await asyncio.sleep(0)
        message.open(Text("")).write("after")
        stream = bench.stream()
        await next_chunk(stream)
        snapshot = split_frames(await next_chunk(stream))[0].event.payload
        assert isinstance(snapshot, MessageOf)
        shown: list[Part] = list(snapshot.parts)
        assert (shown[0], type(shown[1]), shown[2]) == (Text("before"), type(part), Text("after"))
        await waiting.finish()
        await whole_part
        await message.finish("end_turn")
        assert await bench.parts(session) == [Text("before"), part, Text("after"), Finish("end_turn")]

    async def test_a_tool_shows_its_output_and_then_its_result(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        await message.add(ToolCall("c1", "make", "{}", True))
        await message.finish("tool_use")
        tool = await bench.tool(turn_writer, message.id, "c1", "make")
        stream = bench.stream()
        reader = Reader()
        reader.take(await next_chunk(stream))
        reader.take(await next_chunk(stream))
        tool.write("compil")
        tool.write("ing")
        reader.take(await next_chunk(stream))
        assert reader.texts[tool.id] == {0: "compiling"}
        await tool.finish("done", is_error=True, metadata={"exit": 2})
        assert await bench.parts(session) == [ToolResult("c1", "make", "done", True, {"exit": 2})]

    async def test_a_result_and_its_images_are_one_event(self, bench: Bench) -> None:
        session = await bench.session()
        turn_writer = await bench.start(session)
        message = await bench.message(turn_writer)
        await message.add(ToolCall("c1", "view", "{}", True))
        await message.finish("tool_use")
        tool = await bench.tool(turn_writer, message.id, "c1", "view")
        head = bench.feed.ring.head
        await tool.finish("an image", images=[Image("image/png", b"a"), Image("image/png", b"b")])
        assert bench.feed.ring.head == head + 1
        result = ToolResult("c1", "view", "an image", False)
        assert await bench.parts(session) == [result, Image("image/png", b"a"), Image("image/png", b"b")]


# A part written without a store, as fast as hypothesis wants it.

CLAIM = Claim("w", "s", "r", 1)
MESSAGE = RawMessage(id="m", session_id="s", run_id="r", role="assistant", parts=[], created_at=0.0)


async def written(pieces: list[str]) -> tuple[list[Delta], str, str]:
    """The deltas of these pieces, what a late comer would see at the end, and the part's text."""
    feed = Feed(WorkspaceState(Workspace("w", "/w", 0.0), "log", 0, []))
    opening = frame("message", "created", encode(MESSAGE), 1)
    feed.publish(Committed("w", 1, "message", "created", "s", opening, MESSAGE, is_open=True))
    turn_writer = TurnWriter(cast("Store", None), feed, CLAIM)  # nothing is saved in so short a time
    part = PartWriter(turn_writer, MESSAGE, 0, Text(""), lambda: None)
    for slice_of in pieces:
        part.write(slice_of)
    final = part.complete()
    assert turn_writer._timer is not None
    turn_writer._timer.cancel()
    assert isinstance(final, Text)
    assert final.text == part.text
    frames = split_frames(feed.ring.take(0, 1 << 20)[0])[1:]
    (snapshot_frame,) = split_chunks(feed.open_items.frames(None), 1 << 20)
    snapshot = split_frames(snapshot_frame)[0].event.payload
    assert isinstance(snapshot, MessageOf)
    (shown,) = snapshot.parts
    assert isinstance(shown, Text)
    return [f.event.payload for f in frames if isinstance(f.event.payload, Delta)], shown.text, part.text


def running_totals(deltas: list[Delta]) -> list[str]:
    """What was shown before each delta."""
    return ["".join(delta.text for delta in deltas[:i]) for i in range(len(deltas))]


def whole(text: str) -> str:
    """The same, thought through slowly: pairs become one character, what is alone becomes U+FFFD."""
    result = ""
    while text:
        first, second = text[0], text[1:2]
        if "\ud800" <= first <= "\udbff" and "\udc00" <= second <= "\udfff":
            result += chr(0x10000 + ((ord(first) - 0xD800) << 10) + (ord(second) - 0xDC00))
            text = text[2:]
            continue
        result += "\ufffd" if "\ud800" <= first <= "\udfff" else first
        text = text[1:]
    return result

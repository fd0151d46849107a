"""The feeds of all workspaces share one budget, and every story stays whole."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from kedge.protocol.requests import QuestionRequest
from kedge.protocol.sessions import SessionChange
from kedge.store.port import Committed
from tests.support.bench import Bench, next_chunk, read_to_end, read_until
from tests.support.reader import Reader

RING = 4_000
TOGETHER = 6_000


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    async with Bench(tmp_path, ring_bytes=RING, all_bytes=TOGETHER) as bench:
        yield bench


async def make_noise(bench: Bench, workspace_id: str, count: int) -> None:
    session_id = await bench.session(workspace_id=workspace_id)
    for _ in range(count):
        await bench.store.change_session(workspace_id, session_id, SessionChange(title="t"))


async def test_the_quietest_give_up_their_memory_first(bench: Bench) -> None:
    one, two, three = [bench.workspace_id, await bench.workspace("/two"), await bench.workspace("/three")]
    for workspace_id in (one, two, one, three):
        await make_noise(bench, workspace_id, 10)
    sizes = {name: bench.feed_of(name).ring.size_bytes for name in (one, two, three)}
    assert sum(sizes.values()) <= TOGETHER
    assert sizes[two] == 0, "it was quiet for longest"
    assert sizes[one] > 0
    assert sizes[three] > 0


async def test_who_gave_up_its_memory_loses_nothing_of_its_story(bench: Bench) -> None:
    other = await bench.workspace("/two")
    stream, reader = bench.stream(after=0), Reader()
    await make_noise(bench, bench.workspace_id, 10)
    for _ in range(3):
        await make_noise(bench, other, 20)
    assert bench.feed.ring.size_bytes == 0
    await make_noise(bench, bench.workspace_id, 5)
    await read_until(reader, stream, "caught_up")
    assert [event.seq for event in reader.log] == list(range(1, 18))


async def test_workspaces_do_not_hear_each_other(bench: Bench) -> None:
    other = await bench.workspace("/two")
    stream, reader = bench.stream(after=0), Reader()
    await read_until(reader, stream, "caught_up")
    await make_noise(bench, other, 3)
    await make_noise(bench, bench.workspace_id, 1)
    bench.feeds.close()
    await read_to_end(reader, stream)
    assert [event.seq for event in reader.log] == [1, 2]


async def test_opening_a_workspace_again_changes_nothing(bench: Bench) -> None:
    feed = bench.feed
    assert await bench.workspace("/one") == bench.workspace_id
    assert bench.feed is feed


async def test_a_removed_workspace_ends_its_streams(bench: Bench) -> None:
    stream, reader = bench.stream(after=0), Reader()
    await read_until(reader, stream, "caught_up")
    bench.feeds.remove(bench.workspace_id)
    bench.feeds.remove("never-there")
    await read_to_end(reader, stream)
    assert bench.feeds.all() == []


@pytest.mark.parametrize("knows", [True, False], ids=["the feed knows", "only the store knows yet"])
async def test_a_removed_workspace_ends_the_streams_of_those_that_still_read_its_log(bench: Bench, knows: bool) -> None:
    """Quietly: a stream that breaks off is a fault, and a `caught_up` would be a lie."""
    await make_noise(bench, bench.workspace_id, 50)
    stream, reader = bench.stream(after=0), Reader()
    reader.take(await next_chunk(stream))
    feed = bench.feed
    await bench.store.delete_workspace(bench.workspace_id)
    if knows:
        bench.feeds.remove(bench.workspace_id)
    await read_to_end(reader, stream)
    assert reader.types == ["connected"]
    assert not feed.cursors


async def test_a_feed_that_is_opened_later_knows_what_the_store_knows(bench: Bench) -> None:
    """After a restart: the head, and the requests that are still pending (P14)."""
    turn_writer = await bench.start(await bench.session())
    message = await bench.message(turn_writer)
    asked = QuestionRequest(id="", session_id="", run_id="", tool_call_id="c", questions=[{"question": "why?"}])
    await bench.store.ask(turn_writer.claim, "question", message.id, asked)
    (state,) = await bench.store.workspaces()
    bench.feeds.remove(bench.workspace_id)
    bench.feeds.open(state)
    stream, reader = bench.stream(after=0), Reader()
    await read_until(reader, stream, "caught_up")
    assert [event.seq for event in reader.log] == list(range(1, 7))
    assert reader.types[-3:] == ["question_request", "question_request", "caught_up"], (
        "in the log, and once more as open"
    )


async def test_what_is_published_of_a_workspace_that_nobody_opened_does_not_keep_back_the_rest(bench: Bench) -> None:
    unknown = Committed("nobody-opened-this", 1, "session", "created", "s", b"data: {}\n\n")

    def publish_with_others(events: Sequence[Committed]) -> None:
        bench.feeds.publish([unknown, *events, unknown])

    bench.store.on_commit = publish_with_others
    stream, reader = bench.stream(after=0), Reader()
    await make_noise(bench, bench.workspace_id, 3)
    await read_until(reader, stream, "caught_up")
    assert [event.seq for event in reader.log] == [1, 2, 3, 4]


@pytest.mark.parametrize("is_pushed_before", [True, False], ids=["a full ring", "an empty ring"])
async def test_a_gap_in_what_is_published_is_an_error_that_readers_do_not_notice(
    bench: Bench, caplog: pytest.LogCaptureFixture, is_pushed_before: bool
) -> None:
    """The ring cannot tell what it was not told; the store can."""
    session_id = await bench.session()
    streams, readers = (
        [bench.stream(after=0), bench.stream(after=0, session_id=session_id)],
        [Reader(), Reader()],
    )
    for reader, stream in zip(readers, streams, strict=True):
        await read_until(reader, stream, "caught_up")
    if not is_pushed_before:
        bench.feed.ring.clear()
    publish, bench.store.on_commit = bench.store.on_commit, [].append
    await bench.events(session_id, 3)
    bench.store.on_commit = publish
    await bench.events(session_id, 2)
    bench.feeds.close()
    for reader, stream in zip(readers, streams, strict=True):
        await read_to_end(reader, stream)
        assert [event.seq for event in reader.log] == [1, 2, 3, 4, 5, 6]
    (record,) = caplog.records
    assert record.levelname == "ERROR"


async def test_an_event_that_comes_again_is_not_shown_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    publish, published = bench.store.on_commit, list[Committed]()

    def publish_twice(events: Sequence[Committed]) -> None:
        published.extend(events)
        publish(published)

    bench.store.on_commit = publish_twice
    stream, reader = bench.stream(after=0), Reader()
    await read_until(reader, stream, "caught_up")
    await make_noise(bench, bench.workspace_id, 2)
    bench.feeds.close()
    await read_to_end(reader, stream)
    assert [event.seq for event in reader.log] == [1, 2, 3]
    assert {record.levelname for record in caplog.records} == {"ERROR"}

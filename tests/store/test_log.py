"""The log read back is byte for byte what was shown, in pages that are bounded by events and by bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.protocol.errors import NotFound
from kedge.protocol.runs import Attachment
from kedge.protocol.sessions import SessionChange
from kedge.store.port import LogEvent
from kedge.store.sqlite import log as log_module
from kedge.store.sqlite.store import SqliteStore
from tests.store.stores import Place, opened
from tests.support.harness import Kedge
from tests.support.stores import Sqlite


async def tell_a_rich_story(kedge: Kedge) -> list[str]:
    """Every type of event and every way to end; returns the sessions."""
    one, two = await kedge.session("one"), await kedge.session("two")
    await kedge.send(one, "say hällo 🌍; tool echo out put; wait gate; say last", "host")
    await kedge.reached("gate")
    await kedge.send(one, "say joined", "joined", on_busy="steer")
    await kedge.send(one, "say queued", "queued", attachments=(Attachment("a.txt", "text/plain", b"attached"),))
    await kedge.send(one, "say dropped", "dropped")
    await kedge.engine.store.drop_queued(kedge.workspace_id, one, "dropped")
    await kedge.send(two, "ask deploy done; question which; delegate say sub; say finished", "asks")
    for _ in range(2):
        request = await kedge.asked()
        if request in await kedge.permissions():
            await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", by="test")
        else:
            await kedge.engine.answer_question(kedge.workspace_id, request.id, ["this"], by="test")
    kedge.gates.open("gate")
    await kedge.ends("host", "joined", "queued", "dropped", "asks")
    await kedge.send(two, "retry half; fail it broke", "fails")
    await kedge.send(two, "say never", "never")
    await kedge.cancel_run("never")
    await kedge.end("fails")
    await kedge.send(two, "tool slow words then hang", "hangs")
    await kedge.seen(lambda event: getattr(event.payload, "text", "") == "hang ")
    await kedge.engine.change_session(kedge.workspace_id, two, SessionChange(title="renamed"))
    await kedge.store.append_config_changed(kedge.workspace_id)
    await kedge.crash_and_start()
    await kedge.send(two, "wait forever", "cancelled")
    await kedge.ends("hangs")
    await kedge.reached("forever")
    await kedge.cancel(two)
    await kedge.ends("cancelled")
    await kedge.engine.delete_session(kedge.workspace_id, two)
    return [one, two]


async def read(kedge: Kedge, limit: int, session_id: str | None = None) -> list[LogEvent]:
    events: list[LogEvent] = []
    after = 0
    while True:
        page = await kedge.store.read_log(kedge.workspace_id, after, limit, session_id)
        assert len(page.events) <= limit
        assert page.upto > after or page.upto == page.head
        events += page.events
        if page.upto == page.head:
            return events
        after = page.upto


async def test_a_rich_story_is_read_back_byte_for_byte(tmp_path: Path) -> None:
    async with Kedge(Sqlite(), tmp_path) as kedge:
        sessions = await tell_a_rich_story(kedge)
        head = (await kedge.store.read_log(kedge.workspace_id, 0, 1)).head
        await kedge.seen(lambda event: event.seq == head)
        shown = list(kedge.watcher.log_frames)
        types = {event.type for event in kedge.watcher.log}
        assert types >= {"session", "run", "message", "run_complete", "agent_event"}
        assert types >= {"permission_request", "permission_notification", "question_request", "question_notification"}
        for limit in (1, 7, 500):
            assert [event.frame for event in await read(kedge, limit)] == shown
        for session_id in sessions:
            ours = [event for event in await read(kedge, 500) if event.session_id == session_id]
            assert await read(kedge, 3, session_id) == ours
        await kedge.restart()
        assert [event.frame for event in await read(kedge, 100)][: len(shown)] == shown


async def test_a_page_holds_at_most_so_many_bytes_or_one_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "PAGE_BYTES", 20_000)
    async with opened(tmp_path) as place:
        for number in range(30):
            await place.accept(f"run-{number}", "x" * (50_000 if number == 13 else 3_000))
        pages = await place.pages(500)
        assert [event.seq for page in pages for event in page.events] == list(range(1, 32))
        sizes = [sum(len(event.frame) for event in page.events) for page in pages]
        alone = [size for size, page in zip(sizes, pages, strict=True) if len(page.events) == 1]
        assert max(alone) > 50_000
        assert all(size < 25_000 for size, page in zip(sizes, pages, strict=True) if len(page.events) > 1)
        assert len(pages) < 10


async def test_the_place_of_a_page_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        for number in range(9):
            await place.accept(f"run-{number}")
        first = await place.store.read_log(place.workspace_id, 0, 4)
        assert (len(first.events), first.upto, first.head, first.floor) == (4, 4, 10, 0)
        exact = await place.store.read_log(place.workspace_id, 4, 6)
        assert (len(exact.events), exact.upto) == (6, 10)
        beyond = await place.store.read_log(place.workspace_id, 10, 4)
        assert (beyond.events, beyond.upto) == ([], 10)
        ahead = await place.store.read_log(place.workspace_id, 99, 4)
        assert (ahead.events, ahead.upto, ahead.head) == ([], 99, 10)
        nothing = await place.store.read_log(place.workspace_id, 3, 0)
        assert (nothing.events, nothing.upto) == ([], 3)


async def test_a_filtered_page_is_complete_up_to_the_head(tmp_path: Path) -> None:
    """A session that is quiet costs its reader one page, however much others wrote."""
    async with opened(tmp_path) as place:
        quiet = place.session_id
        busy = (await place.store.create_session(place.workspace_id, "busy")).id
        for number in range(50):
            await place._replace(session_id=busy).accept(f"run-{number}")
        page = await place.store.read_log(place.workspace_id, 0, 10, quiet)
        assert ([event.seq for event in page.events], page.upto) == ([1], 52)


async def test_a_page_is_one_snapshot_while_others_write(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        sessions = [(await place.store.create_session(place.workspace_id, "busy")).id for _ in range(4)]

        async def write(session_id: str) -> None:
            for number in range(40):
                await place._replace(session_id=session_id).accept(f"{session_id}-{number}")

        writing = asyncio.gather(*(write(session_id) for session_id in sessions))
        while not writing.done():
            page = await place.store.read_log(place.workspace_id, 0, 500)
            assert [event.seq for event in page.events] == list(range(1, page.head + 1))
        await writing


async def test_history_is_paged_in_the_order_of_creation(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        ids = await write_messages(place, 25)
        found: list[str] = []
        after = None
        while page := (await place.store.messages(place.workspace_id, place.session_id, after, 10)).messages:
            found += [message.id for message in page]
            after = page[-1].id
        assert found[1:] == ids  # the first is the prompt


async def write_messages(place: Place, count: int) -> list[str]:
    started = await place.start("run-1")
    store: SqliteStore = place.store
    return [(await store.create_message(started.claim, "assistant")).id for _ in range(count)]


async def test_a_changed_configuration_is_told_in_the_story_of_its_workspace_and_of_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        await place.store.append_config_changed(place.workspace_id)
        (*_, told) = await place.log()
        assert told.session_id == ""
        assert f'"payload":{{"workspace_id":"{place.workspace_id}"}}'.encode() in told.frame
        with pytest.raises(NotFound):
            await place.store.append_config_changed("nowhere")

"""Retention removes a prefix of the log, by age and size; what is left has no gap, and rows do not depend on it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge import failpoints
from kedge.protocol.errors import NotFound
from kedge.protocol.messages import Finish, Text
from kedge.store.port import Outcome, Retention
from kedge.store.sqlite import retention, sessions
from kedge.store.sqlite.store import SqliteStore
from kedge.store.sqlite.writer import Done, Job, Writer
from tests.store.stores import Place, opened, place_in

DAY_S = 86_400.0
KEEP_ALL = Retention()
KEEP_NONE = Retention(max_bytes=0)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def place(tmp_path: Path, clock: Clock) -> AsyncGenerator[Place]:
    async with opened(tmp_path, now=clock) as place:
        yield place


async def talk(place: Place, run_id: str, text: str = "an answer", prompt: str = "hello") -> None:
    """A run from its acceptance to its end, with what its model is told beside the conversation."""
    started = await place.start(run_id, prompt)
    await place.store.keep_surroundings(started.claim, text.encode())
    message = await place.store.create_message(started.claim, "assistant")
    await place.store.finish_parts(started.claim, message.id, 0, [Text(text), Finish("end_turn")])
    await place.store.set_note(started.claim, message.id, text.encode())
    await place.store.finish(started.claim, Outcome("completed"))


async def seqs(place: Place, after: int = 0) -> list[int]:
    return [event.seq for page in await place.pages(500, after) for event in page.events]


async def floor_and_head(place: Place) -> tuple[int, int]:
    page = await place.store.read_log(place.workspace_id, 0, 1)
    return page.floor, page.head


async def test_what_is_too_old_goes_and_the_rest_is_contiguous(place: Place, clock: Clock) -> None:
    for number in range(10):  # one a day; event 1 is the session's
        await place.accept(f"run-{number}")
        clock.now += DAY_S
    removed = await place.store.retain(Retention(max_age_s=4.5 * DAY_S))
    assert removed == 7
    assert await floor_and_head(place) == (7, 11)
    assert await seqs(place, after=7) == [8, 9, 10, 11]
    assert await seqs(place) == [8, 9, 10, 11]
    assert await place.store.retain(Retention(max_age_s=4.5 * DAY_S)) == 0


async def test_what_is_too_much_goes_and_the_rest_is_contiguous(place: Place) -> None:
    for number in range(50):
        await place.accept(f"run-{number}")
    await place.store.retain(Retention(max_bytes=2_500))
    floor, head = await floor_and_head(place)
    assert head == 51
    assert 20 < floor < 45
    assert await seqs(place) == list(range(floor + 1, head + 1))
    size = sum(100 + len(row[0] or b"") for row in place.store._db.execute("SELECT body FROM events"))
    assert size <= 2_500


async def test_a_clock_that_was_set_back_makes_no_hole(place: Place, clock: Clock) -> None:
    for number in range(6):
        clock.now += -10 * DAY_S if number == 3 else DAY_S
        await place.accept(f"run-{number}")
    clock.now += 9 * DAY_S
    await place.store.retain(Retention(max_age_s=8.5 * DAY_S))
    floor, head = await floor_and_head(place)
    assert await seqs(place) == list(range(floor + 1, head + 1))


async def test_more_than_a_bite_is_removed_in_bites(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH_EVENTS", 7)
    for number in range(50):
        await place.accept(f"run-{number}")
    assert await place.store.retain(KEEP_NONE) == 51
    assert await floor_and_head(place) == (51, 51)


async def test_an_empty_log_goes_on_counting(place: Place) -> None:
    await talk(place, "run-1")
    await place.store.retain(KEEP_NONE)
    floor, head = await floor_and_head(place)
    assert floor == head
    await place.accept("run-2")
    assert await seqs(place) == [head + 1]


async def test_each_workspace_keeps_its_own(place: Place, clock: Clock) -> None:
    await talk(place, "run-1")
    clock.now += 100 * DAY_S
    other = await place.store.open_workspace("/elsewhere")
    session = await place.store.create_session(other.workspace.id, "young")
    await place.store.retain(KEEP_ALL)
    assert await seqs(place) == []
    assert await seqs(place._replace(workspace_id=other.workspace.id, session_id=session.id)) == [1]


async def test_runs_messages_and_ends_do_not_depend_on_the_log(place: Place) -> None:
    await talk(place, "run-1", "the answer")
    end = await place.store.run_end(place.workspace_id, "run-1")
    messages = await place.store.messages(place.workspace_id, place.session_id)
    await place.store.retain(KEEP_NONE)
    assert await place.store.run_end(place.workspace_id, "run-1") == end
    assert await place.store.messages(place.workspace_id, place.session_id) == messages
    assert [run.state for run in await place.store.runs(place.workspace_id)] == ["completed"]
    history = await place.store.history(place.workspace_id, place.session_id)
    assert [message.role for message in history] == ["user", "assistant"]


async def test_the_content_of_a_deleted_session_goes_when_the_log_has_passed_its_deletion(place: Place) -> None:
    await talk(place, "run-1", "a secret answer", "a secret question")
    await place.accept("run-2", "a secret that never ran")
    log = await place.log()
    await delete(place)
    await place.store.create_session(place.workspace_id, "newer")
    head = (await floor_and_head(place))[1]

    keep_deletion = Retention(max_bytes=2 * 300)  # about the last two events
    await place.store.retain(keep_deletion)
    floor, _ = await floor_and_head(place)
    assert len(log) <= floor < head - 1
    assert words_left(place.store._db, "secret"), "the deletion can still be replayed, so its content is there"
    assert [event.seq for event in await place.log()] == list(range(floor + 1, head + 1))

    await place.store.retain(KEEP_NONE)
    assert words_left(place.store._db, "secret") == []


async def test_run_ids_of_a_deleted_session_are_remembered_for_90_days(place: Place, clock: Clock) -> None:
    await talk(place, "run-1")
    seq = (await place.store.run(place.workspace_id, "run-1")).seq
    await delete(place)
    clock.now += 89 * DAY_S
    await place.store.retain(KEEP_ALL)
    assert await seqs(place) == []
    assert (await place.store.run(place.workspace_id, "run-1")).seq == seq
    clock.now += 2 * DAY_S
    await place.store.retain(KEEP_ALL)
    with pytest.raises(NotFound):
        await place.store.run(place.workspace_id, "run-1")


async def test_a_session_that_is_not_deleted_keeps_its_content_for_ever(place: Place, clock: Clock) -> None:
    await talk(place, "run-1", "an answer to keep")
    clock.now += 10_000 * DAY_S
    await place.store.retain(KEEP_NONE)
    assert set(words_left(place.store._db, "an answer to keep")) == {"messages", "parts", "surroundings"}


@pytest.fixture
def small_bites(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each transaction changed, when a batch is small."""
    monkeypatch.setattr(retention, "BATCH_EVENTS", 7)
    monkeypatch.setattr(retention, "BATCH_ROWS", 3)
    changes: list[int] = []
    whole = Writer._savepoint

    def counted(writer: Writer, job: Job) -> Done:
        before = writer._db.total_changes
        done = whole(writer, job)
        changes.append(writer._db.total_changes - before)
        return done

    monkeypatch.setattr(Writer, "_savepoint", counted)
    return changes


async def test_a_large_deleted_session_is_purged_and_forgotten_in_bites(
    place: Place, clock: Clock, small_bites: list[int]
) -> None:
    for number in range(20):
        await talk(place, f"run-{number}", "a secret answer", "a secret question")
    await delete(place)
    small_bites.clear()
    await place.store.retain(KEEP_NONE)
    assert words_left(place.store._db, "secret") == []
    assert len(await place.store.runs(place.workspace_id)) == 20
    assert max(small_bites) < 25
    assert len(small_bites) > 20

    small_bites.clear()
    clock.now += 91 * DAY_S
    await place.store.retain(KEEP_ALL)
    assert await place.store.runs(place.workspace_id) == []
    assert max(small_bites) < 10


async def test_what_is_purged_is_not_purged_again(place: Place, small_bites: list[int]) -> None:
    for number in range(5):
        await talk(place, f"run-{number}")
    await delete(place)
    await place.store.retain(KEEP_NONE)
    small_bites.clear()
    await place.store.retain(KEEP_NONE)
    assert small_bites == [0]


async def test_a_large_workspace_is_deleted_in_bites(place: Place, small_bites: list[int]) -> None:
    for number in range(20):
        await talk(place, f"run-{number}", "a secret answer", "a secret question")
    await delete(place)
    small_bites.clear()
    await place.store.delete_workspace(place.workspace_id)
    assert max(small_bites) < 25
    assert rows_left(place.store._db) == {"meta", "migrations"}


async def test_a_deleted_workspace_is_gone_at_once_and_its_rows_after_a_crash_too(
    tmp_path: Path, small_bites: list[int]
) -> None:
    """Killed after the first transaction of the deletion: nobody sees the workspace, and the next server cleans up."""
    store = SqliteStore.open(tmp_path)
    place = await place_in(store)
    await talk(place, "run-1", "a secret answer")
    await store._writer.write("delete_workspace", sessions.delete_workspace, place.workspace_id)
    store.abandon()

    store = SqliteStore.open(tmp_path)
    try:
        assert await store.workspaces() == []
        assert await store.unfinished_deletes() == []
        for looking in (
            store.read_log(place.workspace_id, 0, 10),
            store.session(place.workspace_id, place.session_id),
            store.create_session(place.workspace_id, "late"),
            store.messages(place.workspace_id, place.session_id),
            store.delete_workspace(place.workspace_id),
        ):
            with pytest.raises(NotFound):
                await looking
        again = await store.open_workspace("/somewhere")
        assert again.workspace.id != place.workspace_id
        assert again.head == 0
        await store.retain(KEEP_ALL)
        assert rows_left(store._db) == {"meta", "migrations", "workspaces"}
        assert [state.workspace.id for state in await store.workspaces()] == [again.workspace.id]
    finally:
        await store.close()


async def test_a_workspace_is_deleted_also_if_the_disk_fails_before_its_rows_are_gone(place: Place) -> None:
    await talk(place, "run-1", "a secret answer")

    def fail() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    failpoints.arm("remove.begin", fail)
    try:
        await place.store.delete_workspace(place.workspace_id)
    finally:
        failpoints.disarm()
    assert await place.store.workspaces() == []
    assert words_left(place.store._db, "secret"), "there was something left to do"
    await place.store.retain(KEEP_ALL)
    assert rows_left(place.store._db) == {"meta", "migrations"}


async def delete(place: Place) -> None:
    await place.store.begin_delete_session(place.workspace_id, place.session_id)
    await place.store.end_delete_session(place.workspace_id, place.session_id)


def rows_left(db: sqlite3.Connection) -> set[str]:
    """The tables that are not empty."""
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
    return {table for table in tables if db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()}


def words_left(db: sqlite3.Connection, word: str) -> list[str]:
    """Where a word still is, in any column of any table."""
    found: list[str] = []
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for row in db.execute(f"SELECT * FROM {table}").fetchall():
            found += [table for value in tuple(row) if word in str(value)]
    return found

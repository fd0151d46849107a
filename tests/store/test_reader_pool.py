"""ReaderPool and checkpoints beside the writer: neither waits for the other, and the log in front stays small."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from kedge import failpoints
from kedge.protocol.errors import StoreUnavailable
from kedge.protocol.sessions import SessionChange
from kedge.store.port import Draft
from kedge.store.sqlite import database
from tests.store.stores import Place, opened

LIMIT_S = 30.0


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[Place]:
    async with opened(tmp_path) as place:
        yield place


async def test_a_reader_in_the_middle_of_its_work_delays_no_commit_and_sees_one_snapshot(place: Place) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def count_twice(db: sqlite3.Connection) -> tuple[int, int]:
        first = db.execute("SELECT count(*) FROM runs").fetchone()[0]
        begun.set()
        assert go_on.wait(LIMIT_S)
        return first, db.execute("SELECT count(*) FROM runs").fetchone()[0]

    await place.accept("run-0")
    reading = asyncio.create_task(place.store._readers.read(count_twice))
    assert await asyncio.to_thread(begun.wait, LIMIT_S)
    async with asyncio.timeout(LIMIT_S):
        for number in range(1, 20):
            await place.accept(f"run-{number}")
    assert len(await place.store.runs(place.workspace_id)) == 20, "another reader sees what is new"
    go_on.set()
    assert await reading == (1, 1)


async def test_a_transaction_in_the_middle_of_its_work_delays_no_reader(place: Place) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def stall() -> None:
        begun.set()
        assert go_on.wait(LIMIT_S)

    failpoints.arm("accept.done", stall)
    accepting = asyncio.create_task(place.accept("run-1"))
    assert await asyncio.to_thread(begun.wait, LIMIT_S)
    async with asyncio.timeout(LIMIT_S):
        assert await place.store.runs(place.workspace_id) == []
    go_on.set()
    await accepting
    assert len(await place.store.runs(place.workspace_id)) == 1


async def test_readers_cannot_write(place: Place) -> None:
    def write(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM runs")

    with pytest.raises(Exception, match="readonly"):
        await place.store._readers.read(write)


class Restarts:
    """How often SQLite began its log anew: it shrinks to its limit then, and never otherwise."""

    def __init__(self, wal: Path) -> None:
        self.count = 0
        self._wal = wal
        self._size = 0

    def look(self) -> None:
        size = self._wal.stat().st_size
        self.count += size < self._size
        self._size = size


@pytest.fixture
async def small_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Place]:
    """A store that moves its log after 256 KiB."""
    monkeypatch.setattr(database, "WAL_BYTES", 256 * 1024)
    async with opened(tmp_path) as place:
        yield place


async def test_under_a_steady_load_the_log_in_front_is_begun_anew_again_and_again(small_log: Place) -> None:
    """Writers that never pause: without a moment in which all is copied, the log would only grow."""
    restarts = Restarts(small_log.store._checkpoints._wal)
    sessions = [(await small_log.store.create_session(small_log.workspace_id, "busy")).id for _ in range(8)]

    async def write(session_id: str) -> None:
        while restarts.count < 3:
            await small_log.store.change_session(small_log.workspace_id, session_id, SessionChange(title="x" * 4000))
            restarts.look()

    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(write(session_id) for session_id in sessions))


async def test_text_in_flight_alone_has_the_log_in_front_begun_anew_too(small_log: Place) -> None:
    """Drafts tell no event; their commits count all the same."""
    restarts = Restarts(small_log.store._checkpoints._wal)
    started = await small_log.start("run-1")
    message = await small_log.store.create_message(started.claim, "assistant")
    async with asyncio.timeout(LIMIT_S):
        while restarts.count < 3:
            await small_log.store.append_drafts(started.claim, [Draft(message.id, 0, "text", "x" * 4000)])
            restarts.look()


async def test_a_checkpoint_in_the_middle_of_its_work_delays_no_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    move = place.store._checkpoints._move_bulk

    def stalled() -> None:
        begun.set()
        assert go_on.wait(LIMIT_S)
        move()

    monkeypatch.setattr(place.store._checkpoints, "_move_bulk", stalled)
    monkeypatch.setattr(database, "WAL_BYTES", 0)
    await place.accept("run-0")
    assert await asyncio.to_thread(begun.wait, LIMIT_S)
    async with asyncio.timeout(LIMIT_S):
        for number in range(1, 10):
            await place.accept(f"run-{number}")
    go_on.set()


async def test_an_emptied_log_in_front_holds_nothing_back(place: Place) -> None:
    for number in range(20):
        await place.accept(f"run-{number}", "x" * 10_000)
    await place.store.checkpoint()
    assert place.store._checkpoints._wal.stat().st_size == 0
    assert await place.store.size_bytes() == place.store._checkpoints._path.stat().st_size
    assert len(await place.store.runs(place.workspace_id)) == 20


async def test_closing_answers_what_was_asked_before_and_refuses_the_rest(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(db: sqlite3.Connection) -> str:
        begun.set()
        assert go_on.wait(LIMIT_S)
        return "read"

    async with opened(tmp_path) as place:
        store = place.store
        asked = [asyncio.create_task(store._readers.read(wait)) for _ in range(50)]  # more than there are threads
        await asyncio.to_thread(begun.wait, LIMIT_S)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*asked) == ["read"] * 50
        await closing
        with pytest.raises(StoreUnavailable):
            await store.workspaces()

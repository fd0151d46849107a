"""A disk that fails: what was acknowledged is kept, what was refused is not there, and all goes on later."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from kedge import failpoints
from kedge.protocol.errors import NotFound, StoreUnavailable
from kedge.store.errors import StoreOpenError
from kedge.store.sqlite.store import SqliteStore
from tests.faults.aftermath import check_aftermath
from tests.faults.limited import LARGE
from tests.faults.processes import LIMIT_S, ROOT, Died, acknowledged, environment
from tests.support.harness import Kedge
from tests.support.stores import Sqlite

DISK_BYTES = 2 * 1024 * 1024


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A directory on a disk of its own, of 2 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(where)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk; the tests with a limit on file sizes run everywhere")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


def fail() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    error.sqlite_errorname = "SQLITE_IOERR"
    raise error


def fail_at(place: str) -> asyncio.Event:
    """Arm the place; the event tells that it was tried."""
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fail_and_tell() -> None:
        loop.call_soon_threadsafe(tried.set)
        fail()

    failpoints.arm(place, fail_and_tell)
    return tried


@pytest.mark.parametrize("place", ["accept.begin", "accept.done", "group.commit"])
async def test_accept_on_a_failing_disk_is_refused_and_leaves_no_trace(place: str, kedge: Kedge) -> None:
    session = await kedge.session()
    head = (await kedge.store.read_log(kedge.workspace_id, 0, 500)).head
    failpoints.arm(place, fail)
    with pytest.raises(StoreUnavailable) as refused:
        await kedge.send(session, "say hello", "r1")
    assert refused.value.code == "store_unavailable"
    assert refused.value.message == (
        "nothing was stored: the disk failed (SQLITE_IOERR); check it and its free space, and try again"
    )
    with pytest.raises(NotFound):
        await kedge.run("r1")
    assert (await kedge.store.read_log(kedge.workspace_id, 0, 500)).head == head

    failpoints.disarm()
    receipt = await kedge.send(session, "say hello", "r1")
    assert not receipt.replayed
    assert (await kedge.end("r1")).text == "hello"


async def test_others_of_the_same_group_are_not_lost_with_one_that_fails(kedge: Kedge) -> None:
    sessions = [await kedge.session() for _ in range(5)]
    passed = 0

    def fail_third() -> None:
        nonlocal passed
        passed += 1
        if passed in (3, 6):  # in the group, and again when each of the five is tried by itself
            fail()

    failpoints.arm("accept.done", fail_third)
    sent = [kedge.send(session, "say hello", f"r{number}") for number, session in enumerate(sessions, 1)]
    results = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(result).__name__ for result in results].count("StoreUnavailable") == 1
    stored = {run.run_id for run in await kedge.store.runs(kedge.workspace_id)}
    assert stored == {f"r{n}" for n, result in enumerate(results, 1) if not isinstance(result, BaseException)}
    assert {end.text for end in await kedge.ends(*sorted(stored))} == {"hello"}


async def test_an_answer_and_a_cancel_that_cannot_be_stored_are_refused(kedge: Kedge) -> None:
    session = await kedge.session()
    await kedge.send(session, "ask deploy done; say thanks", "r1")
    request = await kedge.asked()
    failpoints.arm("answer.done", fail)
    failpoints.arm("cancel.done", fail)
    with pytest.raises(StoreUnavailable):
        await kedge.engine.answer_permission(kedge.workspace_id, request.id, "deny", by="one")
    with pytest.raises(StoreUnavailable):
        await kedge.cancel(session)
    failpoints.disarm()
    receipt = await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", by="two")
    assert receipt.resolved
    assert (await kedge.end("r1")).text == "thanks"


@pytest.mark.parametrize("place", ["create_message.begin", "checkpoint.begin", "join.begin", "finish.begin"])
async def test_a_turn_on_a_failing_disk_goes_on_when_the_disk_is_back(place: str, kedge: Kedge) -> None:
    session = await kedge.session()
    await kedge.send(session, "say begun; wait gate; say kept", "r1")
    await kedge.send(session, "say next", "r2")
    await kedge.reached("gate")
    tried = fail_at(place)
    kedge.gates.open("gate")
    async with asyncio.timeout(LIMIT_S):
        await tried.wait()
    assert (await kedge.run("r1")).state == "running"

    failpoints.disarm()
    assert (await kedge.end("r1")).text == "kept"
    assert (await kedge.run("r1")).attempt == 1
    assert (await kedge.end("r2")).text == "next"


async def test_text_shown_while_the_disk_failed_is_kept(kedge: Kedge) -> None:
    """P12: text is never taken back, and a draft that could not be stored is stored later."""
    session = await kedge.session()
    tried = fail_at("draft.begin")
    await kedge.send(session, "tool slow shown while hang", "r1")
    async with asyncio.timeout(LIMIT_S):
        await tried.wait()
    failpoints.disarm()
    await kedge.cancel_run("r1")
    await kedge.end("r1")
    results = [m for m in await kedge.messages(session) if m.role == "tool"]
    assert "shown while hang" in str(results[0].parts)


async def test_a_mistake_in_one_transaction_harms_no_other_and_is_not_the_disks(tmp_path: Path) -> None:
    """A statement that is wrong is told as what it is: it must not be tried again for ever."""
    store = SqliteStore.open(tmp_path)
    try:
        workspace_id = (await store.open_workspace("/somewhere")).workspace.id
        write = store._writer.write

        def wrong(tx: object) -> None:
            store._db.execute("SELECT * FROM no_such_table")

        bad, good = write("wrong", wrong), store.create_session(workspace_id, "kept")
        results = await asyncio.gather(bad, good, return_exceptions=True)
        assert isinstance(results[0], sqlite3.OperationalError)
        assert [session.title for session in await store.sessions(workspace_id)] == ["kept"]
    finally:
        await store.close()


async def test_a_store_without_room_for_a_growing_file_recovers(tmp_path: Path) -> None:
    """A real process whose files may not grow: the disk is full for it, and then it is not."""
    out = tmp_path / "acks"
    with out.open("wb") as stdout:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.limited", str(tmp_path)),
            cwd=ROOT,
            env=environment({}),
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(LIMIT_S):
            _, errors = await child.communicate()
    assert child.returncode == 0, errors.decode()
    told = Died(0, acknowledged(out.read_bytes()), errors.decode())

    assert [refused["run_id"] for refused in told.of("refused")] == ["large", "no-room"]
    for refused in told.of("refused"):
        assert refused["message"].startswith("nothing was stored: the disk failed (SQLITE_IOERR_WRITE);")
    assert not told.of("still_running")[0]["is_ended"]
    assert {end["run_id"]: end["state"] for end in told.of("end")} == {
        "before": "completed",
        "running": "completed",
        "behind": "completed",
        "small-1": "completed",
        "small-2": "completed",
        "no-room": "completed",
        "large": "completed",
    }
    await check_aftermath(tmp_path, told)


async def test_a_full_disk_refuses_and_recovers(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    async with Kedge(Sqlite(), small_disk) as kedge:
        busy, idle = await kedge.session(), await kedge.session()
        await kedge.send(busy, "say begun; wait gate; say kept", "running")
        await kedge.reached("gate")
        fill(ballast)
        refused = await send_until_full(kedge, idle)
        assert refused.message == "nothing was stored: the disk is full; free some space and try again"
        accepted = {run.run_id for run in await kedge.store.runs(kedge.workspace_id)}
        kedge.gates.open("gate")
        ballast.unlink()
        await kedge.ends(*accepted)
        await kedge.send(idle, "say room again", "after")
        assert (await kedge.end("after")).text == "room again"


async def test_what_does_not_fit_takes_nothing_else_down_with_it(small_disk: Path) -> None:
    async with Kedge(Sqlite(), small_disk) as kedge:
        session = await kedge.session()
        large, small = await asyncio.gather(
            kedge.send(session, LARGE, "large"), kedge.send(session, "say small", "small"), return_exceptions=True
        )
        assert isinstance(large, StoreUnavailable)
        assert large.message == "nothing was stored: the disk is full; free some space and try again"
        assert not isinstance(small, BaseException)
        assert (await kedge.end("small")).text == "small"
        await kedge.send(session, "say next", "next")
        assert (await kedge.end("next")).text == "next"
        assert [run.run_id for run in await kedge.store.runs(kedge.workspace_id)] == ["small", "next"]


async def send_until_full(kedge: Kedge, session: str) -> StoreUnavailable:
    """What SQLite has room for in its files already is used first."""
    for number in range(100):
        try:
            await kedge.send(session, "wait gate", f"small-{number}")
        except StoreUnavailable as refused:
            return refused
    raise AssertionError("the disk is never full")


def test_a_store_cannot_be_made_on_a_full_disk_and_says_so(small_disk: Path) -> None:
    fill(small_disk / "ballast")
    with pytest.raises(StoreOpenError, match="space"):
        SqliteStore.open(small_disk / "data")
    (small_disk / "ballast").unlink()
    SqliteStore.open(small_disk / "data").abandon()


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue

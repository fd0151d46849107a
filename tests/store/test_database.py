"""Opening a data directory: modes, migrations, and who owns it."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from kedge.store.errors import StoreInUse, StoreOpenError, StoreTooNew
from kedge.store.sqlite import database
from kedge.store.sqlite.database import Migration
from kedge.store.sqlite.store import SqliteStore
from tests.faults.processes import LIMIT_S, ROOT, environment
from tests.store.stores import held_by_another_process, look_at, make_store, opened

OURS = database.load_migrations()
NEXT = Migration(
    "9998_next", "-- two at once;\nCREATE TABLE next (id INTEGER PRIMARY KEY);\nINSERT INTO next VALUES (7)"
)
LATER = Migration("9999_later", "ALTER TABLE next ADD COLUMN name TEXT;\n-- the end\n")
BROKEN = Migration("9999_broken", "CREATE TABLE half (id INTEGER);\nCREATE TABLE half (id INTEGER);\n")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        async with opened(tmp_path / "data"):
            assert mode_of(tmp_path / "data") == 0o700
            modes = {path.name: mode_of(path) for path in (tmp_path / "data").iterdir()}
    finally:
        os.umask(umask)
    assert modes == dict.fromkeys(("kedge.db", "kedge.db-wal", "kedge.db-shm", "kedge.lock"), 0o600)


async def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    await make_store(tmp_path)
    (tmp_path / "kedge.db").chmod(0o644)
    async with opened(tmp_path):
        assert {mode_of(path) for path in tmp_path.iterdir()} == {0o600}


async def test_an_older_schema_is_migrated_and_its_backup_is_a_good_store(tmp_path: Path) -> None:
    await make_store(tmp_path, runs=2)
    before = dump(tmp_path / "kedge.db")
    async with opened(tmp_path, schema=[*OURS, NEXT, LATER]) as place:
        assert [run.run_id for run in await place.store.runs(place.workspace_id)] == ["run-0", "run-1"]
    with closing(sqlite3.connect(tmp_path / "kedge.db")) as db:
        assert db.execute("SELECT id, name FROM next").fetchall() == [(7, None)]
        applied = [name for (name,) in db.execute("SELECT name FROM migrations ORDER BY name")]
    assert applied == [migration.name for migration in [*OURS, NEXT, LATER]]

    (backup,) = tmp_path.glob("*.before-*")
    assert backup.name == "kedge.db.before-9998_next"
    assert mode_of(backup) == 0o600
    assert without_note_of_opening(dump(backup)) == without_note_of_opening(before)
    (tmp_path / "restored").mkdir()
    backup.rename(tmp_path / "restored" / "kedge.db")
    async with opened(tmp_path / "restored") as place:
        assert [run.run_id for run in await place.store.runs(place.workspace_id)] == ["run-0", "run-1"]


def without_note_of_opening(lines: list[str]) -> list[str]:
    return [line for line in lines if "closed_cleanly" not in line]


async def test_a_migration_is_applied_once(tmp_path: Path) -> None:
    for _ in range(3):
        async with opened(tmp_path, schema=[*OURS, NEXT]):
            pass
    assert list(tmp_path.glob("*.before-*")) == []


async def test_a_migration_that_fails_leaves_the_old_store_as_it_was(tmp_path: Path) -> None:
    await make_store(tmp_path)
    before = look_at(tmp_path).contents
    with pytest.raises(StoreOpenError, match=r"cannot prepare .*kedge\.db \(table half already exists\)"):
        SqliteStore.open(tmp_path, schema=[*OURS, NEXT, BROKEN])
    after = look_at(tmp_path).contents
    assert after["kedge.db"] == before["kedge.db"]
    assert after.keys() - before.keys() == {"kedge.db.before-9998_next"}
    async with opened(tmp_path) as place:
        assert len(await place.store.runs(place.workspace_id)) == 3
    async with opened(tmp_path, schema=[*OURS, NEXT]):
        pass  # and the mended migration is taken


async def test_a_newer_schema_is_refused_and_not_touched(tmp_path: Path) -> None:
    async with opened(tmp_path, schema=[*OURS, NEXT]):
        pass
    before = look_at(tmp_path)
    with pytest.raises(StoreTooNew) as refused:
        SqliteStore.open(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path / 'kedge.db'} was written by a newer Kedge (it has 9998_next);"
        " install that one, or choose another data directory"
    )
    assert look_at(tmp_path) == before


def test_the_migrations_of_the_package_are_numbered_without_gaps() -> None:
    assert [migration.name[:5] for migration in OURS] == [f"{number:04}_" for number in range(1, len(OURS) + 1)]


async def test_a_first_opening_that_was_cut_short_is_begun_again(tmp_path: Path) -> None:
    with closing(database.connect(tmp_path / "kedge.db", "NORMAL")):
        pass  # a database without a table: the process died before the first migration was committed
    async with opened(tmp_path) as place:
        await place.accept("run-1")


async def test_a_second_process_is_refused_and_told_who_the_owner_is(tmp_path: Path) -> None:
    with held_by_another_process(tmp_path) as child:
        with pytest.raises(StoreInUse) as refused:
            SqliteStore.open(tmp_path)
        assert str(refused.value) == (
            f"{tmp_path} is in use by process {child.pid};"
            " stop it (kedge serve --stop), or choose another data directory"
        )
        assert refused.value.owner == f"process {child.pid}"
        child.kill()
        child.wait(LIMIT_S)
        async with opened(tmp_path) as place:  # free at once, without any cleaning up
            await place.accept("run-1")


async def test_a_second_opening_in_the_same_process_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as place:
        with pytest.raises(StoreInUse, match=f"process {os.getpid()}"):
            SqliteStore.open(tmp_path)
        await place.accept("run-1")  # and harms nothing
    async with opened(tmp_path) as place:
        assert len(await place.store.runs(place.workspace_id)) == 1


DYING = """
import os, sys
from pathlib import Path
from kedge.store.sqlite.store import SqliteStore
SqliteStore.open(Path(sys.argv[1]))
if os.fork() == 0:
    sys.stdin.read(1)  # between fork and exec, for as long as the test likes
    os._exit(0)
print("forked", flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_dead_owner_whose_last_child_is_still_starting_is_waited_for(tmp_path: Path) -> None:
    """A process that is between fork and exec holds the lock of the server that started it, also when that is dead."""
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", DYING, str(tmp_path)],
        cwd=ROOT,
        env=environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        assert child.stdout.readline() == b"forked\n"
        child.wait(LIMIT_S)
        with ThreadPoolExecutor(1) as pool:
            opening_it = pool.submit(SqliteStore.open, tmp_path)
            with pytest.raises(TimeoutError):  # it neither refuses nor goes on
                opening_it.result(0.2)
            child.stdin.write(b"x")
            child.stdin.flush()
            opening_it.result(LIMIT_S).abandon()


async def test_a_refused_opening_leaves_the_directory_free(tmp_path: Path) -> None:
    (tmp_path / "kedge.db").write_bytes(b"not a database, and longer than a header of one hundred bytes" * 3)
    with pytest.raises(StoreOpenError):
        SqliteStore.open(tmp_path)
    (tmp_path / "kedge.db").unlink()
    async with opened(tmp_path) as place:
        await place.accept("run-1")

"""A file that is damaged, or not ours, is reported in one line and left as it is, to the byte."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kedge.store.errors import StoreDamaged
from kedge.store.port import NewChange, NewWork
from kedge.store.sqlite import database
from kedge.store.sqlite.store import SqliteStore
from tests.store.stores import look_at, make_store, opened

PAGE = 4096


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def damage_header(path: Path) -> None:
    overwrite(path, 0, b"\xff" * 100)


def damage_version(path: Path) -> None:
    overwrite(path, 18, b"\x09\x09")


def damage_middle_page(path: Path) -> None:
    middle = path.stat().st_size // PAGE // 2
    overwrite(path, middle * PAGE, b"\xa5" * PAGE)


def damage_last_page(path: Path) -> None:
    overwrite(path, path.stat().st_size - PAGE, b"\xa5" * PAGE)


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def truncate_within_a_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(PAGE + 1000)


def fill_with_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def write_text(path: Path) -> None:
    path.write_text("Dear diary, this is not a database at all.\n" * 50)


def of_another_application(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE recipes (id INTEGER PRIMARY KEY, text TEXT)")
        db.commit()


def with_other_migrations(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE migrations (id INTEGER PRIMARY KEY, applied TEXT)")
        db.commit()


DAMAGES: list[Callable[[Path], None]] = [
    damage_header,
    damage_version,
    damage_middle_page,
    truncate,
    truncate_within_a_page,
    fill_with_zeros,
    write_text,
    of_another_application,
    with_other_migrations,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.__name__ for damage in DAMAGES])
async def test_a_damaged_file_is_reported_and_not_touched(damage: Callable[[Path], None], tmp_path: Path) -> None:
    await make_store(tmp_path, runs=100)
    damage(tmp_path / "kedge.db")
    before = look_at(tmp_path)
    with pytest.raises(StoreDamaged) as refused:
        SqliteStore.open(tmp_path)
    assert str(tmp_path / "kedge.db") in str(refused.value)
    assert "choose another data directory" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert look_at(tmp_path) == before


async def test_a_damaged_file_with_a_log_in_front_of_it_is_not_touched_either(tmp_path: Path) -> None:
    await make_store(tmp_path, runs=100)
    await crash(tmp_path)
    database = tmp_path / "kedge.db"
    overwrite(database, PAGE, b"\xa5" * (database.stat().st_size - PAGE))  # more than the log covers
    before = look_at(tmp_path)
    with pytest.raises(StoreDamaged):
        SqliteStore.open(tmp_path)
    after = look_at(tmp_path)
    for name in ("kedge.db", "kedge.db-wal"):
        assert after.contents[name] == before.contents[name]
        assert after.stats[name] == before.stats[name]


@pytest.mark.parametrize("is_missing", [False, True], ids=["empty", "missing"])
async def test_a_log_without_its_database_is_not_thrown_away(is_missing: bool, tmp_path: Path) -> None:
    """SQLite would delete the log, which holds everything since the last checkpoint, and begin anew."""
    await crash(tmp_path)
    (tmp_path / "kedge.db").unlink()
    if not is_missing:
        (tmp_path / "kedge.db").touch()
    before = look_at(tmp_path)
    with pytest.raises(StoreDamaged, match=r"kedge\.db-wal"):
        SqliteStore.open(tmp_path)
    assert look_at(tmp_path) == before


async def test_a_torn_end_of_the_log_loses_only_what_was_never_acknowledged(tmp_path: Path) -> None:
    await crash(tmp_path)
    wal = tmp_path / "kedge.db-wal"
    wal.write_bytes(wal.read_bytes() + b"\x5a" * 5000)  # a write that the crash cut off
    async with opened(tmp_path) as place:
        assert [run.run_id for run in await place.store.runs(place.workspace_id)] == ["run-a", "run-b"]


async def test_a_large_file_is_checked_after_a_power_loss_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full check of gigabytes at every start would be felt; after a power loss it is worth it."""
    monkeypatch.setattr(database, "ALWAYS_CHECKED_BYTES", 0)
    await make_store(tmp_path, runs=100)
    damage_last_page(tmp_path / "kedge.db")  # content: a damaged schema shows without a check
    applied = database.inspect(tmp_path / "kedge.db", database.load_migrations())
    assert applied == [migration.name for migration in database.load_migrations()]
    with closing(sqlite3.connect(tmp_path / "kedge.db")) as db:
        db.execute("UPDATE meta SET value = 'no' WHERE key = 'closed_cleanly'")
        db.commit()
    monkeypatch.setattr(database, "boot_id", lambda: "another boot")
    with pytest.raises(StoreDamaged):
        database.inspect(tmp_path / "kedge.db", database.load_migrations())


async def test_a_full_and_sound_store_passes_its_check(tmp_path: Path) -> None:
    """Every table has a row: SQLite's own check must not be wrong about any of them."""
    async with opened(tmp_path) as place:
        await place.start("run-1")
        place.store._db.execute("INSERT INTO processes (pgid, started, workspace_id, run_id) VALUES (7, 'x', 'w', 'r')")
        place.store._db.execute("INSERT INTO drafts (message_id, part, kind, text) VALUES ('m', 0, 'text', x'00')")
        place.store._db.execute(
            "INSERT INTO requests (id, workspace_id, kind, asker_run_id, message_id, tool_call_id, seq, digest, body)"
            " VALUES ('q', 'w', 'question', 'r', 'm', 'c', 1, x'00', x'00')"
        )
        work = await place.store.files.begin_work(place.workspace_id, "run-1", NewWork(path=b"/a"))
        change = NewChange(path=b"/a", shown="a", before=b"before", after=b"after")
        await place.store.files.record_changes(work, [change], is_last=False)
        await place.store.files.record_unwatched(place.workspace_id, "run-1", "it is too large")
        place.store._db.execute(
            "INSERT INTO undos (workspace_id, session_id, state, cut, message_id, hides, plan)"
            " VALUES ('w', 's', 'undone', 1, 'm', 1, x'00')"
        )
        place.store._db.execute("INSERT INTO surroundings (session_id, workspace_id, body) VALUES ('s', 'w', x'00')")
    with closing(sqlite3.connect(tmp_path / "kedge.db")) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        empty = [table for table in tables if db.execute(f"SELECT 1 FROM {table}").fetchone() is None]
        assert empty == []
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def crash(directory: Path) -> None:
    """A store whose runs are in the log only, as a killed server leaves it."""
    async with opened(directory) as place:
        await place.accept("run-a")
        await place.accept("run-b")
        left = {path: path.read_bytes() for path in (directory / "kedge.db", directory / "kedge.db-wal")}
    for path, content in left.items():
        path.write_bytes(content)

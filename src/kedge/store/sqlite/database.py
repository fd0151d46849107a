"""Opening a data directory: one owner, a sound file, a known schema. A directory that cannot be opened is unchanged."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

from kedge import failpoints
from kedge.boot import boot_id
from kedge.protocol.address import OWNER_FILE, is_process_alive
from kedge.store.errors import StoreDamaged, StoreInUse, StoreOpenError, StoreTooNew

DATABASE = "kedge.db"
Synchronous = Literal["NORMAL", "FULL"]

# A full check reads the whole file: a tenth of a second for this size. Larger ones are checked after a power loss.
ALWAYS_CHECKED_BYTES = 32 * 1024 * 1024
# The write-ahead log is checkpointed, off the commit path, whenever it is larger than this.
WAL_BYTES = 4 * 1024 * 1024
# Between fork and exec a new process shares its parent's lock; that takes less time even on a busy machine.
LOCK_S = 2.0


def random_id() -> str:
    return secrets.token_hex(8)


class Migration(NamedTuple):
    name: str
    sql: str


def load_migrations() -> list[Migration]:
    """Return the numbered migrations of the package, oldest first."""
    folder = Path(__file__).parent.parent / "schema"
    return [Migration(path.stem, path.read_text()) for path in sorted(folder.glob("*.sql"))]


def take_lock(directory: Path) -> int:
    """Lock the directory until the returned descriptor is closed. Raises `StoreInUse`, which names the owner."""
    fd = -1
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory / OWNER_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        if not _try_to_lock(fd):
            raise StoreInUse(str(directory), _read_owner(fd) or "another process")
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()}\n".encode(), 0)
    except StoreInUse:
        os.close(fd)
        raise
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise StoreOpenError(f"cannot use {directory} ({error.strerror}); choose another data directory") from error
    return fd


def _try_to_lock(fd: int) -> bool:
    """Return whether the lock was taken. A program that a dead owner was starting may have it for a moment more."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _is_owner_alive(_read_owner(fd)) or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def _read_owner(fd: int) -> str:
    return os.pread(fd, 100, 0).decode("utf-8", "replace").strip()


def _is_owner_alive(owner: str) -> bool:
    pid = owner.removeprefix("process ")  # not there yet, or of a process that only checked whether the lock is free
    return pid.isdecimal() and is_process_alive(int(pid))


def open_database(
    directory: Path, schema: Sequence[Migration], synchronous: Synchronous, new_id: Callable[[], str]
) -> sqlite3.Connection:
    """Return the writer's connection to a sound database with the newest schema."""
    path = directory / DATABASE
    failpoints.hit("open.locked")
    applied = inspect(path, schema)
    try:
        db = connect(path, synchronous)
    except (sqlite3.Error, OSError) as error:
        raise StoreOpenError(f"cannot open {path} ({error}); check the directory's permissions and space") from error
    try:
        failpoints.hit("open.connected")
        _migrate(db, path, schema, applied)
        failpoints.hit("open.migrated")
        _note_open(db, synchronous, new_id)
        failpoints.hit("open.noted")
    except (sqlite3.Error, OSError) as error:
        db.close()
        raise StoreOpenError(f"cannot prepare {path} ({error}); free some space and check permissions") from error
    return db


def connect(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    if not path.exists():
        path.touch(mode=0o600)
    path.chmod(0o600)  # SQLite's other files get the same mode
    return _connect(
        path,
        "journal_mode = WAL",
        f"synchronous = {synchronous}",
        "wal_autocheckpoint = 0",  # see writer.py
        f"journal_size_limit = {WAL_BYTES}",
    )


def connect_reader(path: Path) -> sqlite3.Connection:
    return _connect(path, "query_only = ON")


def _connect(path: Path, *settings: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        db.row_factory = sqlite3.Row
        for setting in ("busy_timeout = 5000", *settings):
            db.execute(f"PRAGMA {setting}")
    except BaseException:
        db.close()
        raise
    return db


def inspect(path: Path, schema: Sequence[Migration]) -> list[str]:
    """Return the applied migrations, after checking, without writing, that the file is sound and ours."""
    wal = path.with_name(f"{path.name}-wal")
    has_wal = _size(wal) > 0
    if _size(path) == 0:
        if has_wal:
            raise StoreDamaged(_describe_damage(path, f"it is empty, but {wal.name} is not"))
        return []
    # Without a write-ahead log the file is complete; `immutable` keeps SQLite from creating files beside it.
    mode = "mode=ro" if has_wal else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as db:
            return _inspect(db, path, schema)
    except sqlite3.DatabaseError as error:
        if _is_unreadable(error):
            raise StoreOpenError(f"cannot read {path} ({error}); check its permissions and its disk") from error
        raise StoreDamaged(_describe_damage(path, str(error))) from error


def _inspect(db: sqlite3.Connection, path: Path, schema: Sequence[Migration]) -> list[str]:
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return []  # the first opening was interrupted
    if "migrations" not in tables:
        raise StoreDamaged(f"{path} is not a Kedge database; move it away, or choose another data directory")
    applied = [row[0] for row in db.execute("SELECT name FROM migrations ORDER BY name")]
    if unknown := sorted(set(applied) - {migration.name for migration in schema}):
        raise StoreTooNew(
            f"{path} was written by a newer Kedge (it has {unknown[-1]});"
            " install that one, or choose another data directory"
        )
    if path.stat().st_size <= ALWAYS_CHECKED_BYTES or _has_lost_power(db):
        problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise StoreDamaged(_describe_damage(path, problem))
    return applied


def note_close(db: sqlite3.Connection) -> None:
    """Note a clean close: only then does a changed boot id not mean a power loss."""
    db.execute("PRAGMA synchronous = FULL")
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('closed_cleanly', 'yes')")
    failpoints.hit("close.noted")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    failpoints.hit("close.moved")


def _describe_damage(path: Path, problem: str) -> str:
    reason = " ".join(problem.split())  # SQLite's messages have several lines
    return f"{path} is damaged ({reason}); it was left as it is: restore a backup, or choose another data directory"


def _is_unreadable(error: sqlite3.Error) -> bool:
    """Whether the disk or a permission failed: the file itself may be sound."""
    family = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return family in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _migrate(db: sqlite3.Connection, path: Path, schema: Sequence[Migration], applied: list[str]) -> None:
    due = [migration for migration in schema if migration.name not in applied]
    if not due:
        return
    if applied:
        _back_up(db, path.with_name(f"{path.name}.before-{due[0].name}"))
        failpoints.hit("open.backed_up")
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY) WITHOUT ROWID")
        for migration in due:
            for statement in _split_statements(migration.sql):
                db.execute(statement)
            db.execute("INSERT INTO migrations (name) VALUES (?)", (migration.name,))
        failpoints.hit("open.migrating")
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _back_up(db: sqlite3.Connection, target: Path) -> None:
    unfinished = target.with_name(f"{target.name}.tmp")
    unfinished.unlink(missing_ok=True)
    unfinished.touch(mode=0o600)
    db.execute("VACUUM INTO ?", (str(unfinished),))
    _sync(unfinished)
    unfinished.replace(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _split_statements(sql: str) -> list[str]:
    found: list[str] = []
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending)
            pending = ""
    return [*found, pending] if pending.strip() else found  # an incomplete statement fails, a last comment does not


def _note_open(db: sqlite3.Connection, synchronous: Synchronous, new_id: Callable[[], str]) -> None:
    """Note an open store. After a power loss the newest commits may be gone: every log gets a new id (P10)."""
    has_lost_power = _has_lost_power(db)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN IMMEDIATE")
    if has_lost_power:
        for row in db.execute("SELECT id FROM workspaces").fetchall():
            db.execute("UPDATE workspaces SET log_id = ? WHERE id = ?", (new_id(), row[0]))
    facts = {"boot": boot_id(), "synchronous": synchronous, "closed_cleanly": "no"}
    db.executemany("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", list(facts.items()))
    db.execute("COMMIT")
    db.execute(f"PRAGMA synchronous = {synchronous}")


def _has_lost_power(db: sqlite3.Connection) -> bool:
    meta: dict[str, str] = dict(tuple(row) for row in db.execute("SELECT key, value FROM meta"))
    if meta.get("closed_cleanly", "yes") == "yes" or meta.get("synchronous") == "FULL":
        return False
    return not meta.get("boot") or meta["boot"] != boot_id()


def diagnose(directory: Path) -> tuple[bool, str] | None:
    """Return whether the database is fine and a sentence about it, or None if there is nothing to say.

    `python -m kedge.store.sqlite.database DATA_DIR` prints it as one line of JSON, for `kedge doctor`.
    """
    path = directory / DATABASE
    schema = load_migrations()
    try:
        applied = inspect(path, schema)
    except StoreOpenError as error:
        return False, str(error)
    due = [migration.name for migration in schema if migration.name not in applied]
    if not applied or not due:
        return None
    copy = f"{path.name}.before-{due[0]}"
    return True, f"{path} was written by an older Kedge: the next server upgrades it and keeps a copy ({copy})"


if __name__ == "__main__" and (found := diagnose(Path(sys.argv[1]))) is not None:
    sys.stdout.write(f"{json.dumps(found)}\n")

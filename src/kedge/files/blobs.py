"""File contents by their hash, compressed, in a private SQLite file beside the store, bounded in size.

It survives `kill -9` like the store. Content that was pruned or damaged is reported as missing.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path

from kedge.files.states import compute_digest

DATABASE = "versions.db"
# How long unreferenced content is kept: the change that refers to it may not be recorded yet.
GRACE_S = 3600.0
_PRUNED_AT_ONCE = 500

_SETTINGS = ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = NORMAL", "busy_timeout = 5000")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS blobs (digest TEXT PRIMARY KEY, at REAL NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS trees (
    root BLOB NOT NULL,
    path BLOB NOT NULL,
    stamp BLOB,  -- of the file when it was read; NULL: too young to prove anything
    state BLOB NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (root, path)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS trees_by_digest ON trees (digest);
CREATE TABLE IF NOT EXISTS roots (root BLOB PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
"""


class Blobs:
    """Every call blocks, and may come from any thread; calls are serialized."""

    def __init__(self, directory: Path | None, now: Callable[[], float] = time.time) -> None:
        self._path = None if directory is None else directory / DATABASE
        self._now = now
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._is_closed = False

    @property
    def size_bytes(self) -> int:
        """Size on disk without free pages."""
        with self._lock:
            db = self._connect()
            size, pages, free = (
                db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
            )
        return size * (pages - free)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever stored."""
        return self._db is None and (self._path is None or not self._path.exists())

    def put(self, contents: Iterable[bytes]) -> None:
        packed = [(compute_digest(data), self._now(), _compress(data)) for data in contents]
        if not packed:
            return
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO blobs (digest, at, data) VALUES (?, ?, ?)"
                " ON CONFLICT (digest) DO UPDATE SET at = excluded.at WHERE at < excluded.at - 600",  # rarely writes
                packed,
            )

    def get(self, digest: str) -> bytes | None:
        with self.transaction() as db:
            row = db.execute("SELECT data FROM blobs WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            return None
        try:
            data = zlib.decompress(row[0][1:]) if row[0][:1] == b"z" else row[0][1:]
        except zlib.error:
            return None
        return data if compute_digest(data) == digest else None

    def has(self, digest: str) -> bool:
        with self.transaction() as db:
            return db.execute("SELECT 1 FROM blobs WHERE digest = ?", (digest,)).fetchone() is not None

    def prune(self, last_use: Mapping[str, int], max_bytes: int) -> int:
        """Delete unreferenced contents and, over the limit, those used longest ago; return how many.

        `last_use` maps every referenced digest to the time of its last use (larger is later). Contents that a watched
        tree has now are not deleted, because the next command may change them.
        """
        with self.transaction() as db:
            free = (
                "SELECT digest, at, length(data) FROM blobs b"
                " WHERE NOT EXISTS (SELECT 1 FROM trees t WHERE t.digest = b.digest)"
            )
            rows = db.execute(free).fetchall()
        oldest = self._now() - GRACE_S
        gone = [digest for digest, at, _ in rows if digest not in last_use and at < oldest]
        size, dead = self.size_bytes, set(gone)
        size -= sum(length for digest, _, length in rows if digest in dead)
        for digest, _, length in sorted(rows, key=lambda row: last_use.get(row[0], 2**63)):
            if size <= max_bytes:
                break
            if digest in last_use and digest not in dead:
                gone.append(digest)
                size -= length
        for start in range(0, len(gone), _PRUNED_AT_ONCE):
            with self.transaction() as db:
                some = gone[start : start + _PRUNED_AT_ONCE]
                db.executemany("DELETE FROM blobs WHERE digest = ?", [(digest,) for digest in some])
        if gone:
            with self._lock:
                self._connect().execute("PRAGMA incremental_vacuum").fetchall()
        return len(gone)

    @contextlib.contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            db = self._connect()
            if db.in_transaction:
                yield db
                return
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # left open, it would include every later one
                    db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close for good: a late thread gets an error instead of a new connection."""
        with self._lock:
            self._is_closed = True
            if self._db is not None:
                self._db.close()
                self._db = None

    def _connect(self) -> sqlite3.Connection:
        """Open the database at the first use. A damaged file is renamed; its versions are lost."""
        if self._is_closed:
            raise sqlite3.ProgrammingError("the file versions are closed")
        if self._db is None:
            try:
                self._db = _open(self._path)
            except sqlite3.DatabaseError as error:
                if self._path is None or isinstance(error, sqlite3.OperationalError):
                    raise
                self._path.replace(self._path.with_name(f"{DATABASE}.damaged"))
                for beside in ("-wal", "-shm"):
                    self._path.with_name(DATABASE + beside).unlink(missing_ok=True)
                self._db = _open(self._path)
        return self._db


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)  # SQLite gives its other files the same mode
    db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        for setting in _SETTINGS:
            db.execute(f"PRAGMA {setting}").fetchall()
        db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def _compress(data: bytes) -> bytes:
    """Fast rather than small: an edit waits for it."""
    packed = zlib.compress(data, 1)
    return b"z" + packed if len(packed) < len(data) else b"r" + data

"""Content by its hash, compressed, each once: one private SQLite file beside the store, bounded in size.

It survives `kill -9` like the store does. Content that is gone, or was damaged, is only not there, and whoever asks is
told.
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
# What nothing refers to is kept for so long: its record may be on the way.
GRACE_S = 3600.0
_SWEPT_AT_ONCE = 500

_SETTINGS = ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = NORMAL", "busy_timeout = 5000")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS blobs (digest TEXT PRIMARY KEY, at REAL NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS trees (
    root BLOB NOT NULL,
    path BLOB NOT NULL,
    stamp BLOB,  -- of the file when it was read; NULL: it may have changed right after
    state BLOB NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (root, path)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS trees_by_digest ON trees (digest);
CREATE TABLE IF NOT EXISTS roots (root BLOB PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
"""


class Blobs:
    """For threads: every call blocks, and they take turns."""

    def __init__(self, directory: Path | None, now: Callable[[], float] = time.time) -> None:
        self._path = None if directory is None else directory / DATABASE
        self._now = now
        self._one_by_one = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._is_closed = False

    @property
    def size_bytes(self) -> int:
        """What all of it takes on the disk, without what is free for the next."""
        with self._one_by_one:
            db = self._opened()
            size, pages, free = (
                db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
            )
        return size * (pages - free)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever put here."""
        return self._db is None and (self._path is None or not self._path.exists())

    def put(self, contents: Iterable[bytes]) -> None:
        """When this returns, they outlive us."""
        packed = [(compute_digest(data), self._now(), _packed(data)) for data in contents]
        if not packed:
            return
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO blobs (digest, at, data) VALUES (?, ?, ?)"
                " ON CONFLICT (digest) DO UPDATE SET at = excluded.at WHERE at < excluded.at - 600",  # seldom a write
                packed,
            )

    def get(self, digest: str) -> bytes | None:
        with self.transaction() as db:
            row = db.execute("SELECT data FROM blobs WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            return None
        try:
            data = _unpacked(row[0])
        except zlib.error:
            return None
        return data if compute_digest(data) == digest else None

    def has(self, digest: str) -> bool:
        with self.transaction() as db:
            return db.execute("SELECT 1 FROM blobs WHERE digest = ?", (digest,)).fetchone() is not None

    def prune(self, last_use: Mapping[str, int], max_bytes: int) -> int:
        """Remove what nothing refers to and, over the bound, what was used longest ago; returns how many went.

        `last_use` has every digest that a record refers to, and when: a larger number is later. What a tree on disk has
        now stays: the next command may change it.
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
        for start in range(0, len(gone), _SWEPT_AT_ONCE):
            with self.transaction() as db:
                some = gone[start : start + _SWEPT_AT_ONCE]
                db.executemany("DELETE FROM blobs WHERE digest = ?", [(digest,) for digest in some])
        if gone:
            with self._one_by_one:
                self._opened().execute("PRAGMA incremental_vacuum").fetchall()
        return len(gone)

    @contextlib.contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        with self._one_by_one:
            db = self._opened()
            if db.in_transaction:
                yield db
                return
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # left open, it would swallow every later one
                    db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """For good: a thread that comes late opens nothing again."""
        with self._one_by_one:
            self._is_closed = True
            if self._db is not None:
                self._db.close()
                self._db = None

    def _opened(self) -> sqlite3.Connection:
        """Opened at the first use. A damaged file is put aside: what was in it cannot be undone any more."""
        if self._is_closed:
            raise sqlite3.ProgrammingError("the versions of files are closed")
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
        path.chmod(0o600)  # what SQLite puts beside it takes its mode
    db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        for setting in _SETTINGS:
            db.execute(f"PRAGMA {setting}").fetchall()
        db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def _packed(data: bytes) -> bytes:
    """Quick rather than small: an edit waits for it."""
    packed = zlib.compress(data, 1)
    return b"z" + packed if len(packed) < len(data) else b"r" + data


def _unpacked(stored: bytes) -> bytes:
    return zlib.decompress(stored[1:]) if stored[:1] == b"z" else stored[1:]

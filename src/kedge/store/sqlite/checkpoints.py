"""Checkpoints: the log in front of the database is moved into it beside the commits, so that it stays small."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

from kedge.store.sqlite import database
from kedge.store.sqlite.writer import Executor


class Checkpoints:
    """Two steps: the bulk is copied by a reader's thread, the rest by the writer's, between two commits."""

    def __init__(self, path: Path, db: sqlite3.Connection, write_executor: Executor, read_executor: Executor) -> None:
        self._path = path
        self._wal = path.with_name(f"{path.name}-wal")
        self._db = db
        self._write_executor = write_executor
        self._read_executor = read_executor
        self._at_work: Future[None] | None = None
        self._seen_bytes = 0  # of the log, when the last one began
        self._is_bulk_moved = False

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self._path, self._wal) if path.exists())

    def begin_if_due(self) -> None:
        """After a commit."""
        if self._at_work is not None and not self._at_work.done():
            return
        if self._is_bulk_moved:
            self._is_bulk_moved = False
            self._at_work = self._write_executor.submit(self._move_rest)
            return
        try:
            size = self._wal.stat().st_size
        except FileNotFoundError:
            return
        has_grown = size < self._seen_bytes or size >= self._seen_bytes + database.WAL_BYTES // 4
        if size > database.WAL_BYTES and has_grown:
            self._seen_bytes = size
            self._at_work = self._read_executor.submit(self._move_bulk)

    async def is_over(self) -> None:
        if self._at_work is not None:  # however it went: a later one does what it could not
            await asyncio.gather(asyncio.wrap_future(self._at_work), return_exceptions=True)

    async def move_all(self) -> None:
        """Move everything, and empty the log. For when nobody writes."""
        await self.is_over()  # SQLite does not wait for another one, it does nothing
        await asyncio.wrap_future(self._write_executor.submit(self._truncate))

    # From here on in other threads.

    def _move_bulk(self) -> None:
        """Copy finished pages; commits go on meanwhile."""
        try:
            with closing(database.connect(self._path, "NORMAL")) as db:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, OSError):
            return  # a full disk: the writer meets it too, and says so; a later commit tries this again
        self._is_bulk_moved = True

    def _move_rest(self) -> None:
        """Copy the little that was committed meanwhile. Between two commits the copy is complete, and only then does
        SQLite start the log anew: under a steady load it would grow for ever."""
        try:
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error:
            pass  # as above

    def _truncate(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

"""Checkpoints: the write-ahead log is moved into the database beside the commits, so that it stays small."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

from kedge.store.sqlite import database
from kedge.store.sqlite.writer import Executor


class Checkpoints:
    """A reader's thread copies most of the log, the writer's thread the rest, between two commits."""

    def __init__(self, path: Path, db: sqlite3.Connection, write_executor: Executor, read_executor: Executor) -> None:
        self._path = path
        self._wal = path.with_name(f"{path.name}-wal")
        self._db = db
        self._write_executor = write_executor
        self._read_executor = read_executor
        self._running: Future[None] | None = None
        self._seen_bytes = 0  # size of the log when the last checkpoint began
        self._is_bulk_moved = False

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self._path, self._wal) if path.exists())

    def begin_if_due(self) -> None:
        """Called after each commit."""
        if self._running is not None and not self._running.done():
            return
        if self._is_bulk_moved:
            self._is_bulk_moved = False
            self._running = self._write_executor.submit(self._move_rest)
            return
        try:
            size = self._wal.stat().st_size
        except FileNotFoundError:
            return
        has_grown = size < self._seen_bytes or size >= self._seen_bytes + database.WAL_BYTES // 4
        if size > database.WAL_BYTES and has_grown:
            self._seen_bytes = size
            self._running = self._read_executor.submit(self._move_bulk)

    async def wait(self) -> None:
        if self._running is not None:  # a failed one is repeated later
            await asyncio.gather(asyncio.wrap_future(self._running), return_exceptions=True)

    async def move_all(self) -> None:
        """Move everything and empty the log. Call it only while nothing is being written."""
        await self.wait()  # SQLite does nothing if another checkpoint runs
        await asyncio.wrap_future(self._write_executor.submit(self._truncate))

    # The rest runs in the executors' threads.

    def _move_bulk(self) -> None:
        """Copy finished pages while commits continue."""
        try:
            with closing(database.connect(self._path, "NORMAL")) as db:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, OSError):
            return  # a full disk, for example: the writer reports it; a later commit tries again
        self._is_bulk_moved = True

    def _move_rest(self) -> None:
        """Copy the rest between two commits. Only after a complete copy does SQLite reuse the log: otherwise it
        would grow under a steady load."""
        try:
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error:
            pass  # as above

    def _truncate(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

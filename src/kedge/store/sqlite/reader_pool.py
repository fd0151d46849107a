"""A pool of read connections: each read uses one snapshot and waits for no commit."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from kedge.protocol.errors import StoreUnavailable
from kedge.store.sqlite import database
from kedge.store.sqlite.writer import Executor, explain

P = ParamSpec("P")
T = TypeVar("T")


class ReaderPool:
    def __init__(self, path: Path, executor: Executor) -> None:
        self._path = path
        self._executor = executor
        self._free: deque[sqlite3.Connection] = deque()
        self._all: list[sqlite3.Connection] = []

    async def read(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        def read(db: sqlite3.Connection) -> T:
            return fn(db, *args, **kwargs)

        try:
            reading: Future[T] = self._executor.submit(self._read_in_snapshot, read)
        except RuntimeError as error:  # the store is closed, or no thread can be started
            raise StoreUnavailable(f"nothing can be read ({error})") from error
        return await asyncio.wrap_future(reading)

    def close(self) -> None:
        for reader in self._all:
            reader.close()

    # The rest runs in the executor's threads.

    def _read_in_snapshot(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Call `fn` in one read transaction."""
        try:
            db = self._take()
            try:
                db.execute("BEGIN")
                return fn(db)
            finally:
                if db.in_transaction:
                    db.execute("COMMIT")
                self._free.append(db)
        except sqlite3.Error as error:
            raise StoreUnavailable(explain(error)) from error

    def _take(self) -> sqlite3.Connection:
        try:
            return self._free.pop()
        except IndexError:
            db = database.connect_reader(self._path)
            self._all.append(db)
            return db

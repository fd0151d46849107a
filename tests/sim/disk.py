"""A disk below a real SQLite file that fails when the simulation says so."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

_NOT_WRITTEN = ("SELECT", "BEGIN", "ROLLBACK", "SAVEPOINT", "RELEASE", "PRAGMA")


class Disk:
    """Full or unreadable for a while, or failing one statement."""

    def __init__(self) -> None:
        self.is_full = False
        self.is_unreadable = False
        self._fails_in: int | None = None  # statements

    @property
    def is_failing(self) -> bool:
        return self.is_full or self.is_unreadable

    def fail_once(self, statements: int) -> None:
        """Let the statement fail that comes after so many others; its group is rolled back, and tried again."""
        self._fails_in = statements

    def heal(self) -> None:
        self.is_full = self.is_unreadable = False
        self._fails_in = None

    def write(self, sql: str) -> None:
        if sql.lstrip().startswith(_NOT_WRITTEN):
            return
        if self._fails_in is not None:
            self._fails_in -= 1
            if self._fails_in < 0:
                self._fails_in = None
                raise _full()
        if self.is_full and sql == "COMMIT":
            raise _full()


class DiskConnection:
    """What the writer needs of a connection, with a disk below it that can fail."""

    def __init__(self, db: sqlite3.Connection, disk: Disk) -> None:
        self._db = db
        self._disk = disk

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    def execute(self, sql: str, args: Sequence[Any] = ()) -> sqlite3.Cursor:
        self._disk.write(sql)
        return self._db.execute(sql, args)

    def executemany(self, sql: str, args: Any) -> sqlite3.Cursor:
        self._disk.write(sql)
        return self._db.executemany(sql, args)


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"
    return error

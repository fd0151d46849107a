"""The stores that every contract test runs on."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from kedge.store.port import Committed, Store
from kedge.store.sqlite.database import DATABASE, load_migrations, open_database
from kedge.store.sqlite.store import SqliteStore


class StoreKind(Protocol):
    """How to open a store, and what tests do to it that no server does."""

    name: str

    def open(self, directory: Path, now: Callable[[], float]) -> Store: ...

    def crash(self, store: Store) -> None:
        """As `kill -9` would: what was committed is there, nothing else is written, nobody is told."""
        ...

    async def stored_bytes(self, store: Store) -> int:
        """What it takes on the disk, without what would be gone by itself a little later."""
        ...


class Sqlite:
    name = "sqlite"

    def open(self, directory: Path, now: Callable[[], float]) -> Store:
        write_empty_database(directory)
        return SqliteStore.open(directory, now=now)

    def crash(self, store: Store) -> None:
        assert isinstance(store, SqliteStore)
        store.on_commit = _tell_nobody
        for executor, is_writer in ((store._write_executor, True), (store._read_executor, False)):
            assert isinstance(executor, ThreadPoolExecutor)
            executor.shutdown(cancel_futures=is_writer)  # a statement that runs in a thread cannot be torn from it
        store.abandon()

    async def stored_bytes(self, store: Store) -> int:
        assert isinstance(store, SqliteStore)
        await store.checkpoint()
        return await store.size_bytes()


def write_empty_database(directory: Path) -> None:
    """Put a migrated database into a new data directory. The migrations take longer than most tests."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / DATABASE
    if not path.exists():
        path.write_bytes(_migrated_database())


@functools.cache
def _migrated_database() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        open_database(Path(directory), load_migrations(), "NORMAL", lambda: "").close()
        return (Path(directory) / DATABASE).read_bytes()


def _tell_nobody(events: Sequence[Committed]) -> None:
    del events


STORES: list[StoreKind] = [Sqlite()]

"""Stores for the tests of the store itself, and how they are looked at from outside."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from kedge.protocol.address import OWNER_FILE
from kedge.protocol.runs import Submission
from kedge.store.port import LogEvent, LogPage, Started
from kedge.store.sqlite.store import SqliteStore
from tests.faults.processes import LIMIT_S, ROOT, environment


class Place(NamedTuple):
    """An open store with a workspace and a session in it."""

    store: SqliteStore
    workspace_id: str
    session_id: str

    async def accept(self, run_id: str, prompt: str = "hello", **fields: str) -> None:
        submission = Submission(session_id=self.session_id, prompt=prompt, **fields)  # pyright: ignore[reportArgumentType]
        await self.store.accept(self.workspace_id, run_id, submission)

    async def start(self, run_id: str, prompt: str = "hello") -> Started:
        await self.accept(run_id, prompt)
        started = await self.store.start(self.workspace_id, self.session_id)
        assert started is not None
        assert started.run.run_id == run_id
        return started

    async def log(self) -> list[LogEvent]:
        return [event for page in await self.pages(500) for event in page.events]

    async def pages(self, limit: int, after: int = 0) -> list[LogPage]:
        pages = [await self.store.read_log(self.workspace_id, after, limit)]
        while pages[-1].upto < pages[-1].head:
            pages.append(await self.store.read_log(self.workspace_id, pages[-1].upto, limit))
        return pages


async def place_in(store: SqliteStore) -> Place:
    workspace_id = (await store.open_workspace("/somewhere")).workspace.id
    return Place(store, workspace_id, (await store.create_session(workspace_id, "a session")).id)


@asynccontextmanager
async def opened(directory: Path, **settings: object) -> AsyncGenerator[Place]:
    store = SqliteStore.open(directory, **settings)  # pyright: ignore[reportArgumentType]
    try:
        yield await place_in(store)
    finally:
        async with asyncio.timeout(LIMIT_S):
            await store.close()


async def make_store(directory: Path, runs: int = 3) -> None:
    """A store that was closed, with something in it."""
    async with opened(directory) as place:
        for number in range(runs):
            await place.accept(f"run-{number}")


class Files(NamedTuple):
    """Everything in a directory: bytes, mode and time of each file."""

    contents: dict[str, bytes]
    stats: dict[str, tuple[int, int]]


def look_at(directory: Path, *, but: str = OWNER_FILE) -> Files:
    paths = sorted(path for path in directory.iterdir() if path.name != but)
    stats = {path.name: path.stat() for path in paths}
    return Files(
        {path.name: path.read_bytes() for path in paths},
        {name: (stat.st_mode, stat.st_mtime_ns) for name, stat in stats.items()},
    )


@contextmanager
def held_by_another_process(directory: Path) -> Generator[subprocess.Popen[bytes]]:
    """Until the end, a real process has the directory open."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.opens", "--hold", str(directory)],
        cwd=ROOT,
        env=environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline()) == {"opened": child.pid}
        yield child
    finally:
        child.kill()
        child.communicate(timeout=LIMIT_S)

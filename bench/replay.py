"""How fast does a reader that comes with `after=0` get a log of 100,000 events from the store, and in how much memory?

The frames are built again from rows, byte for byte as they were sent; the baselines only read bytes that lie ready.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from measure import (
    MIB,
    Samples,
    answer,
    forget_peak,
    noise_told,
    peak_rss_bytes,
    play,
    print_table,
    rss_bytes,
    running_engine,
)

from kedge.engine.engine import Engine

EVENTS = 100_000
SESSIONS = 50
ROUNDS = 3
TABLE = ["", "best s", "events/s", "MB/s", "x baseline"]


async def main() -> None:
    database, file = Samples("the bytes, bare SELECT (baseline)"), Samples("the bytes, plain file")
    replayed = Samples("subscribe(after=0)")
    with noise_told(), tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        await write_log(directory)
        # A new engine: its ring is empty, so that all comes from the store.
        async with running_engine(answer, directory) as (engine, workspace):
            before = rss_bytes()
            forget_peak()
            await replay(engine, workspace.id, keeps=False)
            grown = peak_rss_bytes() - before
            frames = await replay(engine, workspace.id)
            (directory / "frames").write_bytes(frames)
            make_bare_database(directory / "bare.db", frames)
            size = len(frames)
            del frames
            for _ in range(ROUNDS):
                with database.timed():
                    read_database(directory / "bare.db")
                with file.timed():
                    read_file(directory / "frames")
                with replayed.timed():
                    await replay(engine, workspace.id, keeps=False)
        rows = [
            [s.name, f"{s.best:.3f}", f"{EVENTS / s.best:,.0f}", f"{size / 1e6 / s.best:,.0f}", ratio(s, database)]
            for s in (database, file, replayed)
        ]
        title = f"replay of {EVENTS:,} events ({size / 1e6:.0f} MB), {ROUNDS} rounds"
        print_table(f"{title}; memory grew by {grown / MIB:.1f} MiB at most", TABLE, rows)


def ratio(samples: Samples, base: Samples) -> str:
    return f"{samples.best / base.best:.2f}"


async def write_log(directory: Path) -> None:
    async with running_engine(answer, directory) as (engine, workspace):

        async def talk() -> None:
            session = await engine.create_session(workspace.id, "one of many")
            while engine.feed(workspace.id).ring.head < EVENTS:
                await play(engine, workspace.id, session.id, "Do what has to be done, and say when it is. " * 3)

        await asyncio.gather(*(talk() for _ in range(SESSIONS)))


async def replay(engine: Engine, workspace_id: str, *, keeps: bool = True) -> bytes:
    """Read all there is, up to `caught_up`."""
    chunks: list[bytes] = []
    async for chunk in engine.subscribe(workspace_id, after=0):
        if keeps:
            chunks.append(chunk)
        if b'"type":"caught_up"' in chunk:
            break
    return b"".join(chunks)


def make_bare_database(path: Path, frames: bytes) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, frame BLOB NOT NULL)")
        rows = [(frame + b"\n\n",) for frame in frames.split(b"\n\n")[:-1]]
        db.executemany("INSERT INTO events (frame) VALUES (?)", rows)
        db.commit()


def read_database(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return sum(len(row[0]) for row in db.execute("SELECT frame FROM events ORDER BY seq"))


def read_file(path: Path) -> int:
    with path.open("rb") as file:
        return sum(len(chunk) for chunk in iter(lambda: file.read(256 * 1024), b""))


if __name__ == "__main__":
    asyncio.run(main())

"""How fast does a reader that comes with `after=0` get a log of 100,000 events from the store, and in how much memory?

The frames are built again from rows, byte for byte as they were sent; the baselines only read bytes that lie ready.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from measure import MIB, answer, forget_peak, noise_told, peak_rss_bytes, play, print_table, rss_bytes, running_engine

from kedge.engine.engine import Engine

EVENTS = 100_000
SESSIONS = 50
ROUNDS = 3


async def main() -> None:
    with noise_told(), tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        await write_log(directory)
        # A new engine: its ring is empty, so that all comes from the store.
        async with running_engine(answer, directory) as (engine, workspace):
            rows: list[list[str]] = []
            for i in range(ROUNDS):
                copy = directory / "frames" if i == 0 else None
                if copy:
                    await replay(engine, workspace.id, copy)  # warm, and the bytes for the baselines
                    make_bare_database(directory)
                rows += [
                    told("the bytes, plain file (baseline)", *read_file(directory / "frames")),
                    told("the bytes, bare SELECT", *read_database(directory / "bare.db")),
                ]
                before = rss_bytes()
                forget_peak()
                began = time.perf_counter()
                size = await replay(engine, workspace.id)
                seconds = time.perf_counter() - began
                rows.append([*told("subscribe(after=0)", size, seconds), f"+{(peak_rss_bytes() - before) / MIB:.1f}"])
                base = float(rows[-3][3])
                for row in rows[-3:]:
                    row.insert(4, f"{float(row[3]) / base:.0f}")
        by_speed = sorted(rows, key=lambda row: (row[0], float(row[3])))
        best = [next(row for row in by_speed if row[0] == name) for name in dict.fromkeys(row[0] for row in rows)]
        header = ["", "events/s", "MB/s", "s", "x baseline", "MiB peak"]
        print_table(f"replay of {EVENTS:,} events, best of {ROUNDS}", header, [[*row, ""][:6] for row in best])


async def write_log(directory: Path) -> None:
    async with running_engine(answer, directory) as (engine, workspace):

        async def talk() -> None:
            session = await engine.create_session(workspace.id, "one of many")
            while engine.feed(workspace.id).ring.head < EVENTS:
                await play(engine, workspace.id, session.id, "Do what has to be done, and say when it is. " * 3)

        await asyncio.gather(*(talk() for _ in range(SESSIONS)))


async def replay(engine: Engine, workspace_id: str, copy: Path | None = None) -> int:
    """Read all there is, up to `caught_up`; returns how many bytes that was."""
    size = 0
    with copy.open("wb") if copy else tempfile.TemporaryFile() as file:
        async for chunk in engine.subscribe(workspace_id, after=0):
            if copy:
                file.write(chunk)
            size += len(chunk)
            if b'"type":"caught_up"' in chunk:
                break
    return size


def make_bare_database(directory: Path) -> None:
    with closing(sqlite3.connect(directory / "bare.db")) as db:
        db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, frame BLOB NOT NULL)")
        frames = (directory / "frames").read_bytes().split(b"\n\n")
        db.executemany("INSERT INTO events (frame) VALUES (?)", [(frame,) for frame in frames])
        db.commit()


def read_file(path: Path) -> tuple[int, float]:
    began = time.perf_counter()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(256 * 1024):
            size += len(chunk)
    return size, time.perf_counter() - began


def read_database(path: Path) -> tuple[int, float]:
    with closing(sqlite3.connect(path)) as db:
        began = time.perf_counter()
        size = sum(len(row[0]) for row in db.execute("SELECT frame FROM events ORDER BY seq"))
        return size, time.perf_counter() - began


def told(name: str, size: int, seconds: float) -> list[str]:
    return [name, f"{EVENTS / seconds:,.0f}", f"{size / 1e6 / seconds:,.0f}", f"{seconds:.4f}"]


if __name__ == "__main__":
    asyncio.run(main())

"""Honest numbers on a busy machine: samples, tables of ratios, memory as the kernel counts it, and how noisy it was.

Run alone, it says how quiet this machine is now: look at that before believing any figure.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kedge.engine.engine import Engine
from kedge.engine.turn import Turn, TurnContext
from kedge.protocol.messages import Text
from kedge.protocol.runs import Submission
from kedge.protocol.sessions import Workspace
from kedge.store.sqlite.database import connect
from kedge.store.sqlite.store import SqliteStore, random_id

sys.path.append(str(Path(__file__).parent.parent))  # some take their tools from the tests

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024


# samples and tables


@dataclass
class Samples:
    """Durations of one case, in seconds. `with samples.timed():` adds one."""

    name: str
    seconds: list[float] = field(default_factory=list[float])

    @contextmanager
    def timed(self) -> Generator[None]:
        began = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - began)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def p50(self) -> float:
        return percentile(self.seconds, 50)

    @property
    def p99(self) -> float:
        return percentile(self.seconds, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """Between the two closest ranks, linearly."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def print_latencies(title: str, cases: Sequence[Samples]) -> None:
    """Milliseconds of each case, and its ratio to the first, the baseline."""
    base = cases[0].p50
    rows = [
        [s.name, f"{s.best * 1e3:.3f}", f"{s.p50 * 1e3:.3f}", f"{s.p99 * 1e3:.3f}", f"{s.p50 / base:.1f}"]
        for s in cases
    ]
    print_table(title, ["", "best ms", "p50 ms", "p99 ms", "x baseline"], rows)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([f"  {row[0].ljust(widths[0])}", *cells]).rstrip(), flush=True)


# the machine


@contextmanager
def noise_told() -> Generator[None]:
    """Say, after the tables, how much others worked meanwhile, and whether the machine itself changed its pace."""
    pace, busy, ours, began = yardstick_ms(), busy_cpu_s(), _our_cpu_s(), time.monotonic()
    yield
    others = (busy_cpu_s() - busy) - (_our_cpu_s() - ours)
    cpus = max(0.0, others / (time.monotonic() - began))
    print(f"  noise: others used {cpus:.2f} of {os.cpu_count()} CPUs; yardstick {pace:.1f} → {yardstick_ms():.1f} ms")


def wait_quiet(limit_cpus: float = 0.3, patience_s: float = 120.0) -> None:
    """Wait until others use little of the machine; say so when they do not stop."""
    until = time.monotonic() + patience_s
    while True:
        busy, began = busy_cpu_s(), time.monotonic()
        time.sleep(1.0)
        cpus = (busy_cpu_s() - busy) / (time.monotonic() - began)
        if cpus < limit_cpus:
            return
        if time.monotonic() > until:
            print(f"  the machine is not quiet: others use {cpus:.2f} CPUs")
            return


def yardstick_ms() -> float:
    """A fixed piece of Python work: on a shared host the same work may take 1.5 times as long a minute later."""
    samples = Samples("yardstick")
    for _ in range(3):
        with samples.timed():
            sum(i * i for i in range(100_000))
    return samples.best * 1e3


def _our_cpu_s() -> float:
    """Of this process and of those that it started and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def busy_cpu_s() -> float:
    """CPU seconds used by everybody since boot."""
    fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS_PER_S


# processes


def rss_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def cpu_s_of(pid: int) -> float:
    """User and system time, in ticks of a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def forget_peak_of(pid: int) -> None:
    """Let the kernel count the peak anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_rss_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


# memory of this process


def rss_bytes() -> int:
    gc.collect()
    return rss_of(os.getpid())


def forget_peak() -> None:
    gc.collect()
    forget_peak_of(os.getpid())


def peak_rss_bytes() -> int:
    return peak_rss_of(os.getpid())


# what is measured


@asynccontextmanager
async def running_engine(turn: Turn, directory: Path | None = None) -> AsyncGenerator[tuple[Engine, Workspace]]:
    """A real engine on a real store, in a directory that goes away unless it is given."""
    with tempfile.TemporaryDirectory() as scratch:
        home = directory or Path(scratch)
        store = SqliteStore.open(home)
        engine = Engine(store, {"prompt": turn}, new_id=random_id)
        await engine.start()
        try:
            yield engine, await engine.open_workspace(home)
        finally:
            await engine.shutdown(grace_s=0)


async def answer(ctx: TurnContext) -> None:
    """The shortest turn that answers: one message with one part."""
    message = await ctx.begin_message()
    message.open(Text("")).write("Done.")
    await message.finish("end_turn")


async def play(engine: Engine, workspace_id: str, session_id: str, prompt: str = "Do it.") -> None:
    """One prompt, from acceptance to its end."""
    receipt = await engine.runs.accept(workspace_id, Submission(session_id=session_id, prompt=prompt))
    await engine.runs.wait_end(workspace_id, receipt.run_id)


@contextmanager
def bare_database() -> Generator[sqlite3.Connection]:
    """The baseline: the store's own settings, with one table and nothing around it."""
    with tempfile.TemporaryDirectory() as directory:
        db = connect(Path(directory) / "bare.db", "NORMAL")
        db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        try:
            yield db
        finally:
            db.close()


if __name__ == "__main__":
    with noise_told():
        print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} CPUs")
        time.sleep(2)

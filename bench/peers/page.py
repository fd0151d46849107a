"""What a whole run says: who was compared, on what, when, how quiet it was, and the tables; on the terminal, or between
two marks of a page."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.peers.peers import Peer
from bench.peers.table import Cell, tables

BEGIN = "<!-- peers: from here to the end mark written by `python3 dev.py bench peers --write` -->"
END = "<!-- peers: end -->"


class NoMarks(Exception):
    """One line: the page has no place for the tables."""


def report(
    cells: Sequence[Cell], compared: Sequence[Peer], missing: Sequence[Peer], rounds: int, pace_ms: tuple[float, float]
) -> str:
    day = datetime.now(UTC).date().isoformat()
    versions = ", ".join(f"{peer.name} {peer.version}" for peer in compared)
    machine = (
        f"{os.cpu_count()} CPUs ({_processor()}), {_memory_gib():.0f} GiB, {platform.system()} {platform.release()}"
    )
    setting = f"{day}: {machine}, Python {platform.python_version()}. {versions}. {rounds} rounds"
    pace = f"a fixed piece of Python work took {pace_ms[0]:.1f} ms before and {pace_ms[1]:.1f} ms after"
    left_out = ", ".join(f"{peer.name} {peer.version}" for peer in missing)
    absent = [f"Not installed, and so not compared: {left_out}."] if missing else []
    return "\n\n".join([f"{setting}; {pace}.", *absent, tables(cells)])


def write(page: Path, text: str) -> None:
    before, after = around(page)
    page.write_text(f"{before}\n\n{text.strip()}\n\n{after}")


def around(page: Path) -> tuple[str, str]:
    """What stands before the tables and after them, with the marks."""
    old = page.read_text() if page.exists() else ""
    if old.count(BEGIN) != 1 or old.count(END) != 1 or old.index(BEGIN) > old.index(END):
        raise NoMarks(f"{page} has no place for the tables: it needs one line {BEGIN!r} and, below it, one {END!r}")
    return old[: old.index(BEGIN) + len(BEGIN)], old[old.index(END) :]


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3

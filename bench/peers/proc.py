"""Processes as the kernel counts them: who comes from whom, their memory, and their CPU to the nanosecond."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_WHOLE_PROCESS = 2  # which of a process's clocks: that of the scheduler, over all its threads


def parents() -> dict[int, int]:
    """Of all processes that are here, those that wait to be buried too."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a hundred times a second
        if name.isdigit() and (fields := _stat(int(name))):
            found[int(name)] = int(fields[1])
    return found


def tree(roots: Collection[int], known: dict[int, int] | None = None) -> set[int]:
    """These and all that come from them."""
    children: dict[int, list[int]] = {}
    for pid, parent in (parents() if known is None else known).items():
        children.setdefault(parent, []).append(pid)
    found, left = set[int](), list(roots)
    while left:
        pid = left.pop()
        found.add(pid)
        left += children.get(pid, [])
    return found


def held_bytes(pids: Iterable[int]) -> int:
    """What is each one's own, and what they share once: as much as the one that shares most. PSS would give a part of
    it to whoever else on this machine runs the same interpreter."""
    told = [_memory(pid) for pid in pids]
    return sum(own for own, _ in told) + max((shared for _, shared in told), default=0)


def cpu_s(pids: Iterable[int]) -> float:
    """Of these, and of the children that they have buried."""
    return sum(map(_cpu, pids))


def _memory(pid: int) -> tuple[int, int]:
    """Its own bytes, and those that it shares with anybody."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    kib = {words[0]: int(words[1]) for line in lines[1:] if len(words := line.split()) > 1}
    own = kib.get("Private_Clean:", 0) + kib.get("Private_Dirty:", 0)
    shared = kib.get("Shared_Clean:", 0) + kib.get("Shared_Dirty:", 0)
    return own * 1024, shared * 1024


def _cpu(pid: int) -> float:
    fields = _stat(pid)
    if fields is None:
        return 0.0
    try:
        own = time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)  # what clock_getcpuclockid(3) makes of a pid
    except OSError:
        return 0.0
    return own + (int(fields[13]) + int(fields[14])) / _TICKS_PER_S


def _stat(pid: int) -> list[str] | None:
    """The fields after the name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None

"""The processes of this machine: from /proc, or from `ps` where there is none."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

MARK = "KEDGE_PROCESS"  # environment variable with a group's mark

_PROC = Path("/proc")
_STAT_BYTES = 4096  # the file is one line of about 300 bytes
# Used without /proc. The name comes last: it may contain anything.
_PS = ("/bin/ps", "-ww", "-o", "pid=,ppid=,pgid=,sess=,stat=,lstart=,comm=")
_PS_FIELDS = 11  # a start time is five words, like Tue Mar 3 09:05:07 2026
_PS_ENV = {"LC_ALL": "C", "TZ": "UTC"}  # they determine the format of start times
_PS_S = 1.0


class Process(NamedTuple):
    parent: int
    group: int
    session: int
    started: str
    name: str
    is_zombie: bool

    @classmethod
    def unknown(cls, pgid: int) -> Process:
        return cls(0, pgid, pgid, "", "?", False)


Table = Mapping[int, Process]


def read_all() -> Table | None:
    """Return all processes of the machine by pid; None if they cannot be read."""
    if not _PROC.is_dir():
        return _ask_ps("-A")
    found = {int(entry.name): _read_stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit()}
    return {pid: process for pid, process in found.items() if process is not None}


def read_one(pid: int) -> Process | None:
    return _read_stat(pid) if _PROC.is_dir() else (_ask_ps("-p", str(pid)) or {}).get(pid)


def group_by_parent(table: Table) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid, process in table.items():
        found.setdefault(process.parent, []).append(pid)
    return found


def shows_marks() -> bool:
    return _PROC.is_dir()


def find_marked(pids: Iterable[int], marks: set[str]) -> dict[str, list[int]]:
    """Return the pids that have one of these marks in their environment, by mark; without /proc, none."""
    found: dict[str, list[int]] = {}
    for pid in pids:
        mark = _read_mark(pid)
        if mark in marks:
            found.setdefault(mark, []).append(pid)
    return found


def is_exiting(pid: int) -> bool:
    """Whether a process has freed its memory, and so its mark, but still has its children."""
    try:
        tail = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return tail[0] != b"Z" and tail[20] == b"0"  # its state, its size


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended, or without /proc."""
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def own_children() -> list[int]:
    """Return the pids of our children, with adopted ones and zombies."""
    listed = _read_own_children()
    if listed is not None:
        return listed
    return [pid for pid, process in (read_all() or {}).items() if process.parent == os.getpid()]


def _read_own_children() -> list[int] | None:
    """Read them from /proc/self, if the kernel has that file: fast, however many processes there are."""
    found: list[int] = []
    tasks = _PROC / "self" / "task"
    if not (tasks / str(os.getpid()) / "children").exists():
        return None
    for task in tasks.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # of a thread that just ended
            found += map(int, (task / "children").read_bytes().split())
    return found


def _read_mark(pid: int) -> str | None:
    """Read /proc/PID/environ: the environment that the process was started with."""
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    _, found, rest = (b"\0" + environ).partition(f"\0{MARK}=".encode())
    return rest.partition(b"\0")[0].decode("utf-8", "replace") if found else None


def _read_stat(pid: int) -> Process | None:
    """Read /proc/PID/stat: pid, name in parentheses, state, parent, group, session, …, start time."""
    try:
        fd = os.open(f"{_PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)  # a third of the time that pathlib takes
        try:
            stat = os.read(fd, _STAT_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return None
    # The name may contain anything, parentheses too, and is cut at 15 bytes, also within a character.
    head, _, tail = stat.rpartition(b")")
    fields = tail.decode("ascii").split()
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return Process(int(fields[1]), int(fields[2]), int(fields[3]), fields[19], name, fields[0] == "Z")


def _ask_ps(*which: str) -> Table | None:
    try:
        done = subprocess.run((*_PS, *which), capture_output=True, env=os.environ | _PS_ENV, timeout=_PS_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found: dict[int, Process] = {}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        fields = line.split(maxsplit=_PS_FIELDS - 1)
        if len(fields) != _PS_FIELDS or not all(field.isdecimal() for field in fields[:3]):
            continue  # the rest of a name with a line break
        pid, parent, group = map(int, fields[:3])
        session = int(fields[3]) if fields[3].isdecimal() else 0  # macOS has an address there, or nothing
        found[pid] = Process(parent, group, session, " ".join(fields[5:10]), fields[10], "Z" in fields[4])
    return found or None

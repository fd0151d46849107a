"""The processes that tools start: told apart by start time, ended by group, first gently, then surely (P6, P13)."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from kedge import failpoints
from kedge.boot import boot_id
from kedge.store.port import LeftProcess

TERM_S = 2.0  # P6: how long a process may take to end by itself
KILL_S = 1.0  # what is still there then is stuck in the kernel
# Only while something is being ended: a group that is not our child can't be waited for. A look takes milliseconds on
# a machine with thousands of processes, so it is taken in a thread, for all groups at once.
_POLL_S = 0.05

_PROC = Path("/proc")
# Where there is no /proc. The name comes last: it may hold anything.
_PS = ("ps", "-ww", "-o", "pid=,pgid=,stat=,lstart=,comm=")
_PS_ENV = {"LC_ALL": "C", "TZ": "UTC"}  # of what a start time looks like
_PS_S = 1.0

# In the place of a start time that could not be had: it says at least which server started the group.
_THIS_SERVER = f"unseen-by-{secrets.token_hex(8)}"


class _Process(NamedTuple):
    group: int
    started: str
    name: str
    is_zombie: bool


def identify(pid: int) -> LeftProcess:
    """The group that `pid` leads; call it right after the start. The leader may be gone already, and leave others."""
    leader = _read_stat(pid) if _PROC.is_dir() else (_ask_ps("-p", str(pid)) or {}).get(pid)
    return LeftProcess(pid, f"{boot_id()}:{leader.started if leader else _THIS_SERVER}")


async def end_groups(groups: Iterable[LeftProcess], term_s: float = TERM_S, kill_s: float = KILL_S) -> list[str]:
    """End whole groups; returns who outlived even SIGKILL, by name and number."""
    left = await _living(groups)
    for sig, patience_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        for group in left:
            _signal(group, sig)
        if left:
            failpoints.hit("processes.told")
        left = await _wait_for_end(left, patience_s)
    return [member for members in left.values() for member in members]


def members(groups: Iterable[LeftProcess]) -> dict[LeftProcess, list[str]]:
    """The groups that have living members, and who these are. Looks at all processes: not for the loop."""
    table = _processes()
    if table is None:
        # Without start times only who started a group knows that it is the same.
        return {group: [_label("?", group.pgid)] for group in groups if group.started.endswith(_THIS_SERVER)}
    found: dict[LeftProcess, list[str]] = {}
    for group in groups:
        if not _is_the_recorded_one(group, table.get(group.pgid)):
            continue
        members = [_label(p.name, pid) for pid, p in table.items() if p.group == group.pgid and not p.is_zombie]
        if members:
            found[group] = members
    return found


async def _wait_for_end(groups: Iterable[LeftProcess], patience_s: float) -> dict[LeftProcess, list[str]]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    left = await _living(groups)
    while left and loop.time() < deadline:
        await asyncio.sleep(_POLL_S)
        left = await _living(left)
    return left


def _signal(group: LeftProcess, sig: signal.Signals) -> None:
    try:
        os.killpg(group.pgid, sig)
    except (ProcessLookupError, PermissionError):
        pass  # it ended meanwhile, or is not ours any more


async def _living(groups: Iterable[LeftProcess]) -> dict[LeftProcess, list[str]]:
    """The groups that still have living members, and who these are."""
    # The kernel knows at once which are gone; but it counts the dead that nobody has collected, and strangers.
    present = [group for group in groups if group.pgid > 1 and _exists(group.pgid)]
    return await asyncio.to_thread(members, present) if present else {}


def _exists(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_the_recorded_one(group: LeftProcess, leader: _Process | None) -> bool:
    """Its number may belong to another by now; while any member lives, the kernel gives it to nobody else."""
    boot, _, started = group.started.partition(":")
    return boot == boot_id() and (leader is None or leader.started == started)


def _label(name: str, pid: int) -> str:
    return f"{name} (process {pid})"


def _processes() -> Mapping[int, _Process] | None:
    """All processes of the machine by number; None if it does not say."""
    if not _PROC.is_dir():
        return _ask_ps("-A")
    found = {int(entry.name): _read_stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit()}
    return {pid: process for pid, process in found.items() if process is not None}


def _read_stat(pid: int) -> _Process | None:
    """From /proc/PID/stat: the number, the name in brackets, then state, parent, group, …, the start time."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name may hold anything, brackets too, and is cut at 15 bytes, also within a character.
    head, _, tail = stat.rpartition(b")")
    fields = tail.decode("ascii").split()
    return _Process(int(fields[2]), fields[19], head.partition(b"(")[2].decode("utf-8", "replace"), fields[0] == "Z")


def _ask_ps(*which: str) -> Mapping[int, _Process] | None:
    try:
        done = subprocess.run((*_PS, *which), capture_output=True, env=os.environ | _PS_ENV, timeout=_PS_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found: dict[int, _Process] = {}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        fields = line.split(maxsplit=8)  # a start time is five words, like Tue Mar 3 09:05:07 2026
        if len(fields) == 9 and fields[0].isdecimal() and fields[1].isdecimal():  # else it is the rest of a name
            found[int(fields[0])] = _Process(int(fields[1]), " ".join(fields[3:8]), fields[8], "Z" in fields[2])
    return found or None

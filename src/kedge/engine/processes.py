"""The processes that tools start: told apart by start time, ended by group, first gently, then surely (P6, P13)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from kedge import failpoints
from kedge.store.port import LeftProcess

TERM_S = 2.0  # P6: how long a process may take to end by itself
KILL_S = 1.0  # what is still there then is stuck in the kernel
_POLL_S = 0.02  # only while something is being ended: a group that is not our child can't be waited for

_PROC = Path("/proc")


def identify(pid: int) -> LeftProcess:
    """The group that `pid` leads; call it right after the start. The leader may be gone already, and leave others."""
    return LeftProcess(pid, _start_time(pid) or f"{_boot()}:")


async def end_groups(groups: Iterable[LeftProcess], term_s: float = TERM_S, kill_s: float = KILL_S) -> list[str]:
    """End whole groups; returns who outlived even SIGKILL, by name and number."""
    left = [group for group in groups if _members(group)]
    for sig, patience_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        for group in left:
            _signal(group, sig)
        if left:
            failpoints.hit("processes.told")
        left = await _wait_for_end(left, patience_s)
    return [f"{_name(pid)} (process {pid})" for group in left for pid in _members(group)]


async def _wait_for_end(groups: Sequence[LeftProcess], patience_s: float) -> list[LeftProcess]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    left = [group for group in groups if _members(group)]
    while left and loop.time() < deadline:
        await asyncio.sleep(_POLL_S)
        left = [group for group in left if _members(group)]
    return left


def _signal(group: LeftProcess, sig: signal.Signals) -> None:
    try:
        os.killpg(group.pgid, sig)
    except (ProcessLookupError, PermissionError):
        pass  # it ended meanwhile, or is not ours any more


def _members(group: LeftProcess) -> list[int]:
    """Living members of the group, if it is still the one that was recorded."""
    if group.pgid <= 1:
        return []
    leader = _start_time(group.pgid)
    if leader is not None and leader != group.started:
        return []  # the number belongs to another process by now
    if not _PROC.is_dir():
        return [group.pgid] if _group_exists(group.pgid) else []
    if not _same_boot(group):
        return []
    stats = [(int(entry.name), _stat(int(entry.name))) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid, stat in stats if stat and int(stat[2]) == group.pgid and stat[0] != "Z"]


def _group_exists(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_time(pid: int) -> str | None:
    stat = _stat(pid)
    return None if stat is None else f"{_boot()}:{stat[19]}"


def _same_boot(group: LeftProcess) -> bool:
    return group.started.partition(":")[0] == _boot()


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may hold anything: state, parent, group, …"""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return "?"

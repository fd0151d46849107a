"""Process groups that tools start: identified by start time, and ended with all their processes (P6, P13).

A group's processes have its pgid, its session or its control group, or its mark in their environment; their descendants
belong to it, too. They get SIGTERM first, then SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import signal
from collections.abc import AsyncGenerator, Iterable

from kedge import failpoints
from kedge.boot import boot_id
from kedge.engine.processes import cgroups, process_table, reaper
from kedge.engine.processes.process_table import Process, Table
from kedge.store.port import ProcessRecord

TERM_S = 2.0  # P6: how long a process may take to end by itself
KILL_S = 1.0  # a process that is still there then is stuck in the kernel
# Polling, because only children can be waited for. Reading the process table takes milliseconds on a machine with
# thousands of processes, so it is done in a thread, for all groups at once.
_POLLS_S = (0.005, 0.01, 0.02, 0.05)  # the last one is repeated

_MAX_CHILD_LOOKS = 100  # while some of our children are dying: a moment, unless the kernel is stuck

# Instead of a start time that could not be read: it says at least which server started the group.
_THIS_SERVER = f"unseen-by-{secrets.token_hex(8)}"

Family = dict[int, Process]  # by number
Families = dict[ProcessRecord, Family]


def identify(pid: int) -> ProcessRecord:
    """Return the record of the group that `pid` leads. Call it right after the start: the leader may end early."""
    leader = process_table.read_one(pid)
    return ProcessRecord(pid, f"{boot_id()}:{leader.started if leader else _THIS_SERVER}")


def mark_of(group: ProcessRecord) -> str:
    """Return the value that marks a group's processes in their environment, and names its control group."""
    return hashlib.sha256(f"{group.pgid} {group.started}".encode()).hexdigest()[:32]


@contextlib.asynccontextmanager
async def join_cgroup(group: ProcessRecord) -> AsyncGenerator[None]:
    """Move the group's leader, which waits for its start, into a control group, if there can be one."""
    if not cgroups.create(mark_of(group)):
        yield
        return
    joining = asyncio.get_running_loop().run_in_executor(None, cgroups.join, mark_of(group), group.pgid)
    try:
        yield
    finally:
        await joining


async def end_left(groups: Iterable[ProcessRecord], term_s: float = TERM_S, kill_s: float = KILL_S) -> list[str]:
    """End groups of an earlier server, after finding their control groups."""
    groups = list(groups)
    if groups:
        await asyncio.to_thread(cgroups.find, map(mark_of, groups))
    return await end_groups(groups, term_s, kill_s)


async def end_groups(groups: Iterable[ProcessRecord], term_s: float = TERM_S, kill_s: float = KILL_S) -> list[str]:
    """End groups with all their processes; returns the names and pids of those that outlived SIGKILL."""
    groups = list(groups)
    left = await _find_alive(groups)
    for sig, timeout_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        left = await _signal_and_wait(left, sig, timeout_s)
    for group in groups:
        if group not in left:
            cgroups.remove(mark_of(group))
    return [name for family in left.values() for name in _names(family)]


async def members(group: ProcessRecord) -> list[str]:
    """Return the names and pids of the living processes of a group of this server."""
    # The usual end of a command: reading the whole process table is not needed.
    if not _exists(group.pgid) and not cgroups.is_populated(mark_of(group)):
        if not process_table.shows_marks():
            return []  # processes that left the group cannot be recognized
        if reaper.is_running() and not await asyncio.to_thread(_has_orphans, group):
            return []
    return [name for family in (await _find_surely_alive([group])).values() for name in _names(family)]


async def memory_bytes(group: ProcessRecord) -> int:
    """Return the resident memory of all processes of a group; 0 where it cannot be read."""

    def add_up() -> int:
        pids = [pid for family in find_families([group]).values() for pid in family]
        return sum(map(process_table.memory_bytes, pids))

    return await asyncio.to_thread(add_up)


def _has_orphans(group: ProcessRecord) -> bool:
    """Whether this server adopted an orphan of the group; if unknown, True."""
    known: set[int] = set()
    for _ in range(_MAX_CHILD_LOOKS):
        children = set(process_table.own_children())
        if process_table.find_marked(children, {mark_of(group)}):
            return True
        if children <= known and not any(map(process_table.is_exiting, children)):
            return False  # no child died during the check and left an orphan
        known = children
    return True


def find_families(groups: Iterable[ProcessRecord]) -> Families:
    """Return the living processes of each group that has any. Reads all processes: blocks."""
    # For killpg, group 0 is our own; 1 is init's.
    groups = [group for group in groups if group.pgid > 1 and group.started.startswith(f"{boot_id()}:")]
    if not groups:
        return {}
    table = process_table.read_all()
    if table is None:
        # Without start times, only a group of this server is known to be the same one.
        ours = [group for group in groups if group.started.endswith(_THIS_SERVER) and _exists(group.pgid)]
        return {group: {group.pgid: Process.unknown(group.pgid)} for group in ours}
    enclosed = {mark_of(group): cgroups.members(mark_of(group)) for group in groups}
    born = {pid: process_table.read_one(pid) for pids in enclosed.values() for pid in pids if pid not in table}
    table = {**table, **{pid: process for pid, process in born.items() if process is not None}}
    marked = process_table.find_marked(table, set(enclosed))
    children = process_table.group_by_parent(table)
    found: Families = {}
    for group in groups:
        mark = mark_of(group)
        family = _collect_family(group, table, {*marked.get(mark, ()), *enclosed[mark]} & table.keys(), children)
        if family:
            found[group] = family
    return found


def _collect_family(group: ProcessRecord, table: Table, known: Iterable[int], children: dict[int, list[int]]) -> Family:
    """Return the group's members and the `known` processes, with all their descendants, but never this process."""
    due = list(known)
    if _is_recorded_group(group, table.get(group.pgid)):
        due += [pid for pid, process in table.items() if group.pgid in (process.group, process.session)]
    found: Family = {}
    while due:
        pid = due.pop()
        if pid not in found and pid > 1 and pid != os.getpid():
            found[pid] = table[pid]
            due += children.get(pid, ())
    return {pid: process for pid, process in found.items() if not process.is_zombie}


def _is_recorded_group(group: ProcessRecord, leader: Process | None) -> bool:
    """Whether the pgid was not reused: the kernel reuses it only when no member is alive."""
    return leader is None or leader.started == group.started.partition(":")[2]


async def _signal_and_wait(left: Families, sig: signal.Signals, timeout_s: float) -> Families:
    """Signal all processes, also new ones, and wait for their end; returns those that are left."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    signaled: set[tuple[int, str]] = set()
    groups = list(left)
    polls = 0
    while left:
        if _signal_new(left, sig, signaled):
            failpoints.hit("processes.told")
        if polls and loop.time() >= deadline:
            break
        await asyncio.sleep(min(_POLLS_S[min(polls, len(_POLLS_S) - 1)], max(deadline - loop.time(), 0)))
        left = await _find_surely_alive(groups)
        polls += 1
    return left


def _signal_new(left: Families, sig: signal.Signals, signaled: set[tuple[int, str]]) -> bool:
    """Signal processes that did not get the signal yet; returns whether there were any."""
    before = len(signaled)
    for group, family in left.items():
        fresh = {pid: process for pid, process in family.items() if (pid, process.started) not in signaled}
        signaled.update((pid, process.started) for pid, process in fresh.items())
        if fresh and sig is signal.SIGKILL:
            cgroups.kill(mark_of(group))
        if any(process.group == group.pgid for process in fresh.values()):
            _signal_group(group.pgid, sig)  # all at once: no member sees another die and restarts it
        for pid, process in fresh.items():
            if process.group != group.pgid:
                _signal(pid, process, sig)
    return len(signaled) > before


def _signal_group(pgid: int, sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended meanwhile, or is not ours any more
        os.killpg(pgid, sig)


def _signal(pid: int, process: Process, sig: signal.Signals) -> None:
    """Signal a process unless its pid was reused since it was read."""
    now = process_table.read_one(pid)
    if now is not None and now.started == process.started:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sig)


async def _find_surely_alive(groups: Iterable[ProcessRecord]) -> Families:
    """Read the table twice if it shows none: a process that forks while it dies can be missed once."""
    return await _find_alive(groups) or await _find_alive(groups)


async def _find_alive(groups: Iterable[ProcessRecord]) -> Families:
    groups = list(groups)
    return await asyncio.to_thread(find_families, groups) if groups else {}


def _exists(pgid: int) -> bool:
    """Whether the kernel knows the group; zombies and a reused number count, too."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _names(family: Family) -> list[str]:
    return [f"{process.name} (process {pid})" for pid, process in sorted(family.items())]

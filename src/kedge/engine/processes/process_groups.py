"""The processes that tools start: told apart by start time, ended with all that came of them (P6, P13).

Of a group come its members, who stayed in its session, and whoever left both: they are in its control group, if it has
one, or carry its mark in their environment, or descend from one who does. First they are told to end, then killed.
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
KILL_S = 1.0  # what is still there then is stuck in the kernel
# Only while something is being ended: who is not our child can't be waited for. A look takes milliseconds on a machine
# with thousands of processes, so it is taken in a thread, for all groups at once.
_POLLS_S = (0.005, 0.01, 0.02, 0.05)  # the last one again and again

_LOOKS_MOST = 100  # at our own children, while some of them are dying: a moment, unless the kernel is stuck

# In the place of a start time that could not be had: it says at least which server started the group.
_THIS_SERVER = f"unseen-by-{secrets.token_hex(8)}"

Family = dict[int, Process]  # by number
Families = dict[ProcessRecord, Family]


def identify(pid: int) -> ProcessRecord:
    """The group that `pid` leads; call it right after the start. The leader may be gone already, and leave others."""
    leader = process_table.one(pid)
    return ProcessRecord(pid, f"{boot_id()}:{leader.started if leader else _THIS_SERVER}")


def mark_of(group: ProcessRecord) -> str:
    """What the environment of a group's processes holds, and names its control group: so who left it is known."""
    return hashlib.sha256(f"{group.pgid} {group.started}".encode()).hexdigest()[:32]


@contextlib.asynccontextmanager
async def enclosing(group: ProcessRecord) -> AsyncGenerator[None]:
    """Meanwhile the leader, who waits, joins a control group, if there can be one: all its children will be there."""
    if not cgroups.make(mark_of(group)):
        yield
        return
    joined = asyncio.get_running_loop().run_in_executor(None, cgroups.join, mark_of(group), group.pgid)
    try:
        yield
    finally:
        await joined


async def end_left(groups: Iterable[ProcessRecord], term_s: float = TERM_S, kill_s: float = KILL_S) -> list[str]:
    """End what an earlier server started, who cannot say any more where it is."""
    groups = list(groups)
    if groups:
        await asyncio.to_thread(cgroups.find, map(mark_of, groups))
    return await end_groups(groups, term_s, kill_s)


async def end_groups(groups: Iterable[ProcessRecord], term_s: float = TERM_S, kill_s: float = KILL_S) -> list[str]:
    """End groups and whatever came of them; returns who outlived even SIGKILL, by name and number."""
    groups = list(groups)
    left = await _living(groups)
    for sig, patience_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        left = await _end(left, sig, patience_s)
    for group in groups:
        if group not in left:
            cgroups.remove(mark_of(group))
    return [name for family in left.values() for name in _names(family)]


async def members(group: ProcessRecord) -> list[str]:
    """Who is still alive of a group of this server, by name and number."""
    # The usual end of a command: nobody needs to look at the whole machine.
    if not _exists(group.pgid) and not cgroups.is_populated(mark_of(group)):
        if not process_table.shows_marks():
            return []  # who left it cannot be told from others
        if reaper.is_at_work() and not await asyncio.to_thread(_has_orphans, group):
            return []
    return [name for family in (await _surely_living([group])).values() for name in _names(family)]


def _has_orphans(group: ProcessRecord) -> bool:
    """Whether a child of a group of this server came back to us, who adopt orphans; in doubt, yes."""
    known: set[int] = set()
    for _ in range(_LOOKS_MOST):
        children = set(process_table.own_children())
        if process_table.marked(children, {mark_of(group)}):
            return True
        if children <= known and not any(map(process_table.is_leaving, children)):
            return False  # whoever died while we looked has left nobody to us
        known = children
    return True


def families(groups: Iterable[ProcessRecord]) -> Families:
    """The groups of which somebody lives, and who that is. Looks at all processes: not for the loop."""
    # To the kernel, group 0 is our own, and 1 is where everything hangs.
    groups = [group for group in groups if group.pgid > 1 and group.started.startswith(f"{boot_id()}:")]
    if not groups:
        return {}
    table = process_table.look()
    if table is None:
        # Without start times only who started a group knows that it is the same.
        ours = [group for group in groups if group.started.endswith(_THIS_SERVER) and _exists(group.pgid)]
        return {group: {group.pgid: Process.unknown(group.pgid)} for group in ours}
    enclosed = {mark_of(group): cgroups.members(mark_of(group)) for group in groups}
    born = {pid: process_table.one(pid) for pids in enclosed.values() for pid in pids if pid not in table}
    table = {**table, **{pid: process for pid, process in born.items() if process is not None}}
    marked = process_table.marked(table, set(enclosed))
    children = process_table.children(table)
    found: Families = {}
    for group in groups:
        mark = mark_of(group)
        family = _family(group, table, {*marked.get(mark, ()), *enclosed[mark]} & table.keys(), children)
        if family:
            found[group] = family
    return found


def _family(group: ProcessRecord, table: Table, known: Iterable[int], children: dict[int, list[int]]) -> Family:
    """Its members and those known for its, with all their descendants; we ourselves are nobody's."""
    due = list(known)
    if _is_the_recorded_one(group, table.get(group.pgid)):
        due += [pid for pid, process in table.items() if group.pgid in (process.group, process.session)]
    found: Family = {}
    while due:
        pid = due.pop()
        if pid not in found and pid > 1 and pid != os.getpid():
            found[pid] = table[pid]
            due += children.get(pid, ())
    return {pid: process for pid, process in found.items() if not process.is_zombie}


def _is_the_recorded_one(group: ProcessRecord, leader: Process | None) -> bool:
    """Its number may belong to another by now; while any member lives, the kernel gives it to nobody else."""
    return leader is None or leader.started == group.started.partition(":")[2]


async def _end(left: Families, sig: signal.Signals, patience_s: float) -> Families:
    """Send a signal to all, also to those that are born meanwhile, and wait for their end."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    told: set[tuple[int, str]] = set()
    groups = list(left)
    polls = 0
    while left:
        if _tell(left, sig, told):
            failpoints.hit("processes.told")
        if polls and loop.time() >= deadline:
            break
        await asyncio.sleep(min(_POLLS_S[min(polls, len(_POLLS_S) - 1)], max(deadline - loop.time(), 0)))
        left = await _surely_living(groups)
        polls += 1
    return left


def _tell(left: Families, sig: signal.Signals, told: set[tuple[int, str]]) -> bool:
    """Whether there was anybody who had not been told."""
    before = len(told)
    for group, family in left.items():
        fresh = {pid: process for pid, process in family.items() if (pid, process.started) not in told}
        told.update((pid, process.started) for pid, process in fresh.items())
        if fresh and sig is signal.SIGKILL:
            cgroups.kill(mark_of(group))
        if any(process.group == group.pgid for process in fresh.values()):
            _signal_group(group.pgid, sig)  # at once, so that no member sees another die and starts a new one
        for pid, process in fresh.items():
            if process.group != group.pgid:
                _signal(pid, process, sig)
    return len(told) > before


def _signal_group(pgid: int, sig: signal.Signals) -> None:
    try:
        os.killpg(pgid, sig)
    except (ProcessLookupError, PermissionError):
        pass  # it ended meanwhile, or is not ours any more


def _signal(pid: int, process: Process, sig: signal.Signals) -> None:
    """Nobody but the process that was looked at: its number may have passed to another since."""
    try:
        now = process_table.one(pid)
        if now is not None and now.started == process.started:
            os.kill(pid, sig)
    except (ProcessLookupError, PermissionError):
        pass


async def _surely_living(groups: Iterable[ProcessRecord]) -> Families:
    """A look takes its time, and one that starts another while it dies can slip through it: it is not seen twice."""
    return await _living(groups) or await _living(groups)


async def _living(groups: Iterable[ProcessRecord]) -> Families:
    groups = list(groups)
    return await asyncio.to_thread(families, groups) if groups else {}


def _exists(pgid: int) -> bool:
    """Whether the kernel knows the group; it counts the dead that nobody has collected, and strangers."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _names(family: Family) -> list[str]:
    return [f"{process.name} (process {pid})" for pid, process in sorted(family.items())]

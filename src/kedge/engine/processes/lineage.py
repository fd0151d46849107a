"""Whether a process descends from this server: the agent's commands do, people's own programs do not.

A descendant stays one: the server adopts orphans (`reaper`), so that the chain of parents always leads here. On Linux
only; elsewhere no process counts as a descendant.
"""

from __future__ import annotations

import functools
import os
import select
from collections.abc import Container

from kedge.engine.processes import process_table, reaper
from kedge.engine.processes.process_table import Process

_TRIES = 10  # a parent may end during the check: then its child has another


class _Vanished(Exception):
    """A process ended during the check."""


def is_agents(pid: int, pidfd: int | None, exempt: Container[int]) -> bool:
    """Whether process `pid` is the agent's; True if unknown, for example if it has ended.

    `pidfd`: a descriptor of the same process, if there is one; it shows that the pid was not reused. `exempt`: sessions
    (of `setsid`) that a person started. No process can join the session of another.
    """
    if not reaper.is_running() or pid in (0, os.getpid()):
        return False  # 0: outside of our namespace, without our descendants
    for _ in range(_TRIES):
        try:
            line = _find_ancestors(pid)
        except _Vanished:
            continue
        if pidfd is not None and _has_ended(pidfd):
            return True
        return line is not None and not any(process.session in exempt for process in line)
    return True


def _find_ancestors(pid: int) -> list[Process] | None:
    """Return the process and its ancestors below this server; None if it is no descendant. Takes microseconds."""
    own, own_start = os.getpid(), _own_start()
    line: list[Process] = []
    while pid != own:
        process = process_table.read_one(pid) if pid > 1 else None
        if process is None:
            if pid <= 1 or is_hidden(pid):
                return None
            raise _Vanished
        start = int(process.started)
        if start < own_start:
            return None  # it is older than this server
        if line and start > int(line[-1].started):
            raise _Vanished  # the parent has ended, and its pid was reused
        line.append(process)
        pid = process.parent
    return line


def is_hidden(pid: int) -> bool:
    """Whether a process exists but is hidden, being another user's (hidepid). Our descendants have no such parent by
    forking alone."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False


@functools.cache
def _own_start() -> int:
    own = process_table.read_one(os.getpid())
    return int(own.started) if own is not None else 0


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))

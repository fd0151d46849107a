"""Whether a process descends from this server: what the agent starts does, and people's own programs do not.

A descendant stays one: the server adopts orphans (`reaper`), so that the way from parent to parent always leads here.
Linux only; elsewhere nothing is known, and everybody passes for a stranger.
"""

from __future__ import annotations

import functools
import os
import select
from collections.abc import Container

from kedge.engine.processes import process_table, reaper
from kedge.engine.processes.process_table import Process

_TRIES = 10  # a parent may end while we look: then its child has another


class _Vanished(Exception):
    """A process ended while we looked."""


def is_agents(pid: int, pidfd: int | None, exempt: Container[int]) -> bool:
    """Whether process `pid` is the agent's; in doubt, as when it has ended, it is.

    `pidfd`: a descriptor of the same process, where there is one; it shows that the number was not given to another
    meanwhile. `exempt`: sessions (of `setsid`) that a person started. No process can join the session of another.
    """
    if not reaper.is_at_work() or pid in (0, os.getpid()):
        return False  # 0: outside of our namespace, where no descendant can be
    for _ in range(_TRIES):
        try:
            line = _ancestors(pid)
        except _Vanished:
            continue
        if pidfd is not None and _has_ended(pidfd):
            return True
        return line is not None and not any(process.session in exempt for process in line)
    return True


def _ancestors(pid: int) -> list[Process] | None:
    """The process and its parents below this server; None if they do not lead here. Takes microseconds."""
    own, own_start = os.getpid(), _own_start()
    line: list[Process] = []
    while pid != own:
        process = process_table.one(pid) if pid > 1 else None
        if process is None:
            if pid <= 1 or is_hidden(pid):
                return None
            raise _Vanished
        start = int(process.started)
        if start < own_start:
            return None  # it was there before us
        if line and start > int(line[-1].started):
            raise _Vanished  # the parent has ended, and its number is another's
        line.append(process)
        pid = process.parent
    return line


def is_hidden(pid: int) -> bool:
    """Whether a process is there but another user's, which some machines do not show (hidepid). Nobody has one among
    their parents by forking alone."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False


@functools.cache
def _own_start() -> int:
    own = process_table.one(os.getpid())
    return int(own.started) if own is not None else 0


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))

"""The server adopts orphaned processes of tools, so that it can find them, and reaps them when they are dead.

On Linux the server can become the parent of orphans among its descendants (subreaper). It must then wait for them,
without reaping children that other code waits for.

So the chain of parents of every process that a tool started leads here (`is_agents`), and that of people's own programs
does not. Elsewhere no process counts as a descendant.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import select
import signal
import sys
from collections.abc import Container

from kedge.engine.processes import process_table
from kedge.engine.processes.process_table import Process

_PR_SET_CHILD_SUBREAPER = 36
# Code that starts a child waits for it: a zombie that is older than this is an orphan.
REAP_AFTER_S = 5.0

_running: Reaper | None = None


def is_running() -> bool:
    return _running is not None


class Reaper:
    """Adopts orphans from `start` to `close`. Only one at a time, in the main thread."""

    def __init__(self, reap_after_s: float = REAP_AFTER_S) -> None:
        self._reap_after_s = reap_after_s
        self._timer: asyncio.TimerHandle | None = None
        self._dead: set[tuple[int, str]] = set()  # zombies found by the last check

    def start(self) -> bool:
        """Return whether this machine supports it; if not, orphans are found by their mark only."""
        global _running
        if not _set_subreaper(True):
            return False
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._check_later)
        _running = self
        return True

    def close(self) -> None:
        global _running
        if _running is not self:
            return
        _running = None
        _set_subreaper(False)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        if self._timer is not None:
            self._timer.cancel()

    def _check_later(self) -> None:
        """Called when a child died. The code that started it may reap it first."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._reap_after_s, self._check)

    def _check(self) -> None:
        self._timer = None
        dead = {(pid, process.started) for pid, process in _find_zombies() if process.session != os.getsid(0)}
        for pid, _ in dead & self._dead:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._dead = dead - self._dead
        if self._dead:
            self._check_later()


def _find_zombies() -> list[tuple[int, process_table.Process]]:
    found = [(pid, process_table.read_one(pid)) for pid in process_table.own_children()]
    return [(pid, process) for pid, process in found if process is not None and process.is_zombie]


def _set_subreaper(is_one: bool) -> bool:
    if sys.platform != "linux":
        return False
    try:
        return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_one), 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


_TRIES = 10  # a parent may end during the check: then its child has another


class _Vanished(Exception):
    """A process ended during the check."""


def is_agents(pid: int, pidfd: int | None, exempt: Container[int]) -> bool:
    """Whether process `pid` is the agent's; True if unknown, for example if it has ended.

    `pidfd`: a descriptor of the same process, if there is one; it shows that the pid was not reused. `exempt`: sessions
    (of `setsid`) that a person started. No process can join the session of another.
    """
    if not is_running() or pid in (0, os.getpid()):
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

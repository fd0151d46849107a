"""The server adopts orphaned processes of tools, so that it can find them, and reaps them when they are dead.

On Linux the server can become the parent of orphans among its descendants (subreaper). It must then wait for them,
without reaping children that other code waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys

from kedge.engine.processes import process_table

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

"""Orphans of tools come back to the server, which so knows them and fetches them when they are dead.

On Linux a process whose parent ended can be handed to the server instead of to the system. The server must then wait
for it, without taking from others the children they wait for themselves.
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
# Whoever starts a child waits for it: dead for longer than that, it is an orphan that only we can fetch.
FETCH_AFTER_S = 5.0

_at_work: Reaper | None = None


def is_at_work() -> bool:
    return _at_work is not None


class Reaper:
    """From `start` to `close` this process adopts the orphans among its descendants. Only one, in the main thread."""

    def __init__(self, fetch_after_s: float = FETCH_AFTER_S) -> None:
        self._fetch_after_s = fetch_after_s
        self._timer: asyncio.TimerHandle | None = None
        self._dead: set[tuple[int, str]] = set()  # seen at the last look

    def start(self) -> bool:
        """Whether this machine lets us; where not, orphans are found by their mark alone."""
        global _at_work
        if not _set_subreaper(True):
            return False
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._look_later)
        _at_work = self
        return True

    def close(self) -> None:
        global _at_work
        if _at_work is not self:
            return
        _at_work = None
        _set_subreaper(False)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        """Some child died. Its owner has the first chance."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._fetch_after_s, self._look)

    def _look(self) -> None:
        self._timer = None
        dead = {(pid, process.started) for pid, process in _dead_children() if process.session != os.getsid(0)}
        for pid, _ in dead & self._dead:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._dead = dead - self._dead
        if self._dead:
            self._look_later()


def _dead_children() -> list[tuple[int, process_table.Process]]:
    found = [(pid, process_table.one(pid)) for pid in process_table.own_children()]
    return [(pid, process) for pid, process in found if process is not None and process.is_zombie]


def _set_subreaper(is_one: bool) -> bool:
    if sys.platform != "linux":
        return False
    try:
        return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_one), 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False

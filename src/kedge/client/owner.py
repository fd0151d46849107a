"""The process that owns a data directory, and when it is gone: that is a moment after it has given the directory up."""

from __future__ import annotations

import contextlib
import os
import time

from kedge.client.waiting import Waiter
from kedge.protocol.address import OWNER_FILE

LOOK_AGAIN_S = 0.02


class Owner:
    """Looked up while it is there: later its number may be another's."""

    def __init__(self, data_dir: str) -> None:
        self._pid = owner_pid(data_dir)
        self._fd = -1  # readable once it has ended, also if nobody has asked how
        if self._pid is not None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._fd = os.pidfd_open(self._pid)

    def await_end(self, waiter: Waiter, timeout_s: float) -> None:
        """Return when it is gone, or the time over. One that cannot be seen from here is not waited for."""
        until = time.monotonic() + timeout_s
        if self._fd >= 0:
            while (left_s := until - time.monotonic()) > 0 and not waiter.wait(self._fd, left_s):
                pass
        elif self._pid is not None:
            while _is_there(self._pid) and time.monotonic() < until:
                waiter.pause(LOOK_AGAIN_S)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def owner_pid(data_dir: str) -> int | None:
    """The process that took the directory last; `spawn.is_free` says whether it still has it."""
    try:
        with open(os.path.join(data_dir, OWNER_FILE), encoding="ascii", errors="replace") as file:
            word, number = file.read(100).split()
            return int(number) if word == "process" and int(number) > 1 else None
    except (OSError, ValueError):
        return None


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True

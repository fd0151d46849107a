"""Limits of a command that runs without approval: time, memory, file size and number of processes.

They are set on the process that becomes the command, never on the server.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from pathlib import Path

import msgspec

_MIB = 1024 * 1024
_COUNT_AGAIN_S = 5.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`data_bytes` applies to each process, `memory_bytes` and `processes` to all of them together."""

    default_timeout_s: float = 120.0
    max_timeout_s: float = 600.0
    # The heap of one process. Address space is not limited: Node.js and Go reserve far more than they use.
    data_bytes: int = 2048 * _MIB
    file_bytes: int = 1024 * _MIB
    # Only with a control group that has the controllers.
    memory_bytes: int = 4096 * _MIB
    processes: int = 512

    def timeout_s(self, asked_s: float | None) -> float:
        return self.default_timeout_s if asked_s is None else min(asked_s, self.max_timeout_s)


UNAPPROVED = Limits()


def set_limits(pid: int, limits: Limits) -> None:
    """Limit a process that was just started, and all its children. It may have ended already."""
    if sys.platform != "linux":
        return
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: limits.data_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
    }
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        uid = Path(f"/proc/{pid}").stat().st_uid
        if uid != 0:  # the kernel does not count root's processes
            wanted[resource.RLIMIT_NPROC] = _tasks.count(uid) + limits.processes
        for which, most in wanted.items():
            _, hard = resource.prlimit(pid, which)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, which, (most, most))


class _Tasks:
    """Counts the threads of a user, as RLIMIT_NPROC does; a count is reused for a few seconds."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[float, int]] = {}  # by user

    def count(self, uid: int) -> int:
        now = time.monotonic()
        counted_at, count = self._counts.get(uid, (float("-inf"), 0))
        if now - counted_at > _COUNT_AGAIN_S:
            counted_at, count = now, _count_tasks(uid)
            self._counts[uid] = (counted_at, count)
        return count


_tasks = _Tasks()


def _count_tasks(uid: int) -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            info = (process / "task").stat()
            count += (info.st_nlink - 2) * (info.st_uid == uid)  # a link for each thread
    return count

"""The policy of a sandboxed command: writable and hidden paths, network; and the `LaunchSpec` that enforces it.

Limits (time, memory, file size, processes) are set on the process that becomes the command, never on the server.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

_MIB = 1024 * 1024
_COUNT_AGAIN_S = 5.0


class SandboxUnavailable(Exception):
    """The requested sandbox cannot be used on this machine; `why` is a clause for the user."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Paths are absolute and resolved. Where two of them conflict, the deeper one applies."""

    temporary: str  # a writable directory of its own
    writable: tuple[str, ...] = ()  # with everything below
    protected: tuple[str, ...] = ()  # below a writable directory, but read-only
    hidden: tuple[str, ...] = ()  # may not exist yet
    readable: tuple[str, ...] = ()  # although below a hidden or replaced directory
    network: bool = True
    unix_sockets: bool = False


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


class LaunchSpec(NamedTuple):
    """How to start a sandboxed command."""

    backend: str
    prefix: tuple[str, ...]  # words before the command
    restrict: Callable[[], None]  # called in the thread that starts the command and ends with it
    env: Mapping[str, str]
    description: str  # of the sandbox, for the model, when something fails
    supervisor: str = ""  # name of the process that lives as long as the command's processes
    limits: Limits | None = None  # of a command that runs without approval
    temporary: str = ""  # where an unapproved command may write
    # The same, but only this directory below `temporary` is writable: each command gets its own.
    with_temporary: Callable[[str], LaunchSpec] | None = None


_MAX_LINKS = 40  # as in the kernel
HOMES = ("/home", "/Users")
ROOT_HOME = "/root"
# They lead to programs outside, that would do what is asked of them.
OUTSIDE_VARIABLES = frozenset(
    {"SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"}
)


def temporary_variables(temporary: str) -> dict[str, str]:
    return dict.fromkeys(("TMPDIR", "TMP", "TEMP"), temporary)


def describe_policy(policy: SandboxPolicy) -> str:
    """For the model, when a command failed."""
    writable = [*policy.writable, "$TMPDIR"]
    network = "the network can be used" if policy.network else "there is no network"
    return f"it ran in a sandbox: it can write only below {', '.join(writable)}, and {network}"


def is_below(path: str, directory: str) -> bool:
    """Whether a path is a directory or below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def is_around_a_home(path: str, homes: tuple[str, ...]) -> bool:
    """Whether a home is below a path: one of these, or another user's."""
    if path in (*HOMES, "/"):
        return True
    return any(is_below(home, path) and home != path for home in (*homes, ROOT_HOME))


def outermost(paths: tuple[str, ...]) -> tuple[str, ...]:
    """The paths without those that are below another."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split("/")):  # each after its parents
        if not kept or not is_below(path, kept[-1]):
            kept.append(path)
    return tuple(kept)


def resolve_outside(path: str, inside: tuple[str, ...]) -> str | None:
    """Resolve a path; None if it, or a link in it, is below `inside`, where a sandboxed command could change it."""
    todo = list(Path(path).parts)
    at, links = Path("/"), 0
    while todo:
        part = todo.pop(0)
        before, at = at, at.parent if part == ".." else at / part
        if any(is_below(str(at), each) for each in inside):
            return None
        if at.is_symlink():
            links += 1
            if links > _MAX_LINKS:
                return None
            todo = [*at.readlink().parts, *todo]
            at = before
    return str(at)


def expand_path(entry: str, home: str | None, directory: Path) -> str | None:
    """An entry of the configuration as an absolute path; None if it starts with `~` and there is no home."""
    if entry == "~" or entry.startswith("~/"):
        return None if not home else os.path.normpath(home + entry[1:])
    return os.path.normpath(directory / entry)


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
            wanted[resource.RLIMIT_NPROC] = _count_tasks(uid) + limits.processes
        for which, most in wanted.items():
            _, hard = resource.prlimit(pid, which)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, which, (most, most))


_task_counts: dict[int, tuple[float, int]] = {}  # by user: when they were counted, and the count


def _count_tasks(uid: int) -> int:
    """Count the threads of a user, as RLIMIT_NPROC does; a count is reused for a few seconds."""
    now = time.monotonic()
    counted_at, count = _task_counts.get(uid, (float("-inf"), 0))
    if now - counted_at <= _COUNT_AGAIN_S:
        return count
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            info = (process / "task").stat()
            count += (info.st_nlink - 2) * (info.st_uid == uid)  # a link for each thread
    _task_counts[uid] = (now, count)
    return count

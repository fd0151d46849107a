"""Starting a server for a data directory: exactly one, however many clients find none at the same moment.

A lock on `spawn.lock` is held around "look again, then start"; the new server says through a pipe when it is ready.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Generator
from socket import socket

from kedge.client.errors import Dropped, SpawnFailed, SpawnRefused
from kedge.client.server_location import Endpoint
from kedge.client.waiter import Waiter
from kedge.protocol.address import OWNER_FILE

LOCK_FILE = "spawn.lock"
READY_S = 60.0  # a large store may have to be migrated first
LEAVING_S = 10.0  # a server that leaves gives its runs 5 s (P15) and then writes what is left
LOOK_AGAIN_S = 0.02
DEATHS = 10  # one that was killed while it started is started again; one that dies each time is not


class Died(SpawnFailed):
    """The server ended before it was ready, without a word."""


Connect = Callable[[], socket]


def start(endpoint: Endpoint, waiter: Waiter, connect: Connect) -> socket:
    """A connection to the server of the data directory, which is started if `connect` still finds none."""
    with only_one(endpoint.data_dir):
        return start_locked(endpoint, waiter, connect)


def start_locked(endpoint: Endpoint, waiter: Waiter, connect: Connect) -> socket:
    until = time.monotonic() + LEAVING_S
    deaths = 0
    while True:
        try:
            return connect()
        except Dropped:
            is_over = time.monotonic() > until
        try:
            # An owner that we cannot reach is on its way out, or still starting.
            if is_over or is_free(endpoint.data_dir):
                launch(endpoint, waiter)
                return connect()
        except Died:
            deaths += 1
            if deaths == DEATHS:
                raise
        except SpawnFailed:
            # Another one may have been faster: started by hand, or for a client that went away.
            if is_over or is_free(endpoint.data_dir):
                raise
        waiter.pause(LOOK_AGAIN_S)


@contextlib.contextmanager
def only_one(data_dir: str) -> Generator[None]:
    """Among all clients of this data directory."""
    try:
        os.makedirs(data_dir, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(data_dir, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SpawnRefused(
            f"cannot use the data directory {data_dir} ({error.strerror}); choose another --data-dir"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def is_free(data_dir: str) -> bool:
    """Whether no server owns the data directory."""
    try:
        lock = os.open(os.path.join(data_dir, OWNER_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def await_free(data_dir: str, waiter: Waiter, timeout_s: float = LEAVING_S) -> None:
    """Return when the server has left its data directory. One that stays is named by the next that is started."""
    until = time.monotonic() + timeout_s
    while not is_free(data_dir) and time.monotonic() < until:
        waiter.pause(LOOK_AGAIN_S)


def launch(endpoint: Endpoint, waiter: Waiter) -> None:
    """Start the server and wait until it is ready; it outlives us."""
    import subprocess
    import threading

    reading, writing = os.pipe()
    try:
        command = [sys.executable, "-m", "kedge", "serve", "--detached"]
        command += ["--data-dir", endpoint.data_dir, "--ready-fd", str(writing)]
        with open(endpoint.log_path, "ab", opener=_private) as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,  # what goes wrong before the server has its own log
                cwd="/",  # neither holds a directory nor imports from one
                start_new_session=True,
                pass_fds=[writing],
            )
        # Whoever outlives the server must not keep its remains.
        threading.Thread(target=process.wait, daemon=True).start()
        os.close(writing)
        writing = -1
        _await_ready(reading, endpoint, waiter)
    except OSError as error:
        raise SpawnFailed(f"cannot start a server ({error}); {endpoint.log_path} may say more") from error
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def _await_ready(fd: int, endpoint: Endpoint, waiter: Waiter) -> None:
    until = time.monotonic() + READY_S
    said = b""
    while b"\n" not in said:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise SpawnFailed(f"the server is not ready after {READY_S:.0f} s; see {endpoint.log_path}")
        if waiter.wait(fd, left_s):
            piece = os.read(fd, 4096)
            if not piece:
                raise Died(f"the server ended before it was ready; see {endpoint.log_path}")
            said += piece
    line = said.partition(b"\n")[0].decode("utf-8", "replace")
    if line != "ready":
        raise SpawnRefused(line.removeprefix("error: "))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


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
    """The process that took the directory last; `is_free` says whether it still has it."""
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

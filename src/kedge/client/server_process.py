"""The server process of a data directory: starting exactly one, and waiting for one to stop.

However many clients find no server at the same moment, one of them starts it: it holds a lock on `spawn.lock` while it
looks again and starts one. The new server reports through a pipe when it is ready.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Generator
from socket import socket

from kedge.client.environment import ServerLocation
from kedge.client.errors import Dropped, SpawnFailed, SpawnRefused
from kedge.client.reconnect import Waiter
from kedge.protocol.address import OWNER_FILE, is_process_alive, open_private

LOCK_FILE = "spawn.lock"
BYTECODE_DIR = "bytecode"
READY_S = 60.0  # a large store may have to be migrated first
OWNER_STOP_S = 10.0  # an owner that stops gives its runs 5 s (P15) and then writes what is left
POLL_S = 0.02
MAX_DEATHS = 10  # a server that is killed while it starts is started again, but not forever


class Died(SpawnFailed):
    """The server ended before it was ready, without an error message."""


Connect = Callable[[], socket]


def start_server(location: ServerLocation, waiter: Waiter, connect: Connect) -> socket:
    """Return a connection to the server of the data directory; starts one if `connect` still finds none."""
    with hold_spawn_lock(location.data_dir):
        return start_server_locked(location, waiter, connect)


def start_server_locked(location: ServerLocation, waiter: Waiter, connect: Connect) -> socket:
    """As `start_server`, for a caller that holds the spawn lock."""
    until = time.monotonic() + OWNER_STOP_S
    deaths = 0
    while True:
        try:
            return connect()
        except Dropped:
            is_over = time.monotonic() > until
        try:
            # An owner that cannot be reached is stopping, or still starting.
            if is_over or is_free(location.data_dir):
                launch_server(location, waiter)
                return connect()
        except Died:
            deaths += 1
            if deaths == MAX_DEATHS:
                raise
        except SpawnFailed:
            # Another server may have been faster: started by hand, or by a client that is gone.
            if is_over or is_free(location.data_dir):
                raise
        waiter.pause(POLL_S)


@contextlib.contextmanager
def hold_spawn_lock(data_dir: str) -> Generator[None]:
    """Exclude all other clients of this data directory. Raises `SpawnRefused` if the directory cannot be used."""
    try:
        os.makedirs(data_dir, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(data_dir, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SpawnRefused(
            f"Could not use the data directory {data_dir} ({error.strerror}). Choose another --data-dir."
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


def wait_until_free(data_dir: str, waiter: Waiter, timeout_s: float = OWNER_STOP_S) -> None:
    """Return when no server owns the data directory, or the time is up (then the next server to start reports it)."""
    until = time.monotonic() + timeout_s
    while not is_free(data_dir) and time.monotonic() < until:
        waiter.pause(POLL_S)


def launch_server(location: ServerLocation, waiter: Waiter) -> None:
    """Start a server that outlives this process, and wait until it is ready. Raises `SpawnFailed`."""
    import subprocess
    import threading

    ready_r, ready_w = os.pipe()
    try:
        command = [sys.executable, *_bytecode_options(location.data_dir), "-m", "kedge", "serve", "--detached"]
        command += ["--data-dir", location.data_dir, "--ready-fd", str(ready_w)]
        with open(location.log_path, "ab", opener=open_private) as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,  # for errors before the server opens its own log
                cwd="/",  # neither keeps a directory busy nor imports from one
                start_new_session=True,
                pass_fds=[ready_w],
            )
        # If the server ends before this process, somebody has to reap it.
        threading.Thread(target=process.wait, daemon=True).start()
        os.close(ready_w)
        ready_w = -1
        _wait_until_ready(ready_r, location, waiter)
    except OSError as error:
        raise SpawnFailed(f"Could not start a server ({error}). See {location.log_path}.") from error
    finally:
        os.close(ready_r)
        if ready_w >= 0:
            os.close(ready_w)


def _bytecode_options(data_dir: str) -> list[str]:
    """Return options for an installation without bytecode that Python cannot write to: it goes into the data directory.

    Some installers leave the compilation to the first start, and then another user may not write to the installation.
    Without bytecode, every start takes twice as long.
    """
    cached = __spec__.cached if __spec__ else None
    if cached is None or os.path.exists(cached) or os.access(os.path.dirname(__file__), os.W_OK):
        return []
    return ["-X", f"pycache_prefix={os.path.join(data_dir, BYTECODE_DIR)}"]


def _wait_until_ready(fd: int, location: ServerLocation, waiter: Waiter) -> None:
    until = time.monotonic() + READY_S
    report = b""
    while b"\n" not in report:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise SpawnFailed(f"The server was not ready after {READY_S:.0f} s. See {location.log_path}.")
        if waiter.wait(fd, left_s):
            piece = os.read(fd, 4096)
            if not piece:
                raise Died(f"The server ended before it was ready. See {location.log_path}.")
            report += piece
    line = report.partition(b"\n")[0].decode("utf-8", "replace")
    if line != "ready":
        raise SpawnRefused(line.removeprefix("error: "))


class OwnerProcess:
    """The process that owns a data directory. Make it while the owner runs: later its pid may be another process's."""

    def __init__(self, data_dir: str) -> None:
        self._pid = read_owner_pid(data_dir)
        self._fd = -1  # a pidfd: readable once the process has ended
        if self._pid is not None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._fd = os.pidfd_open(self._pid)

    def wait_for_end(self, waiter: Waiter, timeout_s: float) -> None:
        """Return when the process has ended, the time is up, or the process cannot be seen from here."""
        until = time.monotonic() + timeout_s
        if self._fd >= 0:
            while (left_s := until - time.monotonic()) > 0 and not waiter.wait(self._fd, left_s):
                pass
        elif self._pid is not None:
            while is_process_alive(self._pid) and time.monotonic() < until:
                waiter.pause(POLL_S)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_owner_pid(data_dir: str) -> int | None:
    """The process that took the directory last; `is_free` says whether it still has it."""
    try:
        with open(os.path.join(data_dir, OWNER_FILE), encoding="ascii", errors="replace") as file:
            label, number = file.read(100).split()
            return int(number) if label == "process" and int(number) > 1 else None
    except (OSError, ValueError):
        return None

"""A server's processes: started in a directory of its own, measured as one tree, and ended by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import MIB
from bench.peers import proc
from bench.peers.servers.stream import LIMIT_S
from bench.peers.setting import Contender

_GRACE_S = 10.0  # after SIGTERM
_POLL_S = 0.002


class NotReady(Exception):
    """The server ended, or does not answer."""


class Process:
    def __init__(self, contender: Contender, arguments: list[str]) -> None:
        self._log = contender.home / "server.log"
        self._seen: dict[int, str] = {}  # everybody that was ever in the tree, with the moment of its birth
        with self._log.open("wb") as log:
            self._began = time.monotonic()
            self._main = contender.start(contender.command(*arguments), log)

    def await_ready(self, line: str, answer: Callable[[], None]) -> float:
        """Seconds from the start to the first answered request."""
        until = self._began + LIMIT_S
        while True:
            if self._main.poll() is not None:
                raise NotReady(f"the server ended with {self._main.returncode}: {self._last_words()}")
            if time.monotonic() > until:
                raise NotReady(f"the server does not answer: {self._last_words()}")
            if line.encode() in self._log.read_bytes():
                with contextlib.suppress(Exception):  # whatever is said at a door that is not open yet
                    answer()
                    return time.monotonic() - self._began
            time.sleep(_POLL_S)

    def cpu_s(self) -> float:
        return proc.cpu_s(self._tree())

    def held_mib(self) -> float:
        return proc.held_bytes(self._tree()) / MIB

    def kill(self) -> None:
        """As the kernel does when memory is short: the server itself, at once."""
        self._tree()
        self._main.kill()
        self._main.wait(LIMIT_S)

    def outlived(self, patience_s: float) -> int:
        """How many are still there so long after the server's death; they are ended here."""
        until = time.monotonic() + patience_s
        while self._alive() and time.monotonic() < until:
            time.sleep(0.05)
        left = self._alive()
        _end(left)
        return len(left)

    def stop(self) -> None:
        if self._main.poll() is None:
            self._tree()
            self._main.terminate()
            try:
                self._main.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._main.kill()
                self._main.wait(LIMIT_S)
        _end(self._alive())

    def _tree(self) -> set[int]:
        found = proc.tree([self._main.pid])
        self._seen.update({pid: born for pid in found if (born := _born(pid))})
        return found

    def _alive(self) -> list[int]:
        """Of those that were seen, without the server; a number that somebody else has by now is not one of them."""
        return [pid for pid, born in self._seen.items() if pid != self._main.pid and _born(pid) == born]

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"


def _end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # it is ours to bury only where orphans come to us
            os.waitpid(pid, 0)


def _born(pid: int) -> str | None:
    """None: no such process, or a dead one that nobody has buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[19] if fields[0] != "Z" else None

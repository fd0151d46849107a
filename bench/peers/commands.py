"""One command of a peer, from its start to its exit, with everything that it starts: time, CPU, memory, its words.

What a command leaves behind becomes a child of ours, is counted with it, and is ended before the next.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import busy_cpu_s
from bench.peers import proc
from bench.peers.setting import Contender

LIMIT_S = 120.0  # of one command; the slowest peer takes five seconds on a quiet machine
_GRACE_S = 10.0  # for what is left behind, after SIGTERM
_WATCH_S = 0.005  # between two looks at the memory
_PR_SET_CHILD_SUBREAPER = 36
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MOST_WORDS = 120  # of what a failed command said last


@dataclass(frozen=True)
class Ran:
    exit_code: int | None  # none: it did not end
    output: str
    wall_s: float
    cpu_s: float
    peak_bytes: int  # 0 where nobody looked
    others_cpus: float


def adopt_orphans() -> None:
    """Of this process, before it starts anything."""
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


class Runner:
    """Runs commands one at a time. `kept` are processes that stay: the model, and the servers that commands ask."""

    def __init__(self, kept: set[int]) -> None:
        self._kept = kept

    def run(
        self, contender: Contender, command: list[str], server: int | None = None, *, is_watched: bool = False
    ) -> Ran:
        """`server` is the one of the kept that this command asks: its share is counted. Looking at the memory costs
        time, so the time of a command that was watched means nothing."""
        beside = {pid for pid in self._kept if pid != server}
        with tempfile.TemporaryFile() as said:
            served_s, buried_s = _served_cpu_s(server), _buried_cpu_s()
            busy_s, ours_s = busy_cpu_s(), _our_cpu_s(beside)
            began = time.perf_counter()
            process = contender.start(command, said)
            try:
                peak_bytes = 0
                for left_s in _until_exit(process, _WATCH_S if is_watched else LIMIT_S):
                    if is_watched:
                        peak_bytes = max(peak_bytes, proc.held_bytes(_members(beside)))
                    if left_s <= 0:
                        process.kill()
                wall_s = time.perf_counter() - began
                theirs_s = busy_cpu_s() - busy_s - (_our_cpu_s(beside) - ours_s)
            finally:
                _end_all(self._kept)
            cpu_s = _buried_cpu_s() - buried_s + _served_cpu_s(server) - served_s
            said.seek(0)
            output = said.read().decode(errors="replace")
        code = None if wall_s >= LIMIT_S else process.returncode
        return Ran(code, output, wall_s, cpu_s, peak_bytes, max(0.0, (theirs_s - cpu_s) / wall_s))


def _members(beside: set[int]) -> set[int]:
    """What comes from us, but for those and what comes from them."""
    known = proc.parents()
    return proc.tree([os.getpid()], known) - proc.tree(beside, known) - {os.getpid()}


def _end_all(kept: set[int]) -> None:
    until = time.monotonic() + _GRACE_S
    told: set[int] = set()
    while left := _members(kept):
        is_late = time.monotonic() > until
        for pid in left:
            if _is_buried(pid):
                continue
            if is_late or pid not in told:
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
                told.add(pid)
        time.sleep(0.002)


@contextmanager
def _watched_exit(process: subprocess.Popen[bytes]) -> Generator[select.poll]:
    fd = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        yield poll
    finally:
        os.close(fd)


def _until_exit(process: subprocess.Popen[bytes], every_s: float) -> Iterator[float]:
    """The seconds that it has left, every so often, until it is gone."""
    until = time.monotonic() + LIMIT_S
    with _watched_exit(process) as poll:
        while not poll.poll(max(0.0, min(every_s, until - time.monotonic())) * 1e3):
            yield until - time.monotonic()
    process.wait()


def _is_buried(pid: int) -> bool:
    """Bury it if it is dead and ours to bury; those of others are buried by them, or come to us."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _our_cpu_s(beside: set[int]) -> float:
    """Of this process, and of those that it keeps for other commands."""
    return time.process_time() + proc.cpu_s(beside)


def _served_cpu_s(server: int | None) -> float:
    return proc.cpu_s(proc.tree([server])) if server else 0.0


def _buried_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def failure(ran: Ran, expected: str, contender: Contender) -> str:
    """Why a run does not count; nothing, if it ended well and said what was expected."""
    if ran.exit_code == 0 and expected in ran.output:
        return ""
    said = _ESCAPES.sub("", ran.output).replace(str(contender.home), "its home").replace(str(Path.home()), "~")
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    if ran.exit_code is None:
        return f"did not end within {LIMIT_S:.0f} s: {last[:_MOST_WORDS]}"
    if ran.exit_code != 0:
        return f"exit {ran.exit_code}: {last[:_MOST_WORDS]}"
    return f"exit 0 without {expected}: {last[:_MOST_WORDS]}"

"""A peer's server that its one-shot runs can use, for as long as they do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from string import Template

from bench.peers.servers.ports import free_port
from bench.peers.setting import Contender

LIMIT_S = 60.0
_READY = b"listening"  # what all of them say


class NotServed(Exception):
    """One line: which server did not come up, and its last words."""


@dataclass(frozen=True)
class Served:
    pid: int
    port: int


@contextmanager
def serving(contender: Contender) -> Generator[Served]:
    port = free_port()
    words = [Template(word).substitute(port=port) for word in contender.peer.serve]
    log = contender.home / "server.log"
    with log.open("wb") as said:
        process = contender.start(contender.command(*words), said)
    try:
        until = time.monotonic() + LIMIT_S
        while _READY not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > until:
                lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
                raise NotServed(f"the server of {contender.name} did not come up: {lines[-1]}")
            time.sleep(0.01)
        yield Served(process.pid, port)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

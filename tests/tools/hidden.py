"""A daemon as deaf and as far away as can be: `python hidden.py TOLD [keep]`, with nothing but the standard library.

It forks twice, begins a session of its own, ignores SIGTERM, holds a port, and wipes its environment unless told to
`keep` it. To the pipe TOLD it says its number and its port.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path


def leave() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def stay(told: str) -> None:
    held = socket.create_server(("127.0.0.1", 0))
    Path(told).write_text(f"{os.getpid()} {held.getsockname()[1]}\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    if sys.argv[2:] == ["far"]:
        stay(sys.argv[1])
    leave()
    environ = dict(os.environ) if sys.argv[2:] == ["keep"] else {}
    os.execve(sys.executable, [sys.executable, __file__, sys.argv[1], "far"], environ)

"""Which process connected to a Unix socket, and whether the agent started it (P16). Linux only."""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from kedge.protocol.peer import peer_pid

IsAgentsProcess = Callable[[int, int | None], bool]  # of a process, and maybe a descriptor of it

_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it


def is_agents(sock: Any, is_agents_process: IsAgentsProcess) -> bool:
    """Whether a process of the agent is at the other end; in doubt, as when it has ended, yes."""
    if sys.platform != "linux":
        return False
    try:
        pid = peer_pid(sock)
        pidfd = _peer_pidfd(sock) if _has_pidfds() else None
    except OSError:
        return True
    try:
        return is_agents_process(pid, pidfd)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _peer_pidfd(sock: Any) -> int:
    """A descriptor of the process that connected. Raises `OSError` if it is gone."""
    return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)


@functools.cache
def _has_pidfds() -> bool:
    """Tried with ourselves, so that an error for another process means that one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(_peer_pidfd(ours))
        except OSError:
            return False
    return True

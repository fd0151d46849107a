"""Connections over TCP, which are limited, and to the Unix socket, where it is checked who connected (P16, P17)."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from kedge.protocol.address import peer_pid, peer_uid
from kedge.server.exchange import App
from kedge.server.http_connection import HttpConnection, OpenConnections

log = logging.getLogger(__name__)

# Tools' processes inherit the limit, and some programs close or scan every number up to it: a million takes seconds.
MAX_DESCRIPTORS = 4096

_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it

IsAgentProcess = Callable[[int, int | None], bool]
"""Whether a process belongs to the agent, given its pid and, where the system has them, a pidfd."""


class TcpConnection(HttpConnection):
    """A connection counted by `TcpConnections`."""

    def __init__(self, app: App, opened: OpenConnections, connections: TcpConnections) -> None:
        super().__init__(app, opened)
        self._tcp_connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._tcp_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tcp_connections.remove(self)
        super().connection_lost(exc)

    def mark_authenticated(self) -> None:
        self._tcp_connections.authenticate(self)


class UnixConnection(HttpConnection):
    """A connection to the Unix socket. Only the server's user and root are accepted; the agent's processes may only
    read (P16)."""

    def __init__(self, app: App, opened: OpenConnections, is_agent_process: IsAgentProcess) -> None:
        super().__init__(app, opened)
        self.is_read_only = True  # until the peer is known
        self._is_agent_process = is_agent_process

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        try:
            uid = peer_uid(sock)
        except OSError:  # the peer has disconnected
            self.transport.abort()
            return
        if uid is not None and uid not in (os.getuid(), 0):
            log.warning("refused a connection of user %d", uid)
            self.transport.abort()
            return
        # Checked now, while the process that connected most likely exists: it may pass the connection on and exit.
        self.is_read_only = is_from_agent(sock, self._is_agent_process)


class ConnectionLimits(NamedTuple):
    tcp: int
    without_token: int  # TCP connections that have not yet sent a request with the token


def connection_limits() -> ConnectionLimits:
    """Return a quarter of the file descriptors for TCP, half of them for connections that sent no token yet.

    Anyone on the machine can connect to a TCP port without a token, and each connection takes a descriptor. The rest is
    for the Unix socket, the store, tools and models.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)
    return ConnectionLimits(max(2, descriptors // 4), max(1, descriptors // 8))


def raise_descriptor_limit() -> None:
    """Raise the soft limit on descriptors. The usual 1024 is for programs that call select(); this one does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class TcpConnections:
    """The open connections of a TCP socket. Over a limit, the oldest one that has sent no token is closed.

    A flood of silent connections therefore closes itself, while a client that sends its request at once is served.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: set[HttpConnection] = set()
        self._without_token: dict[HttpConnection, None] = {}  # the oldest first

    def add(self, connection: HttpConnection) -> None:
        self._open.add(connection)
        self._without_token[connection] = None
        if len(self._without_token) > self._limits.without_token or len(self._open) > self._limits.tcp:
            oldest = next(iter(self._without_token))
            self.remove(oldest)
            oldest.transport.abort()

    def authenticate(self, connection: HttpConnection) -> None:
        self._without_token.pop(connection, None)

    def remove(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        self._without_token.pop(connection, None)


def is_from_agent(sock: Any, is_agent_process: IsAgentProcess) -> bool:
    """Return whether a process of the agent is at the other end of a Unix socket. Linux only.

    True when it cannot be known, for example because the process has exited.
    """
    if sys.platform != "linux":
        return False
    try:
        pid = peer_pid(sock)
        pidfd = _peer_pidfd(sock) if _has_pidfds() else None
    except OSError:
        return True
    try:
        return is_agent_process(pid, pidfd)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _peer_pidfd(sock: Any) -> int:
    """Return a descriptor of the process that connected; raise `OSError` if it is gone."""
    return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)


@functools.cache
def _has_pidfds() -> bool:
    """Test it with our own process, so that a later `OSError` can only mean that the peer is gone."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(_peer_pidfd(ours))
        except OSError:
            return False
    return True

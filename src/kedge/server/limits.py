"""P17 for connections: file descriptors, and how many of them TCP clients may use.

Anybody on the machine can connect to a TCP port without knowing the token, and each connection is a descriptor. Most
descriptors are kept for the rest: the Unix socket, the store, tools and models.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kedge.server.listen import Connection

# Programs that tools start inherit the limit. Some close or scan every number up to it: a million takes seconds.
MAX_DESCRIPTORS = 4096


def raise_descriptor_limit() -> None:
    """The soft limit, 1024 on most systems, is for programs that use select(); this one does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class ConnectionLimits(NamedTuple):
    tcp: int
    without_token: int  # TCP connections that have not yet sent a request with the token


def connection_limits() -> ConnectionLimits:
    """A quarter of the descriptors for TCP, and half of those for connections that have not shown a token."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)
    return ConnectionLimits(max(2, descriptors // 4), max(1, descriptors // 8))


class TcpConnections:
    """The connections of a TCP socket. Over a limit the oldest that has shown no token is closed.

    So a flood of silent connections closes itself, while a client that sends its request at once gets its answer.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: set[Connection] = set()
        self._without_token: dict[Connection, None] = {}  # the oldest first

    def add(self, connection: Connection) -> None:
        self._open.add(connection)
        self._without_token[connection] = None
        if len(self._without_token) > self._limits.without_token or len(self._open) > self._limits.tcp:
            oldest = next(iter(self._without_token))
            self.remove(oldest)
            oldest.transport.abort()

    def authenticate(self, connection: Connection) -> None:
        self._without_token.pop(connection, None)

    def remove(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._without_token.pop(connection, None)

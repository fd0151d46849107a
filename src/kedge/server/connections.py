"""HTTP connections: uvicorn's protocol with timeouts, limits and the checks of who connected (P16, P17)."""

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

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from kedge.protocol.address import peer_pid, peer_uid
from kedge.protocol.events import encode
from kedge.server.app import READ_ONLY
from kedge.server.errors import BadRequest

log = logging.getLogger(__name__)

# From connecting, or from the first byte of a later request, to the end of the headers.
HEAD_S = 10.0
# In each such interval of sending a body, at least MIN_BODY_BYTES must arrive: 1 KiB a second.
BODY_S = 10.0
MIN_BODY_BYTES = 10 * 1024
KEEP_ALIVE_S = 75  # how long a connection may be idle between two requests
MAX_HEAD_BYTES = 256 * 1024  # of the request line and headers: a hundred times a real one
# Tools' processes inherit the limit, and some programs close or scan every number up to it: a million takes seconds.
MAX_DESCRIPTORS = 4096

_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it

IsAgentProcess = Callable[[int, int | None], bool]
"""Whether a process belongs to the agent, given its pid and, where the system has them, a pidfd."""


class Connection(HttpToolsProtocol):
    """A client's connection. Adds to uvicorn: timeouts for sending a request, a bounded head, and errors as JSON.

    Only receiving a request is timed: an event stream, or a request that waits for a run, may last as long as it likes.
    """

    _timer: asyncio.TimerHandle | None = None
    _is_in_head = False
    _is_in_body = False
    _head_bytes = 0
    _body_bytes = 0  # since the timer was started

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._start_timer(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None:
            self._start_timer(HEAD_S)  # also for bytes that do not begin a request
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._is_in_head else 0
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers of the request are too large.")

    def on_message_begin(self) -> None:
        self._is_in_head = True
        if self._timer is None:  # it came in the same data as the end of the previous request
            self._start_timer(HEAD_S)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._is_in_body, self._body_bytes = True, 0
        self._start_timer(BODY_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._stop_timer()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        body = encode(BadRequest(msg).body)
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        # While reading is paused the client cannot send: the application has not yet taken the earlier data.
        if self._is_in_body and (self.flow.read_paused or self._body_bytes >= MIN_BODY_BYTES):
            self._body_bytes = 0
            self._start_timer(BODY_S)
            return
        # No response: a client that was suspended then sees a lost connection and sends its request again.
        self.transport.abort()


class TcpConnection(Connection):
    """A connection counted by `TcpConnections`. `AuthMiddleware` reports a valid token through the scope's state."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        connections: TcpConnections,
    ) -> None:
        super().__init__(config, server_state, {"authenticated": self._authenticated}, loop)
        self._tcp_connections = connections

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._tcp_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tcp_connections.remove(self)
        super().connection_lost(exc)

    def _authenticated(self) -> None:
        self._tcp_connections.authenticate(self)


class UnixConnection(Connection):
    """A connection to the Unix socket. Only the server's user and root are accepted; the agent's processes may only
    read (P16)."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        is_agent_process: IsAgentProcess,
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self._is_agent_process = is_agent_process

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.app_state[READ_ONLY] = True  # until the peer is known
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        try:
            uid = peer_uid(sock)
        except OSError:  # the peer has disconnected
            transport.abort()
            return
        if uid is not None and uid not in (os.getuid(), 0):
            log.warning("refused a connection of user %d", uid)
            transport.abort()
            return
        # Checked now, while the process that connected most likely exists: it may pass the connection on and exit.
        self.app_state[READ_ONLY] = is_from_agent(sock, self._is_agent_process)


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

"""The server's listening sockets: binding them safely, accepting connections, closing them (P15, P16)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat

from kedge.protocol.address import Address, AddressError, TcpAddress, UnixAddress, make_private_dir, runtime_dir
from kedge.server.auth import is_loopback
from kedge.server.connections import IsAgentProcess, TcpConnection, TcpConnections, UnixConnection, connection_limits
from kedge.server.exchange import App
from kedge.server.http_connection import HttpConnection, OpenConnections

log = logging.getLogger(__name__)

BACKLOG = 1024  # connections that wait while the first ones are served
CLOSE_S = 1.0  # for responses in flight when the server stops
ACCEPT_RETRY_S = 0.2  # when the system has no descriptor for a connection


def bind(address: Address, *, allow_remote: bool = False) -> socket.socket:
    return _bind_unix(address) if isinstance(address, UnixAddress) else _bind_tcp(address, allow_remote)


def _bind_unix(address: UnixAddress) -> socket.socket:
    """Bind a socket for this user alone. Replace the socket file of a dead server, never of a live one."""
    _make_dir(os.path.dirname(address.path))
    _remove_stale(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(address.path)
        os.chmod(address.path, 0o600)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _cannot_listen(address, error) from error
    return sock


def _make_dir(directory: str) -> None:
    if directory != runtime_dir() and os.path.isdir(directory) and os.stat(directory).st_mode & 0o077:
        # Its mode is not ours to change: it could be /tmp.
        raise AddressError(
            f"{directory} is open to other users, and so would be a socket in it. Choose a directory with mode 0700."
        )
    make_private_dir(directory)


def _remove_stale(address: UnixAddress) -> None:
    try:
        mode = os.lstat(address.path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"{address.path} exists and is not a socket. Remove it, or choose another --host.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                os.unlink(address.path)
                return
    raise AddressError(f"Another server listens on {address}. Stop it, or choose another --host.")


def _bind_tcp(address: TcpAddress, allow_remote: bool) -> socket.socket:
    if not is_loopback(address.host) and not allow_remote:
        raise AddressError(
            f"{address} can be reached from other machines, unencrypted. Use 127.0.0.1, or pass --allow-remote."
        )
    try:
        family, kind, proto, _, name = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(address, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(name)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _cannot_listen(address, error) from error
    return sock


def _cannot_listen(address: Address, error: Exception) -> AddressError:
    why = (error.strerror if isinstance(error, OSError) else None) or error
    return AddressError(f"Cannot listen on {address} ({why}). Choose another --host.")


class Listener:
    def __init__(self, sock: socket.socket, app: App, is_agent_process: IsAgentProcess) -> None:
        self._sock = sock
        self._is_agent_process = is_agent_process
        self._app = app
        self._opened = OpenConnections(set(), set())
        self._accepting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._sock.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        """Accept one connection at a time. asyncio's server accepts a whole backlog, which can use all descriptors."""
        loop = asyncio.get_running_loop()
        is_unix = self._sock.family == socket.AF_UNIX
        tcp_connections = None if is_unix else TcpConnections(connection_limits())

        def connect() -> HttpConnection:
            if tcp_connections is None:
                return UnixConnection(self._app, self._opened, self._is_agent_process)
            return TcpConnection(self._app, self._opened, tcp_connections)

        while True:
            try:
                sock, _ = await loop.sock_accept(self._sock)
            except ConnectionError:  # the client has disconnected
                continue
            except OSError as error:
                log.warning("cannot accept a connection (%s)", error.strerror)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            try:
                await loop.connect_accepted_socket(connect, sock)
            except Exception:  # one broken connection must not end the loop
                log.exception("a connection could not be served")
                sock.close()

    async def close(self) -> None:
        """Stop accepting, let responses in flight finish, then close all connections."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait({self._accepting})
            self._sock.close()
        for connection in list(self._opened.connections):
            connection.shutdown()
        await _wait_for(self._opened.tasks)
        for connection in list(self._opened.connections):
            connection.transport.abort()
        for task in await _wait_for(self._opened.tasks):
            task.cancel()


async def _wait_for(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    return (await asyncio.wait(tasks, timeout=CLOSE_S))[1] if tasks else set()

"""The sockets of a server: bound safely, served by uvicorn's protocols, closed by us (P16, P15)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat

import uvicorn
from uvicorn.server import ServerState

from kedge.protocol.address import Address, AddressError, TcpAddress, UnixAddress, make_private_dir, runtime_dir
from kedge.server.app import App
from kedge.server.auth import is_loopback
from kedge.server.connections import (
    KEEP_ALIVE_S,
    Connection,
    IsAgentProcess,
    TcpConnection,
    TcpConnections,
    UnixConnection,
    connection_limits,
)

log = logging.getLogger(__name__)

BACKLOG = 1024  # a stampede of clients waits here while the first one is served
CLOSE_S = 1.0  # for answers on their way when the server leaves
ACCEPT_RETRY_S = 0.2  # when the system gives no descriptor for a connection


def bind(address: Address, *, allow_remote: bool = False) -> socket.socket:
    return _bind_unix(address) if isinstance(address, UnixAddress) else _bind_tcp(address, allow_remote)


def _bind_unix(address: UnixAddress) -> socket.socket:
    """A socket that only we can connect to. One that a dead server left is replaced; a living one is not."""
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
        # Not ours to close: it could be /tmp.
        raise AddressError(
            f"{directory} is open to others, and so would be a socket in it; name a directory of yours with mode 0700"
        )
    make_private_dir(directory)


def _remove_stale(address: UnixAddress) -> None:
    try:
        mode = os.lstat(address.path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"{address.path} is in the way and is no socket; remove it, or choose another --host")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                os.unlink(address.path)
                return
    raise AddressError(f"another server listens on {address}; stop it, or choose another --host")


def _bind_tcp(address: TcpAddress, allow_remote: bool) -> socket.socket:
    if not is_loopback(address.host) and not allow_remote:
        raise AddressError(
            f"{address} can be reached from other machines, unencrypted; say 127.0.0.1, or insist with --allow-remote"
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
    return AddressError(f"cannot listen on {address} ({why}); choose another --host")


class Listener:
    """One listening socket and the connections that came through it."""

    def __init__(self, sock: socket.socket, app: App, is_agent_process: IsAgentProcess) -> None:
        self._sock = sock
        self._is_agent_process = is_agent_process
        self._state = ServerState()
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._accepting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._config.load()
        self._sock.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        """One connection at a time: asyncio's own server takes a whole backlog at once, and with it all descriptors."""
        loop = asyncio.get_running_loop()
        is_unix = self._sock.family == socket.AF_UNIX
        tcp_connections = None if is_unix else TcpConnections(connection_limits())

        def connect() -> Connection:
            if tcp_connections is None:
                return UnixConnection(self._config, self._state, loop, self._is_agent_process)
            return TcpConnection(self._config, self._state, loop, tcp_connections)

        while True:
            try:
                sock, _ = await loop.sock_accept(self._sock)
            except ConnectionError:  # the client has left
                continue
            except OSError as error:
                log.warning("cannot take a connection (%s)", error.strerror)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            try:
                await loop.connect_accepted_socket(connect, sock)
            except Exception:  # the boundary: one connection must not end the loop for all others
                log.exception("a connection could not be served")
                sock.close()

    async def close(self) -> None:
        """Take no more connections, let answers on their way go out, then hang up, also on those who do not read."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait({self._accepting})
            self._sock.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        await _end(self._state.tasks)
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in await _end(self._state.tasks):
            task.cancel()


async def _end(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    return (await asyncio.wait(tasks, timeout=CLOSE_S))[1] if tasks else set()

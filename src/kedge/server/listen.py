"""The sockets of a server: bound safely, served by uvicorn's protocols, closed by us (P16, P15)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct
import sys
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from kedge.protocol.address import Address, AddressError, TcpAddress, UnixAddress, make_private_dir
from kedge.server.app import App
from kedge.server.auth import is_loopback

BACKLOG = 1024  # a stampede of clients waits here while the first one is served
KEEP_ALIVE_S = 75
CLOSE_S = 1.0  # for answers on their way when the server leaves


def bind(address: Address, *, allow_remote: bool = False) -> socket.socket:
    return _bind_unix(address) if isinstance(address, UnixAddress) else _bind_tcp(address, allow_remote)


def _bind_unix(address: UnixAddress) -> socket.socket:
    """A socket that only we can connect to. One that a dead server left is replaced; a living one is not."""
    make_private_dir(os.path.dirname(address.path))
    _remove_stale(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old_umask = os.umask(0o177)
    try:
        sock.bind(address.path)
    except OSError as error:
        sock.close()
        raise AddressError(f"cannot listen on {address} ({error.strerror or error}); choose another --host") from error
    finally:
        os.umask(old_umask)
    sock.listen(BACKLOG)
    return sock


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
            f"{address} can be reached from other machines, unencrypted; bind to 127.0.0.1, or insist with --allow-remote"
        )
    try:
        family, kind, proto, _, name = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(name)
    except OSError as error:
        raise AddressError(f"cannot listen on {address} ({error.strerror or error}); choose another --host") from error
    sock.listen(BACKLOG)
    return sock


class Listener:
    """One listening socket and the connections that came through it."""

    def __init__(self, sock: socket.socket, app: App) -> None:
        self._sock = sock
        self._state = ServerState()
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._config.load()
        protocol: Any = self._config.http_protocol_class
        if self._sock.family == socket.AF_UNIX:
            protocol = type("OwnersOnly", (OwnersOnly, protocol), {})
        loop = asyncio.get_running_loop()

        def connect() -> asyncio.Protocol:
            return protocol(config=self._config, server_state=self._state, app_state={}, _loop=loop)

        self._server = await loop.create_server(connect, sock=self._sock, backlog=BACKLOG)

    async def close(self) -> None:
        """Take no more connections, let answers on their way go out, then hang up."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            _, late = await asyncio.wait(self._state.tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
        for connection in list(self._state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


class OwnersOnly:
    """P16: on a Unix socket the system says who connects; only the server's own user (or root) gets through."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        uid = peer_uid(transport.get_extra_info("socket"))
        if uid is not None and uid not in (os.getuid(), 0):
            transport.abort()
            return
        super().connection_made(transport)  # type: ignore[misc]


def peer_uid(sock: Any) -> int | None:
    """The user at the other end, where the system gives it."""
    if sys.platform == "linux":
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return struct.unpack("3i", credentials)[1]
    return None

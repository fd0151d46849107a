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
from kedge.protocol.events import encode
from kedge.protocol.peer import peer_uid
from kedge.server.app import READ_ONLY, App
from kedge.server.auth import is_loopback
from kedge.server.errors import BadRequest
from kedge.server.limits import TcpConnections, connection_limits
from kedge.server.peers import IsAgentsProcess, is_agents
from kedge.server.timeouts import KEEP_ALIVE_S, TimedProtocol

log = logging.getLogger(__name__)

BACKLOG = 1024  # a stampede of clients waits here while the first one is served
CLOSE_S = 1.0  # for answers on their way when the server leaves
ACCEPT_RETRY_S = 0.2  # when the system gives no descriptor for a connection
MAX_HEAD_BYTES = 256 * 1024  # of a request's line and headers; a real one has a hundredth of it


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

    def __init__(self, sock: socket.socket, app: App, is_agents_process: IsAgentsProcess) -> None:
        self._sock = sock
        self._is_agents_process = is_agents_process
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
                return OwnersConnection(self._config, self._state, loop, self._is_agents_process)
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


class Connection(TimedProtocol):
    """A client's connection, with two manners that uvicorn leaves to proxies: bounded heads, and errors as JSON."""

    _head_bytes = 0
    _is_in_head = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._is_in_head else 0
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("the request's headers are too large")

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        body = encode(BadRequest(msg).body)
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()


class TcpConnection(Connection):
    """One of a bounded number. The application calls `authenticated` of its scope's state when the token was right."""

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


class OwnersConnection(Connection):
    """P16: on a Unix socket the system says who connects; only the server's own user (or root) gets through, and what
    the agent has started may only read."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        is_agents_process: IsAgentsProcess,
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self._is_agents_process = is_agents_process

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.app_state[READ_ONLY] = True  # until it is known
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        try:
            uid = peer_uid(sock)
        except OSError:  # it has left
            transport.abort()
            return
        if uid is not None and uid not in (os.getuid(), 0):
            log.warning("refused a connection of user %d", uid)
            transport.abort()
            return
        # Now, while the process that connected is most likely there: it may hand the connection on and end.
        self.app_state[READ_ONLY] = is_agents(sock, self._is_agents_process)

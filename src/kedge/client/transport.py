"""The synchronous transport: requests and event streams over a Unix socket or TCP, with nothing but sockets.

Raises `Dropped` (trying again may help), `NotAllowed`, `NotUnderstood` or `Refused`. A managed server that is not
running is started.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping

from kedge.client.environment import ServerLocation
from kedge.client.errors import Dropped, NotAllowed, NotUnderstood, Refused, SpawnFailed, Unreachable
from kedge.client.reconnect import SILENCE_S, ReconnectPolicy, Waiter
from kedge.http import http1
from kedge.protocol.address import AddressError, TcpAddress, UnixAddress, check_peer, check_socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Headers = Mapping[str, str]
NO_HEADERS: Headers = {}
CONNECT_S = 10.0  # for a machine that does not answer at all
RECEIVE_BYTES = 256 * 1024


class NoServer(Dropped):
    """Nothing listens at the address."""


class Transport:
    """One connection for requests, kept open, and one more for each event stream."""

    def __init__(self, location: ServerLocation, waiter: Waiter, *, client: str, timeout_s: float = SILENCE_S) -> None:
        self.location = location
        self.waiter = waiter
        self.client = client
        self.server_version: str | None = None  # None: no answer yet
        self.timeout_s = timeout_s
        self._headers = make_headers(location, client)
        self._idle: socket.socket | None = None

    def call(
        self, method: str, target: str, body: object = None, *, policy: ReconnectPolicy, headers: Headers = NO_HEADERS
    ) -> Any:
        """Send a request until it is answered, so it must be one that may arrive twice. Returns the decoded answer."""
        while True:
            try:
                answer = self.request(method, target, body, headers)
                policy.record_contact()
                return answer
            except (Dropped, SpawnFailed) as error:
                self.back_off(policy, error)

    def back_off(self, policy: ReconnectPolicy, error: Exception) -> None:
        """Wait before the next attempt. Raises `Unreachable` when the policy gives up."""
        if isinstance(error, SpawnFailed) and self.server_version is None:
            raise error  # the reason will not go away by itself
        delay_s = policy.next_delay_s()
        if delay_s is None:
            raise make_unreachable(self.location, policy, error) from error
        self.waiter.pause(delay_s)

    def request(self, method: str, target: str, body: object = None, headers: Headers = NO_HEADERS) -> Any:
        """Send a request once; returns the decoded answer."""
        data = None if body is None else json.dumps(body).encode()
        sock, self._idle = self._take_idle() or self.connect(), None
        parser = http1.ResponseParser()
        try:
            self._send(sock, method, target, data, headers)
            pieces: list[bytes] = []
            while not parser.is_complete:
                pieces.append(self._receive(sock, parser))
            self.server_version = parser.headers.get("kedge-version", "")
        except BaseException:
            sock.close()
            raise
        if parser.is_reusable:
            self._idle = sock
        else:
            sock.close()
        return decode_answer(parser.status, b"".join(pieces))

    def stream(self, target: str) -> Iterator[bytes]:
        """Yield the body of an endless answer as it arrives; b"" when the waiter returned early. Ends by `Dropped`."""
        sock = self.connect()
        try:
            parser = http1.ResponseParser()
            self._send(sock, "GET", target, None)
            body = b""
            while not parser.has_head:
                body = self._receive(sock, parser)
            if parser.status != 200:
                while not parser.is_complete:
                    body += self._receive(sock, parser)
                decode_answer(parser.status, body)
            if body:
                yield body
            silent_since = time.monotonic()
            while not parser.is_complete:
                left_s = silent_since + self.timeout_s - time.monotonic()
                if self.waiter.wait(sock.fileno(), left_s):
                    yield _receive_into(parser, sock)
                    silent_since = time.monotonic()
                elif left_s <= 0:
                    raise Dropped(f"the event stream was silent for {self.timeout_s:.0f} s")
                else:
                    yield b""
        finally:
            sock.close()
        raise Dropped("the server ended the event stream")

    def connect(self) -> socket.socket:
        try:
            return open_connection(self.location)
        except NoServer:
            if not self.location.is_managed:
                raise
        from kedge.client import server_process

        self.waiter.show_status("starting the server")
        return server_process.start_server(self.location, self.waiter, lambda: open_connection(self.location))

    def close(self) -> None:
        if self._idle is not None:
            self._idle.close()
            self._idle = None

    def _take_idle(self) -> socket.socket | None:
        """The open connection, unless the server has closed it meanwhile."""
        sock, self._idle = self._idle, None
        if sock is not None and Waiter().wait(sock.fileno(), 0.0):
            sock.close()
            return None
        return sock

    def _send(
        self, sock: socket.socket, method: str, target: str, body: bytes | None, headers: Headers = NO_HEADERS
    ) -> None:
        sock.settimeout(self.timeout_s)
        try:
            sock.sendall(http1.build_request(method, target, {**self._headers, **headers}, body))
        except OSError as error:
            raise Dropped(_describe(error)) from error

    def _receive(self, sock: socket.socket, parser: http1.ResponseParser) -> bytes:
        until = time.monotonic() + self.timeout_s
        while not self.waiter.wait(sock.fileno(), left_s := until - time.monotonic()):
            if left_s <= 0:
                raise Dropped(f"no answer for {self.timeout_s:.0f} s")
        return _receive_into(parser, sock)


def make_unreachable(location: ServerLocation, policy: ReconnectPolicy, error: Exception) -> Unreachable:
    return Unreachable(
        f"Could not reach the server at {location.address} for {policy.give_up_s:.0f} s ({error}). "
        "Is it running? Start one with 'kedge serve'."
    )


def make_headers(location: ServerLocation, client: str) -> dict[str, str]:
    address = location.address
    host = "localhost" if isinstance(address, UnixAddress) else str(address).removeprefix("tcp://")
    headers = {"Host": host, "Kedge-Client": client, "Content-Type": "application/json"}
    if location.token:
        headers["Authorization"] = f"Bearer {location.token}"
    return headers


def open_connection(location: ServerLocation) -> socket.socket:
    """Connect to a server and check that it is the user's own (P16), before anything but the challenge is sent."""
    address = location.address
    try:
        return _connect_unix(address) if isinstance(address, UnixAddress) else _connect_tcp(location, address)
    except AddressError as error:
        raise NotAllowed(str(error)) from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NoServer(_describe(error)) from error
    except PermissionError as error:
        raise NotAllowed(f"{address} belongs to another user. Choose another --data-dir or --host.") from error
    except OSError as error:
        raise Dropped(_describe(error)) from error


def _connect_unix(address: UnixAddress) -> socket.socket:
    check_socket(address)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect(address.path)
        check_peer(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _connect_tcp(location: ServerLocation, address: TcpAddress) -> socket.socket:
    from kedge.client.challenge import Challenge

    until = time.monotonic() + CONNECT_S
    sock = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = Challenge(location, sock.getpeername())
        sock.sendall(challenge.request)
        is_proven = False
        while not is_proven:
            sock.settimeout(max(until - time.monotonic(), 0.001))
            is_proven = challenge.feed(sock.recv(RECEIVE_BYTES))
    except BaseException:
        sock.close()
        raise
    return sock


def _receive_into(parser: http1.ResponseParser, sock: socket.socket) -> bytes:
    """Read what has arrived, and return the new part of the answer's body."""
    try:
        if data := sock.recv(RECEIVE_BYTES):
            return parser.feed(data)
        parser.eof()
    except OSError as error:
        raise Dropped(_describe(error)) from error
    return b""


def decode_answer(status: int, body: bytes) -> Any:
    """Return the JSON of a successful answer; raise the error that the status stands for otherwise."""
    try:
        decoded: Any = json.loads(body) if body else None
    except ValueError as error:
        if 200 <= status < 300:
            raise NotUnderstood("The answer did not come from a Kedge server. Check --host.") from error
        decoded = None
    if 200 <= status < 300:
        return decoded
    match decoded:
        case {"code": str(code), "message": str(message)}:
            pass
        case _:
            code, message = f"http_{status}", f"the server answered with status {status}"
    if status == 401:
        raise NotAllowed(f"{message}. Pass the server's token with --token-file or KEDGE_TOKEN.")
    if status == 403:
        raise NotAllowed(message)
    if status == 503 and code == "shutting_down":
        raise Dropped(message)
    raise Refused(status, code, message)


def _describe(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__

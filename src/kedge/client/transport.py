"""The synchronous transport: requests and event streams over a Unix socket or TCP, with nothing but sockets.

What goes wrong is `Dropped` (come back later), `NotAllowed`, `NotUnderstood` or `Refused`. A server of our own that is
not there is started.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping

from kedge.client import http1
from kedge.client.errors import Dropped, NotAllowed, NotUnderstood, Refused, SpawnFailed, Unreachable
from kedge.client.reconnect import SILENCE_S, Reconnect
from kedge.client.server_location import Endpoint
from kedge.client.waiter import Waiter
from kedge.protocol.address import AddressError, TcpAddress, UnixAddress
from kedge.protocol.peer import check_peer, check_socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Headers = Mapping[str, str]
NO_HEADERS: Headers = {}
CONNECT_S = 10.0  # a machine that does not answer at all
RECEIVE_BYTES = 256 * 1024


class Absent(Dropped):
    """Nobody listens there."""


class Wire:
    """One connection for requests, kept open; one more for each stream."""

    def __init__(self, endpoint: Endpoint, waiter: Waiter, *, client: str, timeout_s: float = SILENCE_S) -> None:
        self.endpoint = endpoint
        self.waiter = waiter
        self.client = client
        self.server_version: str | None = None  # None: it was never reached
        self.timeout_s = timeout_s
        self._headers = headers_for(endpoint, client)
        self._kept: socket.socket | None = None

    def call(
        self, method: str, target: str, body: object = None, *, policy: Reconnect, headers: Headers = NO_HEADERS
    ) -> Any:
        """Ask until there is an answer; the request must be one that may arrive twice."""
        while True:
            try:
                answer = self.request(method, target, body, headers)
                policy.reached()
                return answer
            except (Dropped, SpawnFailed) as error:
                self.back_off(policy, error)

    def back_off(self, policy: Reconnect, error: Exception) -> None:
        """Wait before the next try, or give up."""
        if isinstance(error, SpawnFailed) and self.server_version is None:
            raise error  # what keeps a first server from starting does not pass by itself
        delay_s = policy.next_delay_s()
        if delay_s is None:
            raise unreachable(self.endpoint, policy, error) from error
        self.waiter.pause(delay_s)

    def request(self, method: str, target: str, body: object = None, headers: Headers = NO_HEADERS) -> Any:
        """One request, once; returns the decoded answer."""
        data = None if body is None else json.dumps(body).encode()
        sock, self._kept = self._reusable() or self.connect(), None
        parser = http1.ResponseParser()
        try:
            self._send(sock, method, target, data, headers)
            pieces: list[bytes] = []
            while not parser.is_complete:
                pieces.append(self._receive(sock, parser))
            self._saw(parser)
        except BaseException:
            sock.close()
            raise
        if parser.is_reusable:
            self._kept = sock
        else:
            sock.close()
        return answer_of(parser.status, b"".join(pieces))

    def stream(self, target: str) -> Iterator[bytes]:
        """The body of an endless answer, as it comes; an empty piece: nothing for now. Ends only by `Dropped`."""
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
                answer_of(parser.status, body)
            if body:
                yield body
            silent_since = time.monotonic()
            while not parser.is_complete:
                left_s = silent_since + self.timeout_s - time.monotonic()
                if self.waiter.wait(sock.fileno(), left_s):
                    yield parser.feed(_received(sock, parser))
                    silent_since = time.monotonic()
                elif left_s <= 0:
                    raise Dropped(f"the stream was silent for {self.timeout_s:.0f} s")
                else:
                    yield b""
        finally:
            sock.close()
        raise Dropped("the server ended the stream")

    def connect(self) -> socket.socket:
        try:
            return connected(self.endpoint)
        except Absent:
            if not self.endpoint.is_ours:
                raise
        from kedge.client import server_process

        self.waiter.say("starting the server")
        return server_process.start(self.endpoint, self.waiter, lambda: connected(self.endpoint))

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _reusable(self) -> socket.socket | None:
        """The kept connection, unless the server has closed it meanwhile."""
        sock, self._kept = self._kept, None
        if sock is not None and Waiter().wait(sock.fileno(), 0.0):
            sock.close()
            return None
        return sock

    def _send(
        self, sock: socket.socket, method: str, target: str, body: bytes | None, headers: Headers = NO_HEADERS
    ) -> None:
        sock.settimeout(self.timeout_s)
        try:
            sock.sendall(http1.request(method, target, {**self._headers, **headers}, body))
        except OSError as error:
            raise Dropped(_reason(error)) from error

    def _receive(self, sock: socket.socket, parser: http1.ResponseParser) -> bytes:
        until = time.monotonic() + self.timeout_s
        while not self.waiter.wait(sock.fileno(), left_s := until - time.monotonic()):
            if left_s <= 0:
                raise Dropped(f"no answer for {self.timeout_s:.0f} s")
        return parser.feed(_received(sock, parser))

    def _saw(self, parser: http1.ResponseParser) -> None:
        self.server_version = parser.headers.get("kedge-version", "")


def unreachable(endpoint: Endpoint, policy: Reconnect, error: Exception) -> Unreachable:
    told = f"the server at {endpoint.address} could not be reached for {policy.give_up_s:.0f} s ({error})"
    return Unreachable(f"{told}; is it running? 'kedge serve' starts one")


def headers_for(endpoint: Endpoint, client: str) -> dict[str, str]:
    where = endpoint.address
    host = "localhost" if isinstance(where, UnixAddress) else str(where).removeprefix("tcp://")
    headers = {"Host": host, "Kedge-Client": client, "Content-Type": "application/json"}
    if endpoint.token:
        headers["Authorization"] = f"Bearer {endpoint.token}"
    return headers


def connected(endpoint: Endpoint) -> socket.socket:
    """A connection to a server that is the user's own (P16): it has sent nothing but the question for a proof."""
    where = endpoint.address
    try:
        return _connected_unix(where) if isinstance(where, UnixAddress) else _connected_tcp(endpoint, where)
    except AddressError as error:
        raise NotAllowed(str(error)) from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise Absent(_reason(error)) from error
    except PermissionError as error:
        raise NotAllowed(f"{where} belongs to somebody else; choose another --data-dir or --host") from error
    except OSError as error:
        raise Dropped(_reason(error)) from error


def _connected_unix(where: UnixAddress) -> socket.socket:
    check_socket(where)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect(where.path)
        check_peer(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


def _connected_tcp(endpoint: Endpoint, where: TcpAddress) -> socket.socket:
    from kedge.client.challenge import Challenge

    until = time.monotonic() + CONNECT_S
    sock = socket.create_connection((where.host, where.port), timeout=CONNECT_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = Challenge(endpoint, sock.getpeername())
        sock.sendall(challenge.request)
        is_proven = False
        while not is_proven:
            sock.settimeout(max(until - time.monotonic(), 0.001))
            is_proven = challenge.feed(sock.recv(RECEIVE_BYTES))
    except BaseException:
        sock.close()
        raise
    return sock


def _received(sock: socket.socket, parser: http1.ResponseParser) -> bytes:
    try:
        data = sock.recv(RECEIVE_BYTES)
    except OSError as error:
        raise Dropped(_reason(error)) from error
    if not data:
        parser.eof()
    return data


def answer_of(status: int, body: bytes) -> Any:
    try:
        decoded: Any = json.loads(body) if body else None
    except ValueError as error:
        if 200 <= status < 300:
            raise NotUnderstood("what answers there is no Kedge server; check --host") from error
        decoded = None
    if 200 <= status < 300:
        return decoded
    match decoded:
        case {"code": str(code), "message": str(message)}:
            pass
        case _:
            code, message = f"http_{status}", f"the server answered {status}"
    if status == 401:
        raise NotAllowed(f"{message}; give the server's token with --token-file or KEDGE_TOKEN")
    if status == 403:
        raise NotAllowed(message)
    if status == 503 and code == "shutting_down":
        raise Dropped(message)
    raise Refused(status, code, message)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__

"""Requests on one kept connection, and event streams (SSE) on others; over a Unix socket or TCP, without a library of
any peer."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from bench.peers.servers.stream import LIMIT_S, RECEIVE_BYTES, Ended, Stream
from kedge.http.http1 import ResponseParser, build_request
from kedge.protocol.address import Address, UnixAddress
from kedge.protocol.sse import SseParser

_NONE: Mapping[str, str] = {}


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, target: str, told: bytes) -> None:
        super().__init__(f"{target}: {status} {told[:200].decode(errors='replace')}")
        self.status = status


def connect(where: Address) -> socket.socket:
    """A plain connection: a peer proves nothing."""
    if isinstance(where, UnixAddress):
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(where.path)
        except OSError:
            sock.close()
            raise
        return sock
    return socket.create_connection((where.host, where.port))


class Http:
    def __init__(self, where: Address, headers: Mapping[str, str] = _NONE) -> None:
        self.where = where
        host = "localhost" if isinstance(where, UnixAddress) else f"{where.host}:{where.port}"
        self._headers = {"Host": host, **headers}
        self._sock: socket.socket | None = None

    def call(self, method: str, target: str, body: object = None) -> Any:
        """One request; the answer's JSON, or None where it has no body."""
        return self.exchange(method, target, body)[0]

    def exchange(self, method: str, target: str, body: object = None) -> tuple[Any, dict[str, str]]:
        """The same, with the headers of the answer."""
        sock = self._kept() or connect(self.where)
        self._sock = None  # and only again if all goes well
        sock.settimeout(LIMIT_S)
        parser, told = ResponseParser(), b""
        try:
            sock.sendall(self._request(method, target, body))
            while not parser.is_complete:
                data = sock.recv(RECEIVE_BYTES)
                if not data:
                    parser.eof()
                told += parser.feed(data)
        except BaseException:
            sock.close()
            raise
        if parser.is_reusable:
            self._sock = sock
        else:
            sock.close()
        if parser.status >= 300:
            raise Refused(parser.status, target, told)
        return json.loads(told) if told else None, parser.headers

    def events(self, target: str, headers: Mapping[str, str] = _NONE) -> Stream:
        """An event stream, once its head is there."""
        sock = connect(self.where)
        sock.settimeout(LIMIT_S)
        sock.sendall(build_request("GET", target, {**self._headers, "Accept": "text/event-stream", **headers}))
        parser = _Sse(target)
        stream = Stream(sock, parser)
        try:
            while not parser.has_head:
                stream.receive()
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _kept(self) -> socket.socket | None:
        """The connection of the last request, unless the server has closed it meanwhile: some do after seconds."""
        if self._sock is not None and select.select([self._sock], [], [], 0)[0]:
            self.close()
        return self._sock

    def _request(self, method: str, target: str, body: object) -> bytes:
        if body is None:
            return build_request(method, target, self._headers)
        return build_request(
            method, target, {**self._headers, "Content-Type": "application/json"}, json.dumps(body).encode()
        )


class _Sse:
    def __init__(self, target: str) -> None:
        self._target = target
        self._http = ResponseParser()
        self._sse = SseParser()

    @property
    def has_head(self) -> bool:
        return self._http.has_head

    def feed(self, data: bytes) -> Iterable[tuple[bytes, str | None]]:
        body = self._http.feed(data)
        if self._http.status >= 300:
            raise Refused(self._http.status, self._target, body)
        if self._http.is_complete:
            raise Ended("the server ended the stream")
        return [(told, mark) for mark, told, _ in self._sse.feed(body)]

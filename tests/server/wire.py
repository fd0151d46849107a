"""A connection without a socket: a transport that notes what the protocol does, and applications for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kedge.server.exchange import App, Exchange
from kedge.server.http_connection import HttpConnection, OpenConnections

BUFFER_BYTES = 64 * 1024  # as asyncio's transports have it


class Wire(asyncio.Transport):
    """The client's end. Reads all that is written, unless `is_stalled`."""

    def __init__(self, connect: Callable[[], asyncio.Protocol], *, is_stalled: bool = False) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_paused = self.is_closed = self.was_aborted = False
        self._is_stalled = is_stalled
        self._protocol = connect()
        self._protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)}.get(name, default)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.is_closed:
            return
        self.written += data
        if self._is_stalled and len(self.written) > BUFFER_BYTES:
            self._protocol.pause_writing()

    def read_all(self) -> None:
        self._is_stalled = False
        self._protocol.resume_writing()

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.was_aborted = True
        self.close()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def feed(self, data: bytes) -> None:
        assert not self.is_paused
        if not self.is_closing():
            self._protocol.data_received(data)


class Served:
    """An application behind our protocol."""

    def __init__(self, app: App, *, is_stalled: bool = False) -> None:
        self.opened = OpenConnections(set(), set())
        self.wire = Wire(lambda: HttpConnection(app, self.opened), is_stalled=is_stalled)

    @property
    def connection(self) -> HttpConnection:
        (connection,) = self.opened.connections
        return connection

    async def settle(self) -> None:
        await settle(self.wire)


async def settle(wire: Wire) -> None:
    """Wait until nothing happens any more. Nothing here waits for the outside, except as a test says."""
    quiet, before = 0, -1
    while quiet < 12:
        await asyncio.sleep(0)
        quiet, before = quiet + 1 if len(wire.written) == before else 0, len(wire.written)


async def feed(wire: Wire, pieces: Sequence[bytes], *, at_leisure: bool) -> None:
    for piece in pieces:
        wire.feed(piece)
        if at_leisure or wire.is_paused:
            await settle(wire)
    await settle(wire)


async def echo(exchange: Exchange) -> None:
    """Answers with the request, when it has all of it."""
    body = b""
    while not exchange.is_body_read:
        if (piece := await exchange.read()) is None:
            return
        body += piece
    answer = describe(exchange.method, exchange.path, exchange.query, exchange.headers, body)
    await exchange.start(200, {} if exchange.path == "/stream" else {"content-length": str(len(answer))})
    await exchange.send(answer, is_end=True)


async def asgi_echo(scope: Any, receive: Any, send: Any) -> None:
    """The same for a server that speaks ASGI."""
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    else:
        return
    answer = describe(scope["method"], scope["path"], scope["query_string"], scope["headers"], body)
    headers = [] if scope["path"] == "/stream" else [(b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def describe(method: str, path: str, query: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    seen = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
    return json.dumps([method, path, query.decode("latin-1"), seen, body.decode("latin-1")]).encode()

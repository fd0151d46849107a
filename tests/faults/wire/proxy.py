"""A bad network between a client and its server: connections are cut, delayed, doubled, or lead nowhere.

It lives on the test's own loop. For each request it is asked what is to happen (`FateOf`); answers are counted in bytes
from the request on, because a kept connection carries one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, Self

from kedge.protocol import proof
from tests.client.byteserver import json_answer
from tests.faults.wire.cuts import Cut
from tests.support.model_server import HOST
from tests.support.stream_server import Connections

METHODS = (b"GET ", b"POST ")


class Uncut:
    """Lets everything through."""

    def let(self, data: bytes) -> tuple[bytes, bool]:
        return data, False


class Passage(Protocol):
    def let(self, data: bytes) -> tuple[bytes, bool]:
        """What of the answer gets through, and whether the connection is cut after it."""
        ...


async def at_once() -> None:
    pass


@dataclasses.dataclass
class Fate:
    """Of one request."""

    passage: Passage = dataclasses.field(default_factory=Uncut)
    is_lost: bool = False  # a black hole: it is taken, and never answered
    is_doubled: bool = False  # it reaches the server twice; only one answer comes back
    is_refused: bool = False  # the connection is closed before a byte of it is passed on
    pause: Callable[[], Awaitable[None]] = at_once  # before each piece, either way
    piece_bytes: int = 65536


FateOf = Callable[[bytes], Fate]  # told the beginning of a request, with all of its head


def is_stream(request: bytes) -> bool:
    return b"/events" in request.split(b"\r\n", 1)[0]


class Proxy:
    """In front of a server's Unix socket; use as `async with`. Listens at `path`, or else on a loopback port, where
    connections are reset, and do not just end. Says how many it cut. Over TCP it is the server to the client: it
    proves that it knows the token."""

    def __init__(self, server: str, path: Path | None, fate_of: FateOf, token: str = "") -> None:
        self.cuts = 0
        self._token = token
        self._path = path
        self._server = server
        self._fate_of = fate_of
        self._listener: asyncio.Server | None = None
        self._connections = Connections(self._serve)

    @property
    def host(self) -> str:
        if self._path:
            return f"unix://{self._path}"
        assert self._listener is not None
        return f"tcp://{HOST}:{self._listener.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._path:
            self._listener = await loop.create_unix_server(self._connections.accept, self._path)
        else:
            self._listener = await loop.create_server(self._connections.accept, HOST, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        await self._connections.close(self._listener)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(writer.close)
            if not self._path:
                await self._prove(reader, writer)
            link = Link(*await self._dial(stack))
            up = asyncio.ensure_future(self._up(reader, link, stack))
            down = asyncio.ensure_future(self._down(writer, link))
            try:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (up, down):
                    task.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
                if isinstance(link.fate.passage, Cut):
                    link.fate.passage.close()

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        nonce = head.partition(b"nonce=")[2][: proof.NONCE_HEX].decode()
        address = proof.format_address(writer.get_extra_info("sockname"))
        writer.write(json_answer({"proof": proof.compute_proof(self._token, nonce, address), "address": address}))

    async def _dial(self, stack: contextlib.AsyncExitStack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self._server)
        stack.callback(writer.close)
        return reader, writer

    async def _up(self, reader: asyncio.StreamReader, link: Link, stack: contextlib.AsyncExitStack) -> None:
        """What the client sends; a client waits for its answer before it sends the next request."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if data.startswith(METHODS):
                    link.twin = None
                    link.fate = self._fate_of(data)
                    if link.fate.is_doubled:
                        answers, link.twin = await self._dial(stack)
                        stack.callback(asyncio.ensure_future(_ignore(answers)).cancel)
                if link.fate.is_refused:
                    self.cuts += 1
                    return
                if link.fate.is_lost:
                    continue
                await link.fate.pause()
                if link.twin:
                    link.twin.write(data)
                    await link.twin.drain()
                link.writer.write(data)
                await link.writer.drain()

    async def _down(self, writer: asyncio.StreamWriter, link: Link) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await link.reader.read(link.fate.piece_bytes):
                passed, is_cut = link.fate.passage.let(data)
                await link.fate.pause()
                writer.write(passed)
                if is_cut:
                    self.cuts += 1
                    if not self._path:
                        _reset(writer)
                    return
                await writer.drain()


class Link:
    """The other half of a client's connection, and what is to happen to the request that is on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.twin: asyncio.StreamWriter | None = None
        self.fate = Fate()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Without an orderly end; the client may even lose what it had received and not read."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _ignore(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(65536):
            pass

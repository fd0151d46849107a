"""A bad network between a client and its server: connections are cut, delayed, doubled, or lead nowhere.

It lives on the test's own loop. For each request it is asked what is to happen (`FateOf`); answers are counted in bytes
from the request on, because a kept connection carries one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, Self

from tests.faults.wire.cuts import Cut

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
    """Listens at `path`; use as `async with`. Says how many requests it saw, and how many connections it cut."""

    def __init__(self, server: str, path: Path, fate_of: FateOf) -> None:
        self.path = path
        self.requests = 0
        self.cuts = 0
        self._server = server
        self._fate_of = fate_of
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def host(self) -> str:
        return f"unix://{self.path}"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_unix_server(self._connected, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(writer.close)
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

    async def _dial(self, stack: contextlib.AsyncExitStack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self._server)
        stack.callback(writer.close)
        return reader, writer

    async def _up(self, reader: asyncio.StreamReader, link: Link, stack: contextlib.AsyncExitStack) -> None:
        """What the client sends; a client waits for its answer before it sends the next request."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if data.startswith(METHODS):
                    self.requests += 1
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
                    return
                await writer.drain()


class Link:
    """The other half of a client's connection, and what is to happen to the request that is on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.twin: asyncio.StreamWriter | None = None
        self.fate = Fate()


async def _ignore(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(65536):
            pass

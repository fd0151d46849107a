"""The connections of a test's stream server, all of which are closed with the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class Connection(asyncio.StreamReaderProtocol):
    """A connection that knows when its client left, also while nothing is read."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(asyncio.StreamReader(), connections.start_task)
        self.gone = asyncio.Event()
        self._open = connections.open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._open[self] = transport
        super().connection_made(transport)

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._open.pop(self, None)
        super().connection_lost(exc)


class Connections:
    """Serves each connection in a task; `accept` is the protocol factory for `create_server`."""

    def __init__(self, serve: Serve) -> None:
        self.open: dict[Connection, asyncio.WriteTransport] = {}
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self) -> Connection:
        return Connection(self)

    def start_task(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve_one(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, server: asyncio.Server) -> None:
        """Close a server and every connection that it accepted."""
        server.close()
        await asyncio.sleep(0)  # a task of asyncio that is canceled before its first step leaves its new socket open
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for transport in self.open.values():
            transport.abort()  # close() would wait for a client that does not read
        await asyncio.sleep(0)  # the sockets are closed in the loop's next round

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            writer.close()

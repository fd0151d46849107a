"""An HTTP server whose answers a test writes byte by byte: servers that are slow, wrong or hostile."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple


class Got(NamedTuple):
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]  # with lower-case names
    body: bytes

    @property
    def message(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Got, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    def __init__(self, answer: Answer) -> None:
        self.got: list[Got] = []
        self.url = ""
        self._answer = answer

    @contextlib.asynccontextmanager
    async def run(self, path: str = "/mcp") -> AsyncGenerator[RawServer]:
        tasks: set[asyncio.Task[None]] = set()

        def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.create_task(self._serve(reader, writer)))

        server = await asyncio.start_server(start, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").strip().split("\r\n")
                method, path, _ = first.split(" ", 2)
                headers: dict[str, str] = {}
                for name, value in (line.split(": ", 1) for line in lines):
                    known = headers.get(name.lower())
                    headers[name.lower()] = value if known is None else f"{known}, {value}"
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                got = Got(method, path, headers, body)
                self.got.append(got)
                await self._answer(got, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


def head(status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def document(value: Any, status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer with a JSON body."""
    body = json.dumps(value).encode()
    return head(status, Content_Type="application/json", Content_Length=str(len(body)), **headers) + body


def result(got: Got, value: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": got.message["id"], "result": value}


def event(value: Any, name: str = "message") -> bytes:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()


STREAM = head(Content_Type="text/event-stream", Connection="close")
DISCOVERED: dict[str, Any] = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
}
INITIALIZED: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "raw", "version": "1"},
}

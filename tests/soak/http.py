"""The plainest way to ask: one connection for each request, nothing retried, and what came back or did not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

from kedge.client.errors import Dropped
from kedge.http.http1 import ResponseParser, build_request
from tests.soak.record import Asked

LIMIT_S = 120.0  # of an answer; far above what any takes, because the machine may be busy
CHUNK = 65_536


class Answer(NamedTuple):
    asked: Asked
    body: Any

    @property
    def status(self) -> int | None:
        return self.asked.status


class Wire:
    """To one socket, whoever listens there."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def ask(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        began = time.monotonic()
        try:
            parser, data = await self._answer(method, target, body, headers)
        except (OSError, Dropped):  # a time that ran out is one of them
            return Answer(Asked(began, time.monotonic(), None), None)
        told: Any = json.loads(data) if data else None
        code = str(told["code"]) if parser.status >= 400 else ""
        asked = Asked(began, time.monotonic(), parser.status, code, "retry-after" in parser.headers)
        return Answer(asked, told)

    async def raw(self, target: str) -> bytes:
        """The bytes of an answer that must come."""
        parser, data = await self._answer("GET", target, None, None)
        assert parser.status == 200, data
        return data

    async def _answer(
        self, method: str, target: str, body: object, headers: Mapping[str, str] | None
    ) -> tuple[ResponseParser, bytes]:
        parser, data = ResponseParser(), b""
        async with asyncio.timeout(LIMIT_S), self._sent(method, target, body, headers) as reader:
            while not parser.is_complete:
                piece = await reader.read(CHUNK)
                data += parser.feed(piece)
                if not piece:
                    parser.eof()
        return parser, data

    async def stream(self, target: str, headers: Mapping[str, str] | None = None) -> AsyncGenerator[bytes]:
        """Pieces of the body, until the server ends it or goes away."""
        parser = ResponseParser()
        with contextlib.suppress(OSError, Dropped):
            async with self._sent("GET", target, None, headers) as reader:
                while not parser.is_complete and (piece := await reader.read(CHUNK)):
                    if data := parser.feed(piece):
                        if parser.status != 200:
                            return
                        yield data

    @contextlib.asynccontextmanager
    async def _sent(
        self, method: str, target: str, body: object, headers: Mapping[str, str] | None
    ) -> AsyncGenerator[asyncio.StreamReader]:
        fields = {"Host": "localhost", "Connection": "close", **(headers or {})}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            fields["Content-Type"] = "application/json"
        # A small buffer: a reader that stalls soon stalls the server's side, too.
        reader, writer = await asyncio.open_unix_connection(self.path, limit=CHUNK)
        try:
            writer.write(build_request(method, target, fields, data))
            await writer.drain()
            yield reader
        finally:
            writer.close()

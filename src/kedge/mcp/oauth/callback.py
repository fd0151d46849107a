"""The loopback redirect of a login: a listener on 127.0.0.1 that takes one answer of the browser."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from html import escape
from urllib.parse import parse_qs, urlsplit

PATH = "/callback"
MAX_HEAD_BYTES = 16 * 1024
READ_S = 10.0
_PAGE = (
    "<!doctype html><meta charset=utf-8><title>Kedge</title>"
    "<body style='font-family:system-ui;margin:4em'><h1>{title}</h1><p>{text}</p>"
)

Answer = dict[str, str]
Take = Callable[[Answer], str | None]
"""Takes the answer of the browser. Returns a line for the page, None if the answer belongs to no login."""


class CallbackListener:
    """Listens from `open` until `close`. Answers that belong to no login change nothing."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self, port: int = 0) -> str:
        """Listen on a port, or on any free one (0); return the redirect URI. Raises `OSError`."""
        self._server = await asyncio.start_server(self._start, "127.0.0.1", port, limit=MAX_HEAD_BYTES)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{PATH}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._connections:  # the page may still be on its way
            await asyncio.wait(self._connections, timeout=1.0)
        for task in self._connections:
            task.cancel()

    def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                async with asyncio.timeout(READ_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    status, title, text = self._answer(head)
                    page = _PAGE.format(title=escape(title), text=escape(text)).encode()
                    writer.write(
                        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n"
                        f"Content-Length: {len(page)}\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
                        f"Connection: close\r\n\r\n".encode()
                        + page
                    )
                    await writer.drain()
            finally:
                writer.close()

    def _answer(self, head: bytes) -> tuple[str, str, str]:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target = rest.partition(" ")[0]
        if method != "GET" or urlsplit(target).path != PATH:
            return "404 Not Found", "Nothing here", "This address only takes the answer of a login."
        text = self._take(parse_answer(target))
        if text is None:
            return "400 Bad Request", "Unknown login", "This answer belongs to no login that Kedge has begun."
        return "200 OK", "Kedge", text


def parse_answer(url: str) -> Answer:
    """Return the parameters of a redirect. A parameter that is there twice is left out: it proves nothing."""
    query = parse_qs(urlsplit(url).query, keep_blank_values=True, max_num_fields=50)
    return {name: values[0] for name, values in query.items() if len(values) == 1}

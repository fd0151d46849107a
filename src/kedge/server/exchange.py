"""A request and its response: calls the application, and frames the response as HTTP/1.1."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from kedge.protocol.errors import ErrorBody
from kedge.protocol.events import encode

log = logging.getLogger(__name__)

_REASONS = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_is_header_name = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_find_control = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]").search


class Connection(Protocol):
    """The connection as its exchanges use it."""

    transport: asyncio.Transport
    server: tuple[str, int | None]  # the address of our end
    is_read_only: bool  # a process of the agent

    def mark_authenticated(self) -> None: ...
    async def drain(self) -> None: ...
    def parse(self) -> None: ...
    def end_response(self, *, keep_alive: bool) -> None: ...


class Exchange:
    def __init__(
        self,
        connection: Connection,
        method: str,
        path: str,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        is_http_1_0: bool,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.connection = connection
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers  # their names in lower case
        self.is_http_1_0 = is_http_1_0
        self.keep_alive = keep_alive
        self.body = bytearray()  # received, and not yet taken by the application
        self.is_body_read = False  # all of it
        self.is_sent = False  # at least a part of the response
        self._expects_continue = expects_continue
        self._has_whole_body = False
        self._is_disconnected = False
        self._is_complete = False  # the response
        self._changed: asyncio.Event | None = None  # exists once the application has waited for the client
        self._head: bytes | None = None  # of the response
        self._is_chunked = False
        self._bytes_left: int | None = None  # of the response's body; None: it ends when the application says so

    async def run(self, app: App) -> None:
        """Call the application. If it fails, answer 500 if nothing was sent, otherwise cut the connection."""
        try:
            await app(self)
            if not self._is_over:
                raise RuntimeError("the application did not complete its response")
        except Exception:
            log.exception("%s %s failed", self.method, self.path)
            if not self._is_over:
                self._fail()
        except BaseException:  # canceled
            self.connection.transport.abort()
            raise

    def _fail(self) -> None:
        if self.is_sent:
            self.connection.transport.abort()
            return
        error = ErrorBody("internal", "Internal error. The server's log has the details.")
        self._write(build_error(500, error, with_body=self.method != "HEAD"))
        self.keep_alive = False
        self._end()

    @property
    def _is_over(self) -> bool:
        return self._is_disconnected or self._is_complete

    # --- the request

    def add_body(self, data: bytes) -> None:
        if not self._is_over:
            self.body += data
            self._wake()

    def end_body(self) -> None:
        self._has_whole_body = True
        self._wake()

    def disconnect(self) -> None:
        self._is_disconnected = True
        self.body.clear()
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def read(self) -> bytes | None:
        """Return the next piece of the body; None when the client has disconnected or got its response."""
        if self._expects_continue and not self._is_over and self._head is None:
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._expects_continue = False
        while not (self._is_over or self.body or (self._has_whole_body and not self.is_body_read)):
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            await self._changed.wait()
        if self._is_over:
            return None
        piece = bytes(self.body)
        self.is_body_read = self._has_whole_body
        self.body.clear()
        self.connection.parse()
        return piece

    async def wait_for_disconnect(self) -> None:
        while await self.read() is not None:
            pass

    # --- the response

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Start the response. Names of headers are in lower case. Raises `RuntimeError` for wrong framing."""
        await self.connection.drain()
        if self._is_disconnected:
            return
        if self._head is not None:
            raise RuntimeError("the response has already been started")
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n"]
        for name, value in headers.items():
            is_misplaced = name == "transfer-encoding" or (name == "content-length" and status == 204)
            if is_misplaced or not _is_header_name(name) or _find_control(value):
                raise RuntimeError(f"{name!r} is not a valid header here")
            if name != "connection":
                lines.append(f"{name}: {value}\r\n")
        self.keep_alive = self.keep_alive and headers.get("connection") != "close"
        if not self.keep_alive:
            lines.append("connection: close\r\n")
        has_body = self.method != "HEAD" and status not in (204, 304)
        length = int(headers["content-length"]) if "content-length" in headers else None
        if has_body and length is None and not self.is_http_1_0:  # HTTP/1.0: the end is the close
            self._is_chunked = True
            lines.append("transfer-encoding: chunked\r\n")
        lines.append("\r\n")
        self._bytes_left = length if has_body else 0
        self._head = "".join(lines).encode("latin-1")
        if self._bytes_left is None:
            self._write(self._head)  # the first chunk of a stream may come late; other heads are sent with the body

    async def send(self, body: bytes, *, is_end: bool) -> None:
        """Send a part of the body, after waiting for a slow client. Raises `RuntimeError` for wrong framing."""
        await self.connection.drain()
        if self._is_disconnected:
            return
        if self._head is None or self._is_complete:
            raise RuntimeError("a part of the body is out of order")
        if self.method == "HEAD":
            body = b""
        if self._bytes_left is not None:
            self._bytes_left -= len(body)
            if self._bytes_left < 0 or (is_end and self._bytes_left > 0):
                raise RuntimeError("the body is not as long as content-length says")
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk + b"0\r\n\r\n" if is_end else chunk
        self._write(body if self.is_sent else self._head + body)
        if is_end:
            self._end()

    def _write(self, data: bytes) -> None:
        self.is_sent = True
        if data:
            self.connection.transport.write(data)

    def _end(self) -> None:
        self._is_complete = True
        self.body.clear()
        self._wake()
        self.connection.end_response(keep_alive=self.keep_alive)


App = Callable[[Exchange], Awaitable[None]]


def build_error(status: int, error: ErrorBody, *, with_body: bool = True) -> bytes:
    """Return a whole response as JSON, after which the connection is to be closed."""
    body = encode(error)
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + (body if with_body else b"")

"""A request and its response: calls the application as ASGI describes it, and frames the response as HTTP/1.1."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from typing import Any, Protocol

from kedge.protocol.errors import ErrorBody
from kedge.protocol.events import encode
from kedge.server.app import App, Scope

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
_is_header_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_find_control = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search


class Connection(Protocol):
    """The connection as its exchanges use it."""

    transport: asyncio.Transport

    async def drain(self) -> None: ...
    def parse(self) -> None: ...
    def end_response(self, *, keep_alive: bool) -> None: ...


class Exchange:
    def __init__(self, connection: Connection, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        self.keep_alive = keep_alive
        self.body = bytearray()  # received, and not yet taken by the application
        self.is_sent = False  # at least a part of the response
        self._connection = connection
        self._scope = scope
        self._expects_continue = expects_continue
        self._has_whole_body = False
        self._has_taken_body = False
        self._is_disconnected = False
        self._is_complete = False  # the response
        self._changed: asyncio.Event | None = None  # exists once the application has waited for the client
        self._head: bytes | None = None  # of the response
        self._is_chunked = False
        self._bytes_left: int | None = None  # of the response's body; None: it ends when the application says so

    async def run(self, app: App) -> None:
        """Call the application. If it fails, answer 500 if nothing was sent, otherwise cut the connection."""
        try:
            await app(self._scope, self._receive, self._send)
            if not self._is_over:
                raise RuntimeError("the application did not complete its response")
        except Exception:
            log.exception("%s %s failed", self._scope["method"], self._scope["path"])
            if not self._is_over:
                self._fail()
        except BaseException:  # canceled
            self._connection.transport.abort()
            raise

    def _fail(self) -> None:
        if self.is_sent:
            self._connection.transport.abort()
            return
        error = ErrorBody("internal", "Internal error. The server's log has the details.")
        self._write(build_error(500, error, with_body=self._scope["method"] != "HEAD"))
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

    async def _receive(self) -> dict[str, Any]:
        if self._expects_continue and not self._is_over and self._head is None:
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._expects_continue = False
        while not (self._is_over or self.body or (self._has_whole_body and not self._has_taken_body)):
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            await self._changed.wait()
        if self._is_over:
            return {"type": "http.disconnect"}
        message = {"type": "http.request", "body": bytes(self.body), "more_body": not self._has_whole_body}
        self._has_taken_body = self._has_whole_body
        self.body.clear()
        self._connection.parse()
        return message

    # --- the response

    async def _send(self, message: Any) -> None:
        """Send a part of the response, after waiting for a slow client. Raises `RuntimeError` for wrong framing."""
        await self._connection.drain()
        if self._is_disconnected:
            return
        if message["type"] == "http.response.start" and self._head is None:
            self._start(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body" and self._head is not None and not self._is_complete:
            self._send_body(message.get("body", b""), is_end=not message.get("more_body", False))
        else:
            raise RuntimeError(f"{message['type']} is out of order")

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, "").encode())]
        length: int | None = None
        for name, value in headers:
            if not _is_header_name(name) or _find_control(value):
                raise RuntimeError(f"{name!r} is not a valid header")
            lower = name.lower()
            if lower == b"connection":
                self.keep_alive = self.keep_alive and value.lower() != b"close"
                continue
            if lower == b"transfer-encoding" or (lower == b"content-length" and (length is not None or status == 204)):
                raise RuntimeError(f"{name!r} is out of place")
            if lower == b"content-length":
                length = int(value)
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        has_body = self._scope["method"] != "HEAD" and status not in (204, 304)
        if has_body and length is None and self._scope["http_version"] == "1.1":  # HTTP/1.0: the end is the close
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self._bytes_left = length if has_body else 0
        self._head = b"".join(lines)
        if self._bytes_left is None:
            self._write(self._head)  # the first chunk of a stream may come late; other heads are sent with the body

    def _send_body(self, body: bytes, *, is_end: bool) -> None:
        assert self._head is not None
        if self._scope["method"] == "HEAD":
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
            self._connection.transport.write(data)

    def _end(self) -> None:
        self._is_complete = True
        self.body.clear()
        self._wake()
        self._connection.end_response(keep_alive=self.keep_alive)


def build_error(status: int, error: ErrorBody, *, with_body: bool = True) -> bytes:
    """Return a whole response as JSON, after which the connection is to be closed."""
    body = encode(error)
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + (body if with_body else b"")

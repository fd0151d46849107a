"""HTTP/1.1 connections: parses requests with httptools, answers them in their order, bounds sizes and times (P17)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import httptools

from kedge.server.errors import BadRequest
from kedge.server.exchange import App, Exchange, build_error

log = logging.getLogger(__name__)

# From connecting, or from the first byte of a later request, to the end of the headers.
HEAD_S = 10.0
# In each such interval of sending a body, at least MIN_BODY_BYTES must arrive: 1 KiB a second.
BODY_S = 10.0
MIN_BODY_BYTES = 10 * 1024
KEEP_ALIVE_S = 75.0  # how long a connection may be idle between two requests
MAX_HEAD_BYTES = 256 * 1024  # of the request line and headers: a hundred times a real one
MAX_HEADERS = 256
MAX_UNREAD_BYTES = 64 * 1024  # of a body, and as much behind it; then reading from the transport pauses
# The parser cannot stop within the data it is given, so this also bounds the pipelined requests that wait.
PARSE_BYTES = 4096

# "response": a whole request has arrived and is being answered. "idle": between two requests.
Phase = Literal["head", "body", "response", "idle"]


class OpenConnections(NamedTuple):
    """The connections of a listening socket, and the tasks that answer their requests."""

    connections: set[HttpConnection]
    tasks: set[asyncio.Task[None]]


class HttpConnection(asyncio.Protocol):
    """A client's connection. Works with every stream transport, TLS too.

    Only receiving a request is timed: an event stream, or a request that waits for a run, may last as long as it likes.
    """

    transport: asyncio.Transport
    is_read_only = False

    def __init__(self, app: App, opened: OpenConnections) -> None:
        self._app = app
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self.server: tuple[str, int | None] = ("", None)
        self._phase: Phase = "head"
        self._deadline: float | None = None  # of the phase
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of a head, or of chunk extensions and trailers, since the last byte of a body
        self._body_bytes = 0  # since the deadline was set
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._receiving: Exchange | None = None  # its body is not yet complete
        self._answering: Exchange | None = None
        self._waiting: deque[Exchange] = deque()  # pipelined behind it
        self._unparsed = b""
        self._is_reading_paused = False
        self._is_closing = False  # no more requests are parsed
        self._refusal: BadRequest | None = None  # sent when the requests before it are answered
        self._can_write = asyncio.Event()
        self._can_write.set()

    # --- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._opened.connections.add(self)
        name = transport.get_extra_info("sockname")
        self.server = name[:2] if isinstance(name, tuple) else (name, None)
        self._enter("head", HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.connections.discard(self)
        self._disconnect()
        if self._timer is not None:
            self._timer.cancel()
        self._parser = None  # it refers to us

    def eof_received(self) -> None:
        """Treat a client that has closed its side as gone, as uvicorn does. The transport closes itself."""
        self._disconnect()

    def data_received(self, data: bytes) -> None:
        if not self._is_closing:
            self._unparsed = self._unparsed + data if self._unparsed else data
            self.parse()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    # --- called by the listener

    def shutdown(self) -> None:
        """Close the connection after the response in flight."""
        if self._answering is None:
            self.transport.close()
        else:
            self._answering.keep_alive = False

    # --- called by exchanges

    def mark_authenticated(self) -> None:
        """Note that a request had a valid token."""

    async def drain(self) -> None:
        """Wait while the transport's buffer is full."""
        if not self._can_write.is_set():
            await self._can_write.wait()

    def parse(self) -> None:
        """Parse the data that has arrived, as far as there is room for it."""
        data, position = self._unparsed, 0
        while position < len(data) and self._has_room():
            if self._phase in ("response", "idle"):
                self._enter("head", HEAD_S)  # also for bytes that do not begin a request
            piece = data[position : position + PARSE_BYTES]
            position += len(piece)
            self._parse_piece(piece)
            if self._is_closing:
                position = len(data)
        self._unparsed = data[position:]
        self._pause_reading(len(self._unparsed) > MAX_UNREAD_BYTES)

    def end_response(self, *, keep_alive: bool) -> None:
        """Go on to the next request."""
        self._answering = None
        if not keep_alive:
            self._disconnect()
            self.transport.close()
        elif self._waiting:
            self._answer(self._waiting.popleft())
        elif self._refusal is not None:
            self._send_refusal(self._refusal)
        elif self._phase == "response":
            self._enter("idle", KEEP_ALIVE_S)
        self.parse()

    # --- parsing

    def _has_room(self) -> bool:
        unread = 0 if self._receiving is None else len(self._receiving.body)
        return not self._waiting and unread <= MAX_UNREAD_BYTES

    def _pause_reading(self, is_paused: bool) -> None:
        if is_paused != self._is_reading_paused:
            self._is_reading_paused = is_paused
            if is_paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _parse_piece(self, piece: bytes) -> None:
        body_bytes = self._body_bytes
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._is_closing = True
        except httptools.HttpParserError as error:
            if not self._is_closing:
                self._refuse(_explain(error))
        if self._phase == "head" or (self._phase == "body" and self._body_bytes == body_bytes):
            self._head_bytes += len(piece)
            if self._head_bytes > MAX_HEAD_BYTES and not self._is_closing:
                self._refuse(BadRequest("The headers of the request are too large."))
        else:
            self._head_bytes = 0

    def on_message_begin(self) -> None:
        if self._is_closing:
            raise BadRequest("The connection is closed after the previous request.")
        self._target, self._headers, self._head_bytes = b"", [], 0
        if self._phase != "head":  # it came in the same data as the end of the previous request
            self._enter("head", HEAD_S)

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == "body":
            return  # trailers are not used
        if len(self._headers) == MAX_HEADERS:
            raise BadRequest(f"The request has more than {MAX_HEADERS} headers.")
        name = name.lower()
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise BadRequest("Transfer-Encoding can only be chunked.")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        version: str = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise BadRequest("This server speaks HTTP/1.1.")
        headers = dict(self._headers)
        if version == "1.0" and b"transfer-encoding" in headers:
            raise BadRequest("HTTP/1.0 has no Transfer-Encoding.")
        is_upgrade: bool = self._parser.should_upgrade()  # the request is answered and the upgrade ignored
        if is_upgrade and (b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"):
            # The parser skips the body, which would then be read as the next request.
            raise BadRequest("A request with a body cannot ask for an upgrade.")
        url = httptools.parse_url(self._target)
        path = (url.path or b"/").decode("ascii")
        exchange = Exchange(
            self,
            self._parser.get_method().decode("ascii"),
            unquote(path) if "%" in path else path,
            url.query or b"",
            self._headers,
            is_http_1_0=version == "1.0",
            keep_alive=version == "1.1" and not is_upgrade and self._parser.should_keep_alive(),
            expects_continue=version == "1.1" and headers.get(b"expect", b"").lower() == b"100-continue",
        )
        self._receiving, self._body_bytes = exchange, 0
        self._enter("body", BODY_S)
        if self._answering is None:
            self._answer(exchange)
        else:
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        assert self._receiving is not None
        self._body_bytes += len(body)
        self._receiving.add_body(body)

    def on_message_complete(self) -> None:
        assert self._receiving is not None
        self._receiving.end_body()
        self._is_closing = not self._receiving.keep_alive
        self._receiving = None
        if self._answering is None:
            self._enter("idle", KEEP_ALIVE_S)
        else:
            self._enter("response", None)

    # --- the order of requests

    def _answer(self, exchange: Exchange) -> None:
        self._answering = exchange
        task = self._loop.create_task(exchange.run(self._app))
        self._opened.tasks.add(task)
        task.add_done_callback(self._opened.tasks.discard)

    def _refuse(self, error: BadRequest) -> None:
        """Answer 400 in place of the malformed request, after the requests before it, and close the connection."""
        broken, self._receiving = self._receiving, None
        self._is_closing, self._deadline = True, None
        if broken is not None and self._waiting:
            self._waiting.pop()
        elif broken is not None:
            broken.disconnect()
            self._answering = None
            if broken.is_sent:  # all or a part of its response: it gets no other
                self.transport.close()
                return
        if self._answering is None:
            self._send_refusal(error)
        else:
            self._refusal = error

    def _send_refusal(self, error: BadRequest) -> None:
        self.transport.write(build_error(400, error.body))
        self.transport.close()

    def _disconnect(self) -> None:
        self._is_closing, self._unparsed, self._deadline = True, b"", None
        self._waiting.clear()
        if self._answering is not None:
            self._answering.disconnect()
        self._can_write.set()

    # --- time

    def _enter(self, phase: Phase, seconds: float | None) -> None:
        """Enter a phase that may last so long. The timer is moved only when it would be late: few ever run out."""
        self._phase = phase
        self._deadline = None if seconds is None else self._loop.time() + seconds
        if self._deadline is not None and (self._timer is None or self._timer.when() > self._deadline):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)
        elif self._phase == "idle":
            self.transport.close()
        elif not self._has_room() or (self._phase == "body" and self._body_bytes >= MIN_BODY_BYTES):
            # Without room the client cannot send: the application has not yet taken the earlier data.
            self._body_bytes = 0
            self._enter(self._phase, BODY_S)
        else:
            # No response: a client that was suspended then sees a lost connection and sends its request again.
            self.transport.abort()


def _explain(error: httptools.HttpParserError) -> BadRequest:
    """Return the error that one of our callbacks raised, or the parser's own."""
    cause = error.__context__
    if isinstance(cause, BadRequest):
        return cause
    if cause is not None and not isinstance(cause, httptools.HttpParserError):
        log.error("a request could not be read", exc_info=cause)
    return BadRequest(f"Not a valid HTTP request: {cause or error}.")

"""An asynchronous HTTP/1.1 client with a pool of connections and timeouts.

It sends a request and streams the answer. It follows no redirects, keeps no cookies and decompresses nothing. It
imports little besides asyncio: packages that do the same take longer to import than the rest of a cold run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from urllib.parse import SplitResult, quote

from kedge.http.connection import (
    DEFAULT_PORTS,
    ConnectFailed,
    ConnectionLost,
    InvalidHeader,
    Origin,
    Stream,
    UntrustedCertificate,
    describe_error,
    parse_url,
)
from kedge.http.http1 import ResponseParser, build_request

MAX_IDLE_CONNECTIONS = 20  # of one server, kept for the next request: a handshake costs more than they do
IDLE_CONNECTION_S = 60.0
_SAFE_IN_TARGET = "/%:@!$&'()*+,;=~-._?[]"

Connect = Callable[[Origin], Awaitable[Stream]]
"""Opens a connection to a server. Raises `OSError` (also for TLS) or `HttpError`."""


class Response:
    """An answer whose body is not read yet. `headers` have lower-case names."""

    def __init__(self, stream: Stream, parser: ResponseParser, body: bytes, stall_s: float) -> None:
        self.status = parser.status
        self.headers: Mapping[str, str] = parser.headers
        self._stream = stream
        self._parser = parser
        self._body = body  # arrived together with the head
        self._stall_s = stall_s

    @property
    def is_complete(self) -> bool:
        """Whether the body was read to its end, so that the connection can take another request."""
        return self._parser.is_complete and self._parser.is_reusable and not self._body

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives. Raises `TimedOut` or `ConnectionLost`."""
        body, self._body = self._body, b""
        if body:
            yield body
        while not self._parser.is_complete:
            if body := await _receive(self._stream, self._parser, self._stall_s):
                yield body

    async def read(self) -> bytes:
        async with contextlib.aclosing(self.chunks()) as chunks:
            return b"".join([chunk async for chunk in chunks])


class HttpClient:
    """Sends requests, on connections that `connect` opens and that are kept for the next ones."""

    def __init__(self, connect: Connect, *, connect_s: float, stall_s: float) -> None:
        self._connect = connect
        self._connect_s = connect_s
        self._stall_s = stall_s
        self._idle: dict[Origin, list[Stream]] = {}  # of each origin, the one used last at the end
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        can_resend: bool = True,
        stall_s: float | None = None,
    ) -> AsyncGenerator[Response]:
        """Send a request. Leaving the context before the body's end closes the connection. Raises `HttpError`.

        `can_resend`: it may arrive twice, so it is sent again if a kept connection turns out to be closed. `stall_s`
        replaces that of the client; `inf` is no limit.
        """
        origin, parts = parse_url(url)

        def encode(stream: Stream) -> bytes:
            return _encode_request(stream, method, origin, parts, headers, body)

        stall_s = self._stall_s if stall_s is None else stall_s
        stream, response = await self._exchange(origin, encode, stall_s, can_resend=can_resend)
        try:
            yield response
        finally:
            if response.is_complete and stream.is_usable and not self._is_closed:
                self._keep(origin, stream)
            else:
                stream.close()

    def close(self) -> None:
        """Close the idle connections. Those in use are closed when their requests end."""
        self._is_closed = True
        for streams in self._idle.values():
            for stream in streams:
                stream.close()
        self._idle.clear()

    async def _exchange(
        self, origin: Origin, encode: Callable[[Stream], bytes], stall_s: float, *, can_resend: bool
    ) -> tuple[Stream, Response]:
        """Send a request until its head is answered.

        A server may close an idle connection while it is being used. Then it has probably not seen the request.
        """
        while True:
            kept = self._take_idle(origin)
            stream = kept or await self._open(origin)
            try:
                await stream.write(encode(stream), stall_s)
                parser, first = ResponseParser(), b""
                while not parser.has_head:
                    first = await _receive(stream, parser, stall_s)
            except ConnectionLost:
                stream.close()
                if kept is None or stream.has_received or not can_resend:
                    raise
            except BaseException:
                stream.close()
                raise
            else:
                return stream, Response(stream, parser, first, stall_s)

    async def _open(self, origin: Origin) -> Stream:
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._connect(origin)
        except TimeoutError:
            raise ConnectFailed(f"no answer within {self._connect_s:g} s") from None
        except OSError as error:
            if type(error).__name__ == "SSLCertVerificationError":  # without importing ssl
                raise UntrustedCertificate(getattr(error, "verify_message", "") or str(error)) from error
            raise ConnectFailed(describe_error(error)) from error

    def _take_idle(self, origin: Origin) -> Stream | None:
        streams = self._idle.get(origin, [])
        while streams:
            stream = streams.pop()
            if stream.is_usable and time.monotonic() - stream.idle_since < IDLE_CONNECTION_S:
                stream.has_received = False
                return stream
            stream.close()
        return None

    def _keep(self, origin: Origin, stream: Stream) -> None:
        stream.idle_since = time.monotonic()
        streams = self._idle.setdefault(origin, [])
        streams.append(stream)
        if len(streams) > MAX_IDLE_CONNECTIONS:
            streams.pop(0).close()


def _encode_request(
    stream: Stream, method: str, origin: Origin, parts: SplitResult, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    host = origin.netloc.removesuffix(f":{DEFAULT_PORTS[origin.scheme]}")
    target = quote(parts.path or "/", _SAFE_IN_TARGET, errors="replace")
    if parts.query:
        target += f"?{quote(parts.query, _SAFE_IN_TARGET, errors='replace')}"
    sent = dict(headers) if "host" in map(str.lower, headers) else {"Host": host, **headers}
    if stream.forwarding is not None:
        target, sent = f"{origin.scheme}://{host}{target}", {**sent, **stream.forwarding}
    try:
        return build_request(method, target, sent, body)
    except ValueError:  # also UnicodeError
        raise InvalidHeader("a header has a line break, or a character that headers cannot have") from None


async def _receive(stream: Stream, parser: ResponseParser, stall_s: float) -> bytes:
    """Read what has arrived, and return the new part of the body."""
    try:
        if data := await stream.read(stall_s):
            return parser.feed(data)
        parser.eof()
    except OSError as error:
        raise ConnectionLost(describe_error(error)) from error
    return b""

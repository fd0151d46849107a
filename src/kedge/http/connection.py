"""Connections of the HTTP client: their bytes with flow control, and how they are opened: TLS and proxies."""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from kedge.http.http1 import BrokenResponse, ResponseParser, build_request

if TYPE_CHECKING:
    import ssl

MAX_UNREAD_BYTES = 256 * 1024  # received and not yet read; then the connection stops receiving
WRITE_BYTES = 64 * 1024  # written at a time: a TLS transport accepts any amount, and does not report how much is sent
NEXT_ADDRESS_S = 0.25  # before the next address of a host is tried beside the first
# Probes after a minute of silence, every 15 s: after two minutes a peer that does not answer is gone.
KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPALIVE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
DEFAULT_PORTS = {"http": 80, "https": 443}


class HttpError(Exception):
    """A request got no complete answer."""


class InvalidUrl(HttpError):
    """The URL cannot be requested."""


class InvalidHeader(HttpError):
    """A header cannot be sent. The text does not quote it: it may be an API key."""


class ConnectFailed(HttpError):
    """No connection: the host is unknown, refuses, or does not answer in time; or a proxy refuses."""


class UntrustedCertificate(ConnectFailed):
    """The certificate of the host, or of the proxy, is not trusted."""


class ProxyRefused(ConnectFailed):
    """The proxy does not allow the connection, or rejects the password."""


class TimedOut(HttpError):
    """The server took nothing and sent nothing for too long."""


class ConnectionLost(HttpError):
    """The connection ended before the answer did, or the answer is not HTTP."""


class Origin(NamedTuple):
    """The server of a URL."""

    scheme: str
    host: str
    port: int

    @property
    def netloc(self) -> str:
        """HOST:PORT, as a proxy needs it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Stream(asyncio.Protocol):
    """The bytes of a connection, with flow control in both directions."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.has_received = False  # any byte since the connection was opened or taken from the pool
        # The headers for a proxy that forwards the requests; it needs the whole URL of each. None: no such proxy.
        self.forwarding: Mapping[str, str] | None = None
        self._unread = bytearray()
        self._is_closed = False
        self._error: Exception | None = None
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._changed: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.has_received = True
        self._unread += data
        if len(self._unread) > MAX_UNREAD_BYTES and not self._is_reading_paused:
            self._is_reading_paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._is_closed = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed, self._error = True, exc
        self._wake()

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._wake()

    @property
    def is_usable(self) -> bool:
        """Whether it can take a request: open, the last one is sent, and nothing arrived that was not asked for."""
        is_busy = self._unread or self._is_writing_paused
        return not (is_busy or self._is_closed or self.transport.is_closing())

    async def write(self, data: bytes, stall_s: float | None) -> None:
        """Send data. Returns early when the server answers or closes, which `read` reports. Raises `TimedOut`."""
        for start in range(0, len(data), WRITE_BYTES):
            if self.transport.is_closing():
                return  # asyncio logs writes to a broken connection
            self.transport.write(data[start : start + WRITE_BYTES])
            left = self.transport.get_write_buffer_size()
            while self._is_writing_paused:
                if self._unread or self._is_closed:
                    self.transport.write(data[start + WRITE_BYTES :])
                    return
                try:
                    await self._wait(stall_s)
                except TimedOut:
                    before, left = left, self.transport.get_write_buffer_size()
                    if left >= before:
                        raise

    async def read(self, stall_s: float | None) -> bytes:
        """Return the bytes that arrived, b"" at the end. Raises `TimedOut`, and `OSError` for a broken connection."""
        while not self._unread and not self._is_closed:
            await self._wait(stall_s)
        data = bytes(self._unread)
        self._unread.clear()
        if self._is_reading_paused:
            self._is_reading_paused = False
            if not self._is_closed:
                self.transport.resume_reading()
        if not data and self._error is not None:
            raise self._error
        return data

    def close(self) -> None:
        self.transport.abort()

    async def _wait(self, stall_s: float | None) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(None if stall_s == math.inf else stall_s):
                await self._changed
        except TimeoutError:
            raise TimedOut(f"nothing for {stall_s:g} s") from None
        finally:
            self._changed = None

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


def parse_url(url: str) -> tuple[Origin, SplitResult]:
    """Raises `InvalidUrl` for anything but http and https URLs."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host = host if host.isascii() else host.encode("idna").decode()
    except ValueError as error:  # also UnicodeError
        raise InvalidUrl(str(error)) from None
    if parts.scheme not in DEFAULT_PORTS or not host:
        raise InvalidUrl("only http:// and https:// with a host can be requested")
    if port == 0 or not all(0 < len(label) < 64 for label in host.removesuffix(".").split(".")):
        raise InvalidUrl("no host can have that name or port")
    return Origin(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme]), parts


def describe_error(error: OSError) -> str:
    """Return a text for people. asyncio puts addresses into its errors, and joins those of several addresses."""
    number = re.search(r"\[Errno (\d+)\] Connect call failed", str(error))
    if number:
        return os.strerror(int(number[1]))
    return error.strerror or str(error) or type(error).__name__


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let the system notice a peer that vanished: a request may wait for an answer without any other limit."""
    connected = transport.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE:
        if (number := getattr(socket, option, None)) is not None:  # not every system has each of them
            connected.setsockopt(socket.IPPROTO_TCP, number, value)


class Connector:
    """Opens connections to the origins of URLs, with TLS for https, directly or through a proxy."""

    def __init__(
        self, find_proxy: Callable[[Origin], str] = lambda _: "", make_tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        """`find_proxy` returns the URL of a proxy, or "". `make_tls` may block: it is called once, in a thread."""
        self._find_proxy = find_proxy
        self._make_tls = make_tls
        self._tls: asyncio.Future[ssl.SSLContext] | None = None

    async def open(self, origin: Origin) -> Stream:
        """Open a connection. Raises `OSError` (also for TLS), or `HttpError` for a proxy."""
        if not (url := self._find_proxy(origin)):
            return await self.open_address(origin, origin.host)
        proxy, authorization = parse_proxy(url)
        tls = await self.load_tls() if origin.scheme == "https" else None
        stream = await self.open_address(proxy, proxy.host)
        if tls is None:
            stream.forwarding = authorization
            return stream
        try:
            await _open_tunnel(stream, origin, authorization)
            loop = asyncio.get_running_loop()
            transport = await loop.start_tls(stream.transport, stream, tls, server_hostname=origin.host)
        except BaseException:
            stream.close()
            raise
        assert transport is not None
        stream.transport = transport
        return stream

    async def open_address(self, origin: Origin, address: str) -> Stream:
        """Open a connection to one address (or name) of the host. The certificate must be that of the host."""
        loop = asyncio.get_running_loop()
        tls = await self.load_tls() if origin.scheme == "https" else None
        _, stream = await loop.create_connection(
            Stream,
            address,
            origin.port,
            ssl=tls,
            server_hostname=origin.host if tls else None,
            happy_eyeballs_delay=NEXT_ADDRESS_S,
        )
        _keep_alive(stream.transport)
        return stream

    async def load_tls(self) -> ssl.SSLContext:
        """Return the TLS context, which is made at the first use."""
        if self._tls is None:
            self._tls = asyncio.ensure_future(asyncio.to_thread(self._make_tls or load_certificates))
        try:
            return await asyncio.shield(self._tls)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._tls = None  # the files may be there at the next attempt
            raise


async def open_unix_stream(path: str) -> Stream:
    _, stream = await asyncio.get_running_loop().create_unix_connection(Stream, path)
    return stream


def parse_proxy(url: str) -> tuple[Origin, Mapping[str, str]]:
    """Return the proxy of a URL and the header with its password. Raises `InvalidUrl`, which does not quote the URL."""
    try:
        origin, parts = parse_url(url)
    except InvalidUrl:
        raise InvalidUrl("the URL of the proxy is not valid, or not http:// or https://") from None
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidUrl("the URL of the proxy has more than a host and a port")
    if parts.username is None:
        return origin, {}
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return origin, {"Proxy-Authorization": f"Basic {b64encode(credentials.encode()).decode()}"}


async def _open_tunnel(stream: Stream, origin: Origin, authorization: Mapping[str, str]) -> None:
    """Ask a proxy for a connection to `origin`. The caller bounds the time."""
    request = build_request("CONNECT", origin.netloc, {"Host": origin.netloc, **authorization})
    await stream.write(request, None)
    parser = ResponseParser(has_body=False)
    while not parser.has_head:
        data = await stream.read(None)
        if not data:
            raise ConnectFailed("the proxy closed the connection")
        parser.feed(data)
    if not 200 <= parser.status < 300:
        kind = ProxyRefused if 400 <= parser.status < 500 else ConnectFailed
        raise kind(f"the proxy answered with status {parser.status}")
    if not parser.is_reusable or not stream.is_usable:
        raise BrokenResponse("the proxy sent bytes that nothing asked for")


def load_certificates(ca_file: str = "", ca_dir: str = "") -> ssl.SSLContext:
    """Make a TLS context that trusts the given certificates, or those of the machine. Blocks. Raises `OSError`."""
    import ssl

    ca_file = ca_file or os.environ.get("SSL_CERT_FILE", "")
    ca_dir = ca_dir or os.environ.get("SSL_CERT_DIR", "")
    if ca_file or ca_dir:
        return ssl.create_default_context(cafile=ca_file or None, capath=ca_dir or None)
    import truststore  # the certificates of the machine, also on macOS

    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

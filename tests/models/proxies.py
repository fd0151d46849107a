"""A CONNECT proxy and a TLS front on loopback, with certificates that a test makes: the way out, for real."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

from tests.support.stream_server import Connections, Serve

HOST = "127.0.0.1"
_EC = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"


class Authority(NamedTuple):
    """Who signed the certificate of a name."""

    ca_file: Path
    certificate: Path
    key: Path


def new_authority(directory: Path, name: str) -> Authority:
    made = Authority(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
    ca_key, request, extra = directory / "ca.key", directory / "cert.csr", directory / "ext"
    extra.write_text(f"subjectAltName=DNS:{name}\n")
    signing = f"-in {request} -CA {made.ca_file} -CAkey {ca_key} -CAcreateserial -days 2 -extfile {extra}"
    for command in (
        f"openssl req -x509 {_EC} -subj /CN=KedgeTests -keyout {ca_key} -out {made.ca_file}",
        f"openssl req {_EC} -subj /CN={name} -keyout {made.key} -out {request}",
        f"openssl x509 -req {signing} -out {made.certificate}",
    ):
        subprocess.run(command.split(), check=True, capture_output=True, timeout=30)
    return made


class Proxy:
    """Takes CONNECT for whatever name, and leads to `port` on this machine."""

    def __init__(self, port: int, password: str = "") -> None:
        self.target = port
        self.password = password  # as the header has it
        self.asked: list[str] = []  # HOST:PORT of each tunnel
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, where, _ = head.split(" ", 2)
        if self.password and self.password not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            await reader.read()  # until the other side has heard it, and leaves
            return
        assert method == "CONNECT", head
        self.asked.append(where)
        writer.write(b"HTTP/1.0 200 Connection established\r\n\r\n")  # as many proxies still do
        await _joined(reader, writer, self.target)


@contextlib.asynccontextmanager
async def proxy_to(port: int, password: str = "") -> AsyncGenerator[Proxy]:
    proxy = Proxy(port, password)
    async with _serving(proxy) as proxy.port:
        yield proxy


@contextlib.asynccontextmanager
async def tls_front(port: int, authority: Authority) -> AsyncGenerator[int]:
    """The port where what listens on `port` is reached with TLS. Without streams: those of TLS complain at the end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate, authority.key)
    fronts: list[_Front] = []

    def connected() -> _Front:
        fronts.append(_Front(port))
        return fronts[-1]

    server = await asyncio.get_running_loop().create_server(connected, HOST, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*(front.ended() for front in fronts))


class _End(asyncio.Protocol):
    """What comes in here goes out at the other end."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def join(self, other: _End) -> None:
        self.other = other
        for data in self._early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self._early.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abort()


class _Front(_End):
    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self._joining: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._joining = asyncio.ensure_future(self._join())

    async def _join(self) -> None:
        _, back = await asyncio.get_running_loop().create_connection(_End, HOST, self._port)
        back.join(self)
        self.join(back)

    async def ended(self) -> None:
        if self._joining is not None:
            await self._joining
        if self.transport is not None:
            self.transport.abort()


@contextlib.asynccontextmanager
async def _serving(serve: Serve) -> AsyncGenerator[int]:
    """Every connection has a task, and none outlives the test."""
    connections = Connections(serve)
    server = await asyncio.get_running_loop().create_server(connections.accept, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await connections.close(server)


async def _joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Pass on what both sides say until one of them is done."""
    to_reader, to_writer = await asyncio.open_connection(HOST, port)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()

    ways = [asyncio.ensure_future(copy(reader, to_writer)), asyncio.ensure_future(copy(to_reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        to_writer.close()

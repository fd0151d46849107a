"""The HTTP client on real sockets: answers cut anywhere, connections kept and lost, slow peers, leaving early."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from kedge.http.client import IDLE_CONNECTION_S, HttpClient
from kedge.http.connection import (
    MAX_UNREAD_BYTES,
    ConnectFailed,
    ConnectionLost,
    Connector,
    InvalidHeader,
    InvalidUrl,
    Origin,
    Stream,
    TimedOut,
    load_certificates,
    open_unix_stream,
    parse_url,
)
from tests.models.proxies import new_authority

LIMIT_S = 30.0
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers each request on a connection with the next of `answers`, then closes the connection."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[bytes] = []
        self.connections = 0
        self.handler: Handler | None = None
        self.answers: list[bytes] = []
        self.sizes = [1 << 20]  # of the pieces that an answer is sent in
        self.tasks: set[asyncio.Task[None] | None] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        try:
            if self.handler is not None:
                await self.handler(reader, writer)
                return
            while self.answers:
                self.requests.append(await read_request(reader))
                answer = self.answers.pop(0)
                for number in range(len(answer)):
                    size = self.sizes[number % len(self.sizes)]
                    if not answer:
                        break
                    writer.write(answer[:size])
                    await writer.drain()
                    await asyncio.sleep(0)
                    answer = answer[size:]
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self.tasks.discard(asyncio.current_task())


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")), 0)
    return head + await reader.readexactly(length)


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    server = Server()
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(LIMIT_S), listener:
        yield server
        tasks = [task for task in server.tasks if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def client() -> AsyncGenerator[HttpClient]:
    client = HttpClient(Connector().open, connect_s=5.0, stall_s=5.0)
    yield client
    client.close()


async def fetch(client: HttpClient, url: str, body: bytes | None = None) -> tuple[int, bytes]:
    async with client.send("POST" if body else "GET", url, {}, body) as response:
        return response.status, await response.read()


SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 201 X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"


@pytest.mark.parametrize("answer", [SIZED, CHUNKED, INTERIM, UNTIL_CLOSE])
async def test_an_answer_is_the_same_as_httpx2_reads_it_in_pieces_of_any_size(
    server: Server, client: HttpClient, answer: bytes
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with httpx2.AsyncClient(trust_env=False) as other:
        for _ in range(5):
            server.sizes = [rng.randint(1, 40) for _ in range(8)]
            server.answers = [answer]
            expected = await other.get(server.url)
            server.answers = [answer]
            assert await fetch(client, server.url) == (expected.status_code, expected.content)


async def test_a_connection_is_kept_for_the_next_request_and_a_closed_one_is_replaced(
    server: Server, client: HttpClient
) -> None:
    server.answers = [SIZED, CHUNKED]  # the server closes the connection after the last one
    assert [(await fetch(client, server.url))[0] for _ in range(2)] == [200, 201]
    assert server.connections == 1
    server.answers = [SIZED]
    assert await fetch(client, server.url) == (200, b"hello")
    assert server.connections == 2


async def test_a_request_on_a_kept_connection_that_the_server_closes_is_sent_again(
    server: Server, client: HttpClient
) -> None:
    async def close_at_the_second_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.requests.append(await read_request(reader))
        writer.write(SIZED)
        server.requests.append(await read_request(reader))  # and closes without a byte

    server.handler = close_at_the_second_request
    assert await fetch(client, server.url, b"1") == (200, b"hello")
    assert await fetch(client, server.url, b"2") == (200, b"hello")
    assert [request[-1:] for request in server.requests] == [b"1", b"2", b"2"]


@pytest.mark.parametrize("answer", [b"", b"HTT", SIZED[:-1], CHUNKED[:-2], b"SSH-2.0\r\n\r\n"])
async def test_a_new_connection_that_ends_too_early_is_an_error_and_nothing_is_sent_twice(
    server: Server, client: HttpClient, answer: bytes
) -> None:
    server.answers = [answer]
    with pytest.raises(ConnectionLost):
        await fetch(client, server.url, b"{}")
    assert len(server.requests) == 1


async def test_bytes_that_nobody_asked_for_are_not_taken_for_the_next_answer(
    server: Server, client: HttpClient
) -> None:
    server.answers = [SIZED + b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"]
    assert await fetch(client, server.url) == (200, b"hello")
    server.answers = [SIZED]
    assert await fetch(client, server.url) == (200, b"hello")


async def test_an_idle_connection_is_not_used_for_ever(
    server: Server, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = [SIZED, SIZED]
    await fetch(client, server.url)
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr("kedge.http.client.time.monotonic", lambda: now + 2 * IDLE_CONNECTION_S)
    await fetch(client, server.url)
    assert server.connections == 2


async def test_a_silent_server_is_given_up_and_a_slow_one_is_not(server: Server) -> None:
    impatient = HttpClient(Connector().open, connect_s=5.0, stall_s=0.3)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for byte in SIZED[:-1]:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        await reader.read()  # until the client leaves

    server.handler = drip
    with pytest.raises(TimedOut):
        await fetch(impatient, server.url)


async def test_a_body_is_not_received_faster_than_it_is_read(server: Server, client: HttpClient) -> None:
    sent = 0
    is_stuck = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (200 << 20))
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                sent += 1 << 16
                try:
                    await asyncio.wait_for(writer.drain(), 0.5)
                except TimeoutError:
                    is_stuck.set()
                    await writer.drain()

    server.handler = flood
    async with client.send("GET", server.url, {}) as response:
        await is_stuck.wait()
        assert sent < 64 << 20  # the buffers of the system, and MAX_UNREAD_BYTES
        async with contextlib.aclosing(response.chunks()) as chunks:
            assert len(await anext(chunks)) <= 2 * MAX_UNREAD_BYTES


async def test_leaving_early_or_being_canceled_closes_the_connection(server: Server, client: HttpClient) -> None:
    closed = asyncio.Queue[bytes]()
    is_asked = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        is_asked.set()
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        closed.put_nowait(await reader.read())

    server.handler = endless
    async with client.send("GET", server.url, {}) as response, contextlib.aclosing(response.chunks()) as chunks:
        assert await anext(chunks) == b"x"
    assert await closed.get() == b""
    is_asked.clear()
    reading = asyncio.create_task(fetch(client, server.url))
    await is_asked.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await closed.get() == b""


async def test_a_server_that_reads_a_large_request_slowly_is_waited_for(tmp_path: Path) -> None:
    authority = new_authority(tmp_path, "localhost")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority.certificate, authority.key)

    async def read_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(100):
            await reader.readexactly(1 << 16)
            await asyncio.sleep(0.05)
        writer.write(SIZED)
        await reader.read()
        writer.transport.abort()
        is_over.set()

    async def connect(origin: Origin) -> Stream:
        stream = await connector.open(origin)
        stream.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        return stream

    connector = Connector(make_tls=lambda: load_certificates(str(authority.ca_file)))
    client = HttpClient(connect, connect_s=5.0, stall_s=3.0)
    is_over = asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    port = listening.getsockname()[1]
    server = await asyncio.start_server(read_slowly, sock=listening, ssl=tls)
    async with asyncio.timeout(LIMIT_S), server:
        assert await fetch(client, f"https://localhost:{port}", bytes(100 << 16)) == (200, b"hello")
        client.close()
        await is_over.wait()


async def test_a_broken_connection_is_written_to_no_more(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = await Connector().open(Origin("http", "127.0.0.1", listener.getsockname()[1]))
        peer, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset it
        peer.close()
    await stream.write(bytes(8 << 20), 5.0)
    with pytest.raises(OSError):
        await stream.read(5.0)
    assert not caplog.records, "asyncio logs each further write"


async def test_an_answer_before_the_whole_request_is_read_is_an_answer(server: Server, client: HttpClient) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await writer.drain()
        await reader.read()

    server.handler = refuse
    assert await fetch(client, server.url, bytes(32 << 20)) == (413, b"no")


async def test_a_connection_on_which_a_request_is_not_sent_to_its_end_is_not_used_again(
    server: Server, client: HttpClient
) -> None:
    may_end, ended = asyncio.Event(), asyncio.Semaphore(0)

    async def answer_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIZED)
        await writer.drain()
        await may_end.wait()
        ended.release()

    server.handler = answer_early
    for body in (bytes(32 << 20), b"x"):
        assert await fetch(client, server.url, body) == (200, b"hello")
    assert server.connections == 2
    may_end.set()
    for _ in range(server.connections):
        await ended.acquire()


async def test_what_cannot_be_connected_to_is_told_in_plain_words(client: HttpClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(ConnectFailed, match=r"^Connection refused$"):
            await fetch(client, f"http://{host}:{port}")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://x:99999999",
        "http://x:0",
        "http://[::1",
        "http://a..b",
        f"http://{'a' * 64}",
        "nonsense",
    ],
)
async def test_a_url_that_cannot_be_requested_is_invalid(client: HttpClient, url: str) -> None:
    with pytest.raises(InvalidUrl):
        await fetch(client, url)


async def test_a_header_cannot_bring_another_one(server: Server, client: HttpClient) -> None:
    for evil in ("Bearer a\r\nX: y", "Bearer a\nX: y", "Bearer \u201ca\u201d"):
        with pytest.raises(InvalidHeader) as caught:
            async with client.send("GET", server.url, {"Authorization": evil}):
                pass
        assert "Bearer" not in str(caught.value)
        assert "201c" not in str(caught.value)
    assert not server.requests


async def test_a_given_host_replaces_that_of_the_url(server: Server, client: HttpClient) -> None:
    server.answers = [SIZED]
    async with client.send("GET", server.url, {"host": "other.test"}) as response:
        await response.read()
    assert server.requests[0].lower().count(b"host:") == 1
    assert b"host: other.test\r\n" in server.requests[0]


def test_names_outside_ascii_and_addresses_are_written_as_hosts_need_them() -> None:
    assert parse_url("https://bücher.test/x")[0].netloc == "xn--bcher-kva.test:443"
    assert parse_url("http://[::1]:8080/")[0].netloc == "[::1]:8080"


async def test_spaces_and_letters_outside_ascii_in_a_path_are_escaped(server: Server, client: HttpClient) -> None:
    server.answers = [SIZED]
    await fetch(client, f"{server.url}/a b/ü?q=1 2&r=%20\ud800#fragment")
    assert server.requests[0].startswith(b"GET /a%20b/%C3%BC?q=1%202&r=%20? HTTP/1.1\r\n")


async def test_a_unix_socket_is_a_connection_too(server: Server, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = str(tmp_path_factory.mktemp("s") / "s")
    listener = await asyncio.start_unix_server(server, path)
    server.answers = [SIZED]
    client = HttpClient(lambda _: open_unix_stream(path), connect_s=5.0, stall_s=5.0)
    async with listener:
        assert await fetch(client, "http://localhost/x") == (200, b"hello")
    client.close()

"""HTTP as the application and the client see it: order, framing, back-pressure, failures, and who leaves when."""

from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kedge.server import http_connection
from kedge.server.exchange import Exchange
from kedge.server.http_connection import HttpConnection, OpenConnections
from tests.server.client import LIMIT_S
from tests.server.wire import BUFFER_BYTES, Served, echo, feed

GET, POST = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
KIB = 1024


Act = Callable[[Exchange], Awaitable[None]]


def start(*headers: tuple[str, str], status: int = 200) -> Act:
    return lambda exchange: exchange.start(status, dict(headers))


def body(data: bytes, *, more: bool = False) -> Act:
    return lambda exchange: exchange.send(data, is_end=not more)


async def answer_path(exchange: Exchange) -> None:
    """The more requests come before it, the sooner it is done."""
    for _ in range(10 - len(exchange.path) % 10):
        await asyncio.sleep(0)
    await exchange.start(200, {"content-length": str(len(exchange.path))})
    await exchange.send(exchange.path.encode(), is_end=True)


@pytest.mark.parametrize("size", [1, 100, 10_000_000])
async def test_pipelined_requests_are_answered_in_their_order(size: int) -> None:
    served = Served(answer_path)
    paths = [b"/" + b"x" * (n % 13) + b"%d" % n for n in range(500 if size == 1 else 8_000)]
    data = b"".join(GET % path for path in paths)
    for at in range(0, len(data), size):
        while served.wire.is_paused:  # noqa: ASYNC110
            await asyncio.sleep(0)
        served.wire.feed(data[at : at + size])
    await served.settle()
    bodies = [
        response.partition(b"\r\n\r\n")[2] for response in bytes(served.wire.written).split(b"HTTP/1.1 200 OK")[1:]
    ]
    assert bodies == paths


async def test_requests_behind_one_that_takes_long_are_bounded() -> None:
    async def never(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    served = Served(never)
    await served.settle()
    tracemalloc.start()
    sent = 0
    while not served.wire.is_paused:
        served.wire.feed(GET % b"/" * 100)
        sent += 1
        await asyncio.sleep(0)
        assert sent < 100
    assert tracemalloc.get_traced_memory()[0] < 1024 * KIB
    tracemalloc.stop()
    for task in served.opened.tasks:
        task.cancel()


async def test_a_body_that_is_not_read_stops_the_client_and_arrives_whole() -> None:
    may_read, read = asyncio.Event(), bytearray()

    async def app(exchange: Exchange) -> None:
        await may_read.wait()
        while not exchange.is_body_read:
            read.extend(await exchange.read() or b"")
        await exchange.start(200, {})
        await exchange.send(b"done", is_end=True)

    served, piece, sent = Served(app), b"x" * 10_000, 0
    served.wire.feed(POST % 1_000_000)
    while not served.wire.is_paused:
        served.wire.feed(piece)
        sent += len(piece)
        await asyncio.sleep(0)
    assert sent <= 2 * http_connection.MAX_UNREAD_BYTES + 2 * len(piece)
    may_read.set()
    while sent < 1_000_000:
        await served.settle()
        assert not served.wire.is_paused
        served.wire.feed(piece)
        sent += len(piece)
    await served.settle()
    assert read == b"x" * 1_000_000
    assert served.wire.written.endswith(b"4\r\ndone\r\n0\r\n\r\n")


async def test_a_reader_that_stalls_holds_up_the_application() -> None:
    sent = 0

    async def app(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.start(200, {})
        for _ in range(100):
            await exchange.send(b"x" * 10_000, is_end=False)
            sent += 10_000
        await exchange.send(b"", is_end=True)

    served = Served(app, is_stalled=True)
    await feed(served.wire, [GET % b"/"], at_leisure=True)
    assert sent <= BUFFER_BYTES + 20_000
    served.wire.read_all()
    await served.settle()
    assert (sent, served.wire.written[-5:]) == (1_000_000, b"0\r\n\r\n")


WRONG: dict[str, tuple[list[Act | Exception], str]] = {
    "nothing": ([], "500"),
    "raises at once": ([ValueError()], "500"),
    "no body": ([start(("content-length", "1"))], "500"),
    "raises before the body": ([start(("content-length", "1")), ValueError()], "500"),
    "a body first": ([body(b"x")], "500"),
    "too long": ([start(("content-length", "1")), body(b"ab")], "500"),
    "too short": ([start(("content-length", "3")), body(b"ab")], "500"),
    "a body where there is none": ([start(status=204), body(b"ab")], "500"),
    "a line end in a header": ([start(("a", "b\r\nc: d")), body(b"")], "500"),
    "no name": ([start(("a b", "c")), body(b"")], "500"),
    "own framing": ([start(("transfer-encoding", "chunked")), body(b"a")], "500"),
    "raises in a stream": ([start(), body(b"x", more=True), ValueError()], "aborted"),
    "a stream without end": ([start(), body(b"x", more=True)], "aborted"),
    "too long in the end": ([start(("content-length", "3")), body(b"ab", more=True), body(b"cd")], "aborted"),
    "too short in the end": ([start(("content-length", "3")), body(b"a", more=True), body(b"b")], "aborted"),
    "two starts": ([start(), start(), body(b"")], "aborted"),
    "raises behind the end": ([start(), body(b"x"), ValueError()], "200"),
    "two ends": ([start(), body(b"x"), body(b"y")], "200"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_an_application_that_fails_is_never_answered_for_silently(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    acts, expected = WRONG[name]

    async def app(exchange: Exchange) -> None:
        for act in acts:
            if isinstance(act, Exception):
                raise act
            await act(exchange)

    served = Served(app)
    await feed(served.wire, [GET % b"/"], at_leisure=True)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    if expected == "aborted":
        assert served.wire.was_aborted
    else:
        assert served.wire.written.startswith(b"HTTP/1.1 %b " % expected.encode())
        assert served.wire.written.count(b"HTTP/1.1") == 1
        assert served.wire.is_closed is (expected == "500")
        assert (b'"code":"internal"' in served.wire.written) is (expected == "500")


@pytest.mark.parametrize("is_eof", [True, False])
@pytest.mark.parametrize("path", [b"/read", b"/stream", b"/stall"])
async def test_a_client_may_leave_at_any_point(path: bytes, is_eof: bool, caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def app(exchange: Exchange) -> None:
        if exchange.path == "/read":
            await exchange.wait_for_disconnect()
        await exchange.start(200, {})
        for _ in range(100 if exchange.path == "/stall" else 3):
            await exchange.send(b"x" * 10_000, is_end=False)
        await exchange.wait_for_disconnect()
        await exchange.send(b"", is_end=True)
        ended.append(exchange.path)

    data = (POST % 10).replace(b"/ ", path + b" ", 1) + b"0123456789" + b"GET / HT"
    for length in range(1, len(data) + 1):
        served = Served(app, is_stalled=path == b"/stall")
        await feed(served.wire, [data[:length]], at_leisure=True)
        if is_eof:
            served.connection.eof_received()
        served.wire.close()
        await served.settle()
        assert not served.opened.tasks
        assert not served.opened.connections
    assert ended == [path.decode()] * (1 + len(data) - data.index(b"0123"))
    assert not caplog.records


async def test_continue_is_sent_once_and_only_to_a_client_whose_body_is_read() -> None:
    head = (POST % 3).replace(b"\r\n\r\n", b"\r\nExpect: 100-Continue\r\n\r\n")
    served = Served(echo)
    await feed(served.wire, [head], at_leisure=True)
    assert served.wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    await feed(served.wire, [b"a", b"b", b"c"], at_leisure=True)
    assert served.wire.written.count(b"HTTP/1.1 ") == 2
    served = Served(answer_path)
    await feed(served.wire, [head, b"abc", GET % b"/next"], at_leisure=True)
    assert b"Continue" not in served.wire.written
    assert served.wire.written.endswith(b"/next")


async def test_the_end_of_a_stream_in_http_1_0_is_the_close_and_head_has_no_body() -> None:
    served = Served(echo)
    await feed(served.wire, [b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GET % b"/"], at_leisure=True)
    assert b"chunked" not in served.wire.written
    assert served.wire.is_closed
    assert served.wire.written.count(b"HTTP/1.1 200") == 1
    for path in (b"/stream", b"/"):
        served = Served(echo)
        await feed(served.wire, [(GET % path).replace(b"GET", b"HEAD")], at_leisure=True)
        assert served.wire.written.endswith(b"\r\n\r\n")
        assert b"chunked" not in served.wire.written
        assert (b"content-length" in served.wire.written) is (path == b"/")


async def test_an_upgrade_is_declined_and_what_follows_it_is_not_a_request() -> None:
    served = Served(echo)
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    await feed(served.wire, [upgrade + GET % b"/smuggled", GET % b"/smuggled"], at_leisure=False)
    assert served.wire.written.count(b"HTTP/1.1 200") == 1
    assert b"smuggled" not in served.wire.written
    assert served.wire.is_closed


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nA: %b",
        b"GET /%b",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;a=%b",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: %b",
    ],
)
@pytest.mark.parametrize("size", [1_000, 200_000, 2_000_000])
async def test_what_has_no_end_is_refused(data: bytes, size: int) -> None:
    served = Served(echo)
    data = data % (b"x" * 2_000_000)
    await feed(served.wire, [data[at : at + size] for at in range(0, len(data), size)], at_leisure=False)
    assert served.wire.written.startswith(b"HTTP/1.1 400 ")
    assert b"too large" in served.wire.written
    assert served.wire.is_closed


async def test_a_body_that_nobody_reads_is_skipped_and_the_connection_times_out_when_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "KEEP_ALIVE_S", 0.05)
    served = Served(answer_path)
    await feed(served.wire, [POST % 300_000, b"x" * 200_000, b"x" * 100_000 + GET % b"/next"], at_leisure=True)
    assert served.wire.written.endswith(b"/next")
    assert not served.wire.is_closed
    await feed(served.wire, [POST % 3, b"abc"], at_leisure=True)
    async with asyncio.timeout(LIMIT_S):
        while not served.wire.is_closed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not served.wire.was_aborted


async def test_a_shutdown_closes_idle_connections_and_lets_responses_finish() -> None:
    served = Served(answer_path)
    await feed(served.wire, [GET % b"/"], at_leisure=True)
    served.connection.shutdown()
    assert served.wire.is_closed
    served = Served(answer_path)
    served.wire.feed(GET % b"/1" + GET % b"/2")
    served.connection.shutdown()
    assert not served.wire.is_closed
    await served.settle()
    assert served.wire.written.endswith(b"connection: close\r\n\r\n/1")
    assert served.wire.is_closed


async def test_it_works_over_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost"
    made = await asyncio.to_thread(
        subprocess.run,
        [*command.split(), "-keyout", str(key), "-out", str(certificate)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("openssl cannot make a certificate here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    opened = OpenConnections(set(), set())
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpConnection(echo, opened), "127.0.0.1", 0, ssl=context)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(
            *server.sockets[0].getsockname(), ssl=trusting, server_hostname="localhost"
        )
        writer.write(
            POST % 3_000_000
            + b"x" * 3_000_000
            + (GET % b"/last").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        )
        answer = await reader.read()
        writer.close()
    server.close()
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert b"x" * 3_000_000 in answer
    assert answer.count(b"/last") == 1

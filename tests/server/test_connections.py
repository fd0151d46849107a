"""P17: connections that say nothing, or too slowly, are closed, and however many there are, others are served."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from kedge.server import http_connection
from kedge.server.exchange import Exchange
from kedge.server.listener import Listener
from tests.server.client import LIMIT_S, Client
from tests.server.process import Place, Server

FLOOD = 1_500
USUAL_S = 5.0  # a run takes some milliseconds; the machine may be busy


@contextmanager
def many_descriptors(count: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def flood(server: Server, count: int, data: bytes = b"") -> Generator[list[socket.socket]]:
    """That many TCP connections which send `data`, or nothing, and stay."""
    with many_descriptors(count + 500):
        sockets = [socket.create_connection((server.tcp.host, server.tcp.port), LIMIT_S) for _ in range(count)]
        try:
            for sock in sockets if data else ():
                send_if_open(sock, data)
            yield sockets
        finally:
            for sock in sockets:
                sock.close()


def send_if_open(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError:
        pass  # it has given way already


def is_closed(sock: socket.socket) -> bool:
    sock.settimeout(LIMIT_S)
    try:
        while sock.recv(65536):
            pass  # the rest of an answer
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def check_health(server: Server, sock: socket.socket) -> None:
    """A request with the token, on a connection that stays."""
    head = f"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    sock.sendall(head.encode())
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        piece = sock.recv(65536)
        assert piece, answer
        answer += piece
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.fixture
def limited(place: Place) -> Generator[Server]:
    """A server with 1,024 descriptors."""
    server = Server(place, place.popen("--host", "tcp://127.0.0.1:0", module="tests.server.few_descriptors"))
    yield server
    server.kill()


def seconds_of_a_run(client: Client, workspace: str) -> float:
    began = time.monotonic()
    with client.events(workspace) as events:
        run_id = client.submit(workspace, client.session(workspace), "say still here")
        assert events.end_of(run_id)[-1].payload.text == "still here"  # pyright: ignore[reportAttributeAccessIssue]
    return time.monotonic() - began


@pytest.mark.parametrize(
    "data", [b"", b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n"], ids=["silent", "half a head"]
)
def test_a_flood_over_tcp_leaves_the_unix_socket_and_those_with_a_token_alone(
    limited: Server, tmp_path: Path, data: bytes
) -> None:
    workspace = limited.client.workspace(tmp_path)
    with flood(limited, FLOOD, data):
        assert seconds_of_a_run(limited.client, workspace) < USUAL_S
        assert seconds_of_a_run(Client(limited.tcp, limited.token), workspace) < USUAL_S
        bounds = limited.client.get("/v1/version").json["bounds"]
        assert (bounds["tcp_connections"], bounds["tcp_connections_without_token"]) == (256, 128)
        opened = list(Path(f"/proc/{limited.process.pid}/fd").iterdir())
        assert len(opened) < 128 + 100
    assert "cannot take a connection" not in limited.place.log
    assert seconds_of_a_run(Client(limited.tcp, limited.token), workspace) < USUAL_S
    assert limited.stop() == 0


def test_those_with_a_token_do_not_give_way_to_a_flood(limited: Server, tmp_path: Path) -> None:
    """Also when they have been silent for long: a stream, and a connection that is kept for the next request."""
    client = Client(limited.tcp, limited.token)
    workspace = client.workspace(tmp_path)
    kept = socket.create_connection((limited.tcp.host, limited.tcp.port), LIMIT_S)
    check_health(limited, kept)
    with client.events(workspace) as events, flood(limited, FLOOD):
        events.until("caught_up")
        run_id = client.submit(workspace, client.session(workspace), "say hello")
        events.end_of(run_id)
        check_health(limited, kept)
    kept.close()


def test_a_wrong_token_does_not_make_a_connection_stay(limited: Server) -> None:
    wrong = b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer wrong\r\n\r\n"
    sock = socket.create_connection((limited.tcp.host, limited.tcp.port), LIMIT_S)
    sock.sendall(wrong)
    assert sock.recv(65536).startswith(b"HTTP/1.1 401")
    with flood(limited, 200):
        assert is_closed(sock)
    sock.close()


def test_connections_with_a_token_are_bounded_too(limited: Server, tmp_path: Path) -> None:
    with many_descriptors(1_000):
        sockets: list[socket.socket] = []
        for _ in range(256):
            sockets.append(socket.create_connection((limited.tcp.host, limited.tcp.port), LIMIT_S))
            check_health(limited, sockets[-1])
        with socket.create_connection((limited.tcp.host, limited.tcp.port), LIMIT_S) as more:
            assert is_closed(more)
        assert seconds_of_a_run(limited.client, limited.client.workspace(tmp_path)) < USUAL_S
        check_health(limited, sockets[0])
        for sock in sockets:
            sock.close()


def test_the_server_opens_more_files_than_its_soft_limit_and_no_more_than_is_good_for_children(place: Place) -> None:
    with many_descriptors(0):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        server = place.start()
    try:
        assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0] == min(hard, 4096)
    finally:
        server.kill()


# the time that a request may take, with bounds that a test can wait for

HEAD_S = 0.5


@asynccontextmanager
async def listening(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[int]:
    """A listener on TCP whose application reads bodies, and streams for ever at /stream."""
    monkeypatch.setattr(http_connection, "HEAD_S", HEAD_S)
    monkeypatch.setattr(http_connection, "BODY_S", HEAD_S)
    monkeypatch.setattr(http_connection, "MIN_BODY_BYTES", 100)

    async def app(exchange: Exchange) -> None:
        while exchange.path == "/read" and not exchange.is_body_read and await exchange.read() is not None:
            pass
        await exchange.start(200, {})
        while exchange.path == "/stream":
            await exchange.send(b"tick", is_end=False)
            await asyncio.sleep(0.02)
        await exchange.send(b"done", is_end=True)

    sock = socket.create_server(("127.0.0.1", 0))
    listener = Listener(sock, app, _is_nobodys)
    await listener.start()
    try:
        yield sock.getsockname()[1]
    finally:
        monkeypatch.setattr("kedge.server.listener.CLOSE_S", 0.1)
        await listener.close()


def _is_nobodys(*_: object) -> bool:
    return False


LATE = {
    "nothing": [b""],
    "half a head": [b"GET / HTTP/1.1\r\nHost: x\r\n"],
    "a head byte by byte": [b"G", b"E", b"T", b" ", b"/", b" ", b"H", b"T", b"T", b"P"],
    "empty lines": [b"\r\n"] * 10,
    "a whole request, then half of one": [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HT"],
    "a whole request, then empty lines": [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", *[b"\r\n"] * 10],
    "two in one, the second half": [b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT"],
    "a body that does not come": [b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"],
    "a body that trickles": [b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", *[b"x"] * 10],
    "chunks that trickle": [
        b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        *[b"1\r\nx\r\n"] * 10,
    ],
    "a body that nobody reads": [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", *[b"x"] * 10],
    "half a request behind a stream": [b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HT"],
}


@pytest.mark.parametrize("name", LATE)
async def test_a_client_that_does_not_send_its_request_is_hung_up_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(monkeypatch) as port, asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in LATE[name]:
            writer.write(piece)
            await asyncio.sleep(HEAD_S / 5)  # a slow client
        try:
            await reader.read()
        except ConnectionError:
            pass
        writer.close()


async def test_a_stream_and_a_steady_body_outlive_every_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(monkeypatch) as port, asyncio.timeout(LIMIT_S):
        stream, asking = await asyncio.open_connection("127.0.0.1", port)
        asking.write(b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n")
        for _ in range(30):  # three times as long as a body may stand still
            writer.write(b"x" * 100)
            await asyncio.sleep(HEAD_S / 10)
        assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200")
        await stream.readexactly(4 * 100)
        writer.close()
        asking.close()

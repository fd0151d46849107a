"""The synchronous transport against servers that misbehave."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kedge.client.async_client import AsyncClient
from kedge.client.async_transport import AsyncTransport
from kedge.client.environment import find_server
from kedge.client.errors import Dropped, InDoubt, NotAllowed, NotUnderstood, Refused, Unreachable
from kedge.client.events import EventCursor, EventFollower, follow
from kedge.client.reconnect import ReconnectPolicy, Waiter
from kedge.client.sync_client import Client
from kedge.client.transport import Transport
from kedge.protocol.sessions import Workspace
from tests.client.byteserver import Act, ByteServer, chunked, json_answer, stream_head
from tests.client.timeline import Timeline

STOPPING = json_answer({"code": "shutting_down", "message": "stopping"}, "503 Service Unavailable")


@pytest.fixture
def socket_path() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="kedge-t-") as directory:
        yield Path(directory) / "s"


def wire_to(server: ByteServer, timeout_s: float = 20.0) -> Transport:
    return Transport(find_server(host=server.host), Waiter(), client="tests", timeout_s=timeout_s)


def answering(server_of: list[ByteServer], *answers: bytes) -> Act:
    """Read a request before each answer; then leave."""

    def act(connection: socket.socket) -> None:
        for answer in answers:
            server_of[0].read_request(connection)
            connection.sendall(answer)

    return act


def served(path: Path, *answers_of_each_connection: list[bytes]) -> ByteServer:
    servers: list[ByteServer] = []
    server = ByteServer(path, *(answering(servers, *answers) for answers in answers_of_each_connection))
    servers.append(server)
    return server


def test_requests_share_a_connection_and_say_who_asks(socket_path: Path) -> None:
    with served(socket_path, [json_answer({"a": 1}), json_answer({"b": 2})]) as server:
        wire = wire_to(server)
        assert wire.request("POST", "/v1/x", {"q": "ä"}) == {"a": 1}
        assert wire.request("GET", "/v1/y") == {"b": 2}
        assert wire.server_version == "0.1.0"
        wire.close()
    first, second = server.requests
    assert first.startswith(b"POST /v1/x HTTP/1.1\r\n")
    assert b"Kedge-Client: tests\r\n" in first
    assert b"Content-Type: application/json\r\n" in first
    assert second.startswith(b"GET /v1/y HTTP/1.1\r\n")


def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(socket_path: Path) -> None:
    with served(socket_path, [json_answer(1)], [json_answer(2)]) as server:
        wire = wire_to(server)
        assert wire.request("GET", "/") == 1
        while not Waiter().wait(wire._idle.fileno() if wire._idle else None, 1.0):
            pass
        assert wire.request("GET", "/") == 2
        wire.close()


def test_a_server_that_closes_after_each_answer_is_asked_on_new_connections(socket_path: Path) -> None:
    closing = json_answer(1, "200 OK", "Connection: close")
    with served(socket_path, [closing], [closing]) as server:
        wire = wire_to(server)
        assert [wire.request("GET", "/"), wire.request("GET", "/")] == [1, 1]


def test_an_error_answer_has_its_code_and_its_words(socket_path: Path) -> None:
    error = json_answer({"code": "session_busy", "message": "busy with run 7"}, "409 Conflict")
    with served(socket_path, [error]) as server:
        wire = wire_to(server)
        with pytest.raises(Refused, match="busy with run 7") as caught:
            wire.request("POST", "/")
        wire.close()
    assert (caught.value.status, caught.value.code) == (409, "session_busy")


def test_an_error_answer_that_is_not_ours_still_has_a_line(socket_path: Path) -> None:
    with served(socket_path, [b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>"]) as server:
        wire = wire_to(server)
        with pytest.raises(Refused, match="502"):
            wire.request("GET", "/")
        wire.close()


def test_an_answer_that_is_no_json_is_not_of_our_server(socket_path: Path) -> None:
    with served(socket_path, [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"]) as server:
        wire = wire_to(server)
        with pytest.raises(NotUnderstood, match="--host"):
            wire.request("GET", "/")
        wire.close()


@pytest.mark.parametrize(
    ("status", "says"), [("401 Unauthorized", "no token.*--token-file"), ("403 Forbidden", "no token$")]
)
def test_who_is_not_let_in_learns_why(socket_path: Path, status: str, says: str) -> None:
    with served(socket_path, [json_answer({"code": "unauthorized", "message": "no token"}, status)]) as server:
        wire = wire_to(server)
        with pytest.raises(NotAllowed, match=says):
            wire.request("GET", "/")
        wire.close()


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", json_answer({"a": 1})[:-1], b"SSH-2.0\r\n\r\n"]
)
def test_half_an_answer_is_a_drop(socket_path: Path, answer: bytes) -> None:
    with served(socket_path, [answer]) as server, pytest.raises(Dropped):
        wire_to(server).request("GET", "/")


def test_a_server_that_says_nothing_is_a_drop(socket_path: Path) -> None:
    def silent(connection: socket.socket) -> None:
        while connection.recv(9999):
            pass

    with ByteServer(socket_path, silent) as server:
        began = time.monotonic()
        with pytest.raises(Dropped):
            wire_to(server, timeout_s=0.2).request("GET", "/")
        assert time.monotonic() - began >= 0.2


def test_a_call_is_repeated_until_it_is_answered(socket_path: Path) -> None:
    with served(socket_path, [b""], [json_answer(1)[:9]], [STOPPING, json_answer({"yes": True})]) as server:
        wire = wire_to(server)
        assert wire.call("POST", "/v1/x", {"run_id": "r"}, policy=ReconnectPolicy()) == {"yes": True}
        wire.close()
    assert len(set(server.requests)) == 1, "the same request each time"


@pytest.mark.parametrize("answer", [b"", json_answer(1)[:9], STOPPING], ids=["nothing", "half", "stopping"])
def test_what_must_not_arrive_twice_is_sent_once(socket_path: Path, answer: bytes) -> None:
    """The second of two undos would take back another prompt."""
    with served(socket_path, [answer]) as server:
        client = Client(wire_to(server), {"id": "w"})
        with pytest.raises(InDoubt):
            client.call_once("POST", "/sessions/s/undo", {})
        client.close()
    assert len(server.requests) == 1


async def test_it_is_sent_once_without_blocking_too(socket_path: Path) -> None:
    answers = [json_answer({}), b""], [json_answer({})]  # also on a connection that was kept
    with served(socket_path, *answers) as server:
        wire = AsyncTransport(find_server(host=server.host), client="tests")
        async with AsyncClient(wire, Workspace("w", "/w", 0.0)) as client:
            await client.call("GET", "/agent", type=dict)
            with pytest.raises(InDoubt):
                await client.call_once("POST", "/sessions/s/undo", {}, type=dict)
            assert len(server.requests) == 2
            await client.call("GET", "/agent", type=dict)


def test_a_server_that_is_not_there_is_given_up_after_a_while(socket_path: Path) -> None:
    wire = Transport(find_server(host=f"unix://{socket_path}"), Waiter(), client="tests")
    with pytest.raises(Unreachable):
        wire.call("GET", "/", policy=ReconnectPolicy(give_up_s=0.2))


def test_a_stream_comes_as_it_is_sent_and_its_end_is_a_drop(socket_path: Path) -> None:
    pieces = [b"data: 1\n\n", b"data: 2\n\n"]
    with served(socket_path, [stream_head() + b"".join(map(chunked, pieces)) + b"0\r\n\r\n"]) as server:
        heard: list[bytes] = []
        with pytest.raises(Dropped):
            heard.extend(wire_to(server).stream("/events"))
    # (a list's `extend` keeps what came before the error)
    assert b"".join(heard) == b"".join(pieces)


def test_a_stream_that_falls_silent_is_a_drop(socket_path: Path) -> None:
    def silent(connection: socket.socket) -> None:
        connection.recv(9999)
        connection.sendall(stream_head() + chunked(b"data: 1\n\n"))
        connection.recv(1)  # until the client leaves

    with ByteServer(socket_path, silent) as server, pytest.raises(Dropped):
        list(wire_to(server, timeout_s=0.2).stream("/events"))


def test_a_refused_stream_is_a_refusal(socket_path: Path) -> None:
    answer = json_answer({"code": "workspace_not_found", "message": "there is no workspace"}, "404 Not Found")
    with served(socket_path, [answer]) as server, pytest.raises(Refused, match="no workspace"):
        list(wire_to(server).stream("/events"))


def test_a_story_is_followed_over_broken_connections(socket_path: Path) -> None:
    timeline = Timeline()
    for number in range(6):
        timeline.log("session", {"id": f"s{number}"})
    first = timeline.heard(2, 0)
    cut = len(first) - len(timeline.happened[5].frame) + 7  # in the middle of the sixth event
    answers = [[stream_head() + chunked(first)[:cut]], [b""], [stream_head() + chunked(timeline.heard(6, 5))]]
    with served(socket_path, *answers) as server:
        heard: list[Any] = []
        cursor = EventCursor(after=0)

        def take(event: Any, _: bytes) -> None:
            heard.append(event.get("seq"))

        steps = follow(wire_to(server), EventFollower("/v1/workspaces/w", cursor, take, ReconnectPolicy()))
        while cursor.seq != 6:
            next(steps)
        steps.close()
    assert [seq for seq in heard if seq is not None] == [1, 2, 3, 4, 5, 6]
    assert [request.split(b" ")[1] for request in server.requests] == [
        b"/v1/workspaces/w/events?after=0",
        b"/v1/workspaces/w/events?after=5&log_id=log-1",
        b"/v1/workspaces/w/events?after=5&log_id=log-1",
    ]

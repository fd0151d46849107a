"""P16 over TCP from the client's side: whoever has the port, but not the token, is sent nothing of value."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.client.async_transport import AsyncTransport
from kedge.client.challenge import Challenge
from kedge.client.environment import ServerLocation
from kedge.client.errors import Dropped, NotAllowed
from kedge.client.reconnect import ReconnectPolicy, Waiter
from kedge.client.transport import Transport
from kedge.protocol import proof
from kedge.protocol.address import TcpAddress
from tests.client.byteserver import json_answer
from tests.client.command import LIMIT_S, Kedge
from tests.server.client import Client, done
from tests.server.process import Place, Server

TOKEN = "the-token-that-nobody-else-must-ever-see"
KEY = "sk-a-planted-key"
PROMPT = "a private prompt"
BODY = {"prompt": PROMPT, "env": {"OPENAI_API_KEY": KEY}}

Act = Callable[[socket.socket], None]


class Squatter:
    """Has the port. Keeps every byte that it is sent; each connection is played by `act`."""

    def __init__(self, act: Act, port: int = 0) -> None:
        self.sent = b""
        self._act = act
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def host(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def endpoint(self, token: str | None = TOKEN) -> ServerLocation:
        return ServerLocation(TcpAddress("127.0.0.1", self.port), "/nowhere", token, is_managed=False)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(LIMIT_S)
            while data := connection.recv(65536):
                self.sent += data
                self._act(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def heard_nothing(self) -> None:
        for word in (TOKEN, KEY, PROMPT, "OPENAI", "PATH=", "Authorization", "/v1/workspaces"):
            assert word.encode().lower() not in self.sent.lower()


Squat = Callable[..., Squatter]


@pytest.fixture
def squat() -> Generator[Squat]:
    made: list[Squatter] = []

    def squat(act: Act, port: int = 0) -> Squatter:
        made.append(Squatter(act, port))
        return made[-1]

    yield squat
    for each in made:
        each.close()


def answering(answer: bytes) -> Act:
    return lambda connection: connection.sendall(answer)


WRONG = {"proof": secrets.token_hex(32), "address": "127.0.0.1:1"}
ANSWERS = {
    "a guess": (json_answer(WRONG), "--host"),
    "no proof": (json_answer({}), "--host"),
    "another type": (json_answer({"proof": None, "address": ["x"]}), "--host"),
    "half a character": (json_answer({"proof": "\ud800", "address": "\ud800"}), "--host"),
    "not JSON": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "--host"),
    "nesting": (b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n" + b"[" * 60000, "--host"),
    "an error": (json_answer({}, "500 Internal Server Error"), "--host"),
    "an old server": (json_answer({"code": "unauthorized", "message": "x"}, "401 Unauthorized"), "too old"),
    "another program": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "--host"),
    "another name": (json_answer({"code": "forbidden_host", "message": "x"}, "403 Forbidden"), "--allow-host NAME"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_whoever_cannot_prove_it_is_sent_nothing(squat: Squat, name: str) -> None:
    answer, why = ANSWERS[name]
    squatter = squat(answering(answer))
    with pytest.raises(NotAllowed, match=why):
        Transport(squatter.endpoint(), Waiter(), client="test").request("POST", "/v1/workspaces/x/agent", BODY)
    wire = AsyncTransport(squatter.endpoint(), client="test")
    with pytest.raises(NotAllowed, match=why):
        await wire.request("POST", "/v1/workspaces/x/agent", BODY)
    await wire.close()
    assert squatter.sent.count(b"GET /v1/proof?nonce=") == 2
    squatter.heard_nothing()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        json_answer({}, "503 Service Unavailable"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000,
    ],
)
async def test_what_is_no_answer_is_asked_again_and_sent_nothing(squat: Squat, answer: bytes) -> None:
    squatter = squat(answering(answer))
    with pytest.raises(Dropped):
        Transport(squatter.endpoint(), Waiter(), client="test").request("POST", "/x", BODY)
    wire = AsyncTransport(squatter.endpoint(), client="test")
    with pytest.raises(Dropped):
        await wire.request("POST", "/x", BODY)
    await wire.close()
    squatter.heard_nothing()


def test_without_a_token_nothing_is_sent_at_all(squat: Squat) -> None:
    squatter = squat(answering(json_answer({})))
    with pytest.raises(NotAllowed, match="--token-file or KEDGE_TOKEN"):
        Transport(squatter.endpoint(None), Waiter(), client="test").request("POST", "/x", BODY)
    assert squatter.sent == b""


@pytest.mark.parametrize("args", [("run", "-q", PROMPT), ("runs",), ("doctor", "--offline")])
def test_the_command_line_says_so_and_sends_nothing(
    squat: Squat, place: Place, tmp_path: Path, args: tuple[str]
) -> None:
    squatter = squat(answering(json_answer(WRONG)))
    env = {"KEDGE_HOST": squatter.host, "KEDGE_TOKEN": TOKEN, "OPENAI_API_KEY": KEY}
    ended = Kedge(place, tmp_path)(*args, env=env)
    assert ended.code != 0
    assert squatter.host in ended.out + ended.err
    assert ended.code == (1 if "doctor" in args else 2)
    squatter.heard_nothing()


async def test_the_answer_of_the_server_cannot_be_passed_on(server: Server, squat: Squat) -> None:
    def pass_on(connection: socket.socket) -> None:
        """To the server, maybe with its own address in the place of ours, and its answer back."""
        request = relay.sent[relay.sent.rindex(b"GET ") :]
        if rewrites:
            request = request.replace(b":%d" % relay.port, b":%d" % server.tcp.port)
        with socket.create_connection((server.tcp.host, server.tcp.port), LIMIT_S) as behind:
            behind.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                answer += behind.recv(65536)
            connection.sendall(answer)

    rewrites: list[bool] = []
    relay = squat(pass_on)
    endpoint = relay.endpoint(server.token)
    for _ in range(2):
        with pytest.raises(NotAllowed, match=f"--allow-host 127.0.0.1:{relay.port}"):
            Transport(endpoint, Waiter(), client="test").request("POST", "/x", BODY)
        wire = AsyncTransport(endpoint, client="test")
        with pytest.raises(NotAllowed, match="--allow-host"):
            await wire.request("POST", "/x", BODY)
        await wire.close()
        rewrites.append(True)
    assert server.token.encode() not in relay.sent
    relay.heard_nothing()


def test_another_address_of_the_same_name_cannot_pass_it_on(server: Server) -> None:
    """`localhost` is several addresses, and the server may have only one of them."""
    nonce = secrets.token_hex(32)
    client = Client(server.tcp)
    for address in (f"[::1]:{server.tcp.port}", f"127.0.0.2:{server.tcp.port}", f"localhost:{server.tcp.port}"):
        answer = done(client.get("/v1/proof", nonce=nonce, address=address))
        assert answer["address"] == f"127.0.0.1:{server.tcp.port}"
        assert answer["proof"] != proof.compute_proof(server.token, nonce, address)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


async def test_a_port_that_is_forwarded_on_purpose_can_be_named(place: Place, port: int, tmp_path: Path) -> None:
    server = place.start("--host", "tcp://127.0.0.1:0", "--allow-host", f"127.0.0.1:{port}")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", server.tcp.port)
        await asyncio.gather(pump(reader, requests), pump(answers, writer))

    async with await asyncio.start_server(forward, "127.0.0.1", port):
        endpoint = ServerLocation(TcpAddress("127.0.0.1", port), "/nowhere", server.token, is_managed=False)
        wire = AsyncTransport(endpoint, client="test")
        assert await wire.request("GET", "/v1/health") == {"status": "ok"}
        await wire.close()
        env = {"KEDGE_HOST": f"tcp://127.0.0.1:{port}"}
        ended = await asyncio.to_thread(Kedge(place, tmp_path), "run", "-q", "say hello", env=env)
        assert (ended.code, ended.out) == (0, "hello\n")
    assert server.stop() == 0


async def test_whoever_takes_the_port_while_the_server_restarts_gets_no_token(place: Place, squat: Squat) -> None:
    """Each connection is proven anew, also those of a client that knew the server before."""
    server = place.start("--host", "tcp://127.0.0.1:0", env={"KEDGE_TOKEN": TOKEN})
    endpoint = ServerLocation(server.tcp, str(place.data_dir), TOKEN, is_managed=False)
    wire, async_wire = Transport(endpoint, Waiter(), client="test"), AsyncTransport(endpoint, client="test")
    assert wire.request("GET", "/v1/health") == await async_wire.request("GET", "/v1/health") == {"status": "ok"}
    assert server.stop() == 0
    squatter = squat(answering(json_answer(WRONG)), server.tcp.port)
    policy = ReconnectPolicy(give_up_s=LIMIT_S)
    with pytest.raises(NotAllowed, match="--host"):
        wire.call("POST", "/v1/workspaces/x/agent", BODY, policy=policy)
    with pytest.raises(NotAllowed, match="--host"):
        await async_wire.call("POST", "/v1/workspaces/x/agent", BODY, policy=policy)
    with pytest.raises(NotAllowed):
        next(wire.stream("/v1/workspaces/x/events"))
    await async_wire.close()
    squatter.heard_nothing()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_real_server_is_used_by_any_of_its_names(server: Server, tmp_path: Path, host: str) -> None:
    ended = Kedge(server.place, tmp_path)("run", "-q", "say hello", "--host", f"tcp://{host}:{server.tcp.port}")
    assert (ended.code, ended.out) == (0, "hello\n"), ended


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("bound", "dialled"), [("[::1]", "[::1]"), ("[::]", "127.0.0.1"), ("[::]", "[::1]"), ("0.0.0.0", "127.0.0.1")]
)
async def test_addresses_of_all_kinds_match(place: Place, bound: str, dialled: str) -> None:
    server = place.start("--host", f"tcp://{bound}:0", "--allow-remote", "--allow-host", "::1")
    address = TcpAddress(dialled.strip("[]"), server.tcp.port)
    endpoint = ServerLocation(address, str(place.data_dir), server.token, is_managed=False)
    with contextlib.closing(Transport(endpoint, Waiter(), client="test")) as plain:
        assert plain.request("GET", "/v1/health") == {"status": "ok"}
    wire = AsyncTransport(endpoint, client="test")
    assert await wire.request("GET", "/v1/health") == {"status": "ok"}
    await wire.close()
    assert server.stop() == 0


def test_curl_needs_no_proof(server: Server, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.tcp.port}/v1/workspaces"
    command = ["curl", "-sS", "--noproxy", "*", "-H", f"Authorization: Bearer {server.token}"]
    command += ["--json", json.dumps({"path": str(tmp_path)}), url]
    answer: Any = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=LIMIT_S).stdout)
    assert answer["path"] == str(tmp_path)


@pytest.mark.parametrize("nonce", ["", "x" * 64, "a" * 63, "a" * 65, "A" * 64, "a" * 10_000])
def test_the_server_proves_nothing_for_a_nonce_of_another_form(server: Server, nonce: str) -> None:
    answer = Client(server.tcp).get("/v1/proof", nonce=nonce, address="127.0.0.1:1")
    assert (answer.status, answer.code) == (422, "invalid_request")


def test_the_proof_is_for_no_web_page_and_not_on_the_unix_socket(server: Server) -> None:
    target = f"/v1/proof?nonce={'a' * 64}"
    assert Client(server.tcp).ask("GET", target, headers={"Host": "evil.example"}).status == 403
    assert Client(server.tcp).ask("GET", target, headers={"Origin": "http://evil.example"}).status == 403
    assert Client(server.tcp).ask("POST", target).status == 401
    assert server.client.ask("GET", target).status == 404


@given(st.text(min_size=1), st.text(), st.text(), st.text(min_size=1), st.text(), st.text())
def test_a_proof_holds_for_one_token_nonce_and_address(
    token: str, nonce: str, address: str, token2: str, nonce2: str, address2: str
) -> None:
    def proven(*parts: str) -> str:
        return proof.compute_proof(*(part.replace("\0", "").encode("utf-8", "replace").decode() for part in parts))

    same = proven(token, nonce, address)
    parts = [part.replace("\0", "") for part in (token, nonce, address, token2, nonce2, address2)]
    if parts[:3] != parts[3:] and all(parts):
        assert same != proven(token2, nonce2, address2)


def test_each_challenge_has_a_nonce_of_its_own() -> None:
    endpoint = ServerLocation(TcpAddress("127.0.0.1", 1), "", TOKEN, is_managed=False)
    requests = {Challenge(endpoint, ("127.0.0.1", 1)).request for _ in range(100)}
    assert len(requests) == 100
    assert all(TOKEN.encode() not in request for request in requests)

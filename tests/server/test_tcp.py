"""P16 over TCP: a token, always; no web page gets in; nothing is open to other machines by accident."""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.protocol.address import AddressError, TcpAddress
from kedge.protocol.runs import Run
from kedge.server.auth import LOOPBACK_NAMES, host_name, make_token
from kedge.server.listener import bind
from tests.server.client import Client
from tests.server.conftest import Start
from tests.server.process import Place, Server

CHOSEN = "a-token-that-somebody-chose-for-themselves"


@pytest.fixture
def tcp(server: Server) -> Client:
    """A client that knows the token."""
    return Client(server.tcp, server.token)


def port(server: Server) -> int:
    return server.tcp.port


def test_the_token_is_made_on_first_use_and_kept(place: Place, start: Start) -> None:
    server = start("--host", "tcp://127.0.0.1:0")
    path = place.data_dir / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert re.fullmatch(r"[\w-]{40,}", server.token)
    token = server.token
    assert server.stop() == 0
    server = start("--host", "tcp://127.0.0.1:0")
    assert server.token == token
    assert Client(server.tcp, token).get("/v1/health").status == 200
    assert token not in place.log
    assert [path.name for path in place.data_dir.glob("token*")] == ["token"]


def test_localhost_is_this_machine_and_needs_no_insisting(start: Start) -> None:
    server = start("--host", "tcp://localhost:0")
    assert Client(server.tcp, server.token).get("/v1/health").status == 200
    assert Client(server.tcp, "another").get("/v1/health").status == 401


def test_without_tcp_no_token_is_made(place: Place, start: Start) -> None:
    start()
    assert not (place.data_dir / "token").exists()


@pytest.mark.parametrize("source", ["KEDGE_TOKEN", "--token-file"])
def test_a_token_can_be_given(place: Place, start: Start, tmp_path: Path, source: str) -> None:
    file = tmp_path / "my-token"
    file.write_text(f" {CHOSEN}\n")
    file.chmod(0o600)
    args = ["--token-file", str(file)] if source == "--token-file" else []
    env = {"KEDGE_TOKEN": f" {CHOSEN}\n"} if source == "KEDGE_TOKEN" else {}
    server = start("--host", "tcp://127.0.0.1:0", *args, env=env)
    assert Client(server.tcp, CHOSEN).get("/v1/health").status == 200
    assert Client(server.tcp, CHOSEN.title()).get("/v1/health").status == 401
    assert not (place.data_dir / "token").exists()
    assert CHOSEN not in place.log


def test_a_token_that_others_can_read_is_refused(place: Place) -> None:
    place.data_dir.mkdir(mode=0o700)
    path = place.data_dir / "token"
    path.write_text(f"{CHOSEN}\n")
    path.chmod(0o640)
    why = place.refused("--host", "tcp://127.0.0.1:0")
    assert str(path) in why
    assert CHOSEN not in why + place.log
    path.chmod(0o604)
    with pytest.raises(AddressError, match="chmod 600"):
        make_token(str(path))
    path.chmod(0o600)
    assert make_token(str(path)) == CHOSEN


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_token_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{CHOSEN}\n")
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    with pytest.raises(AddressError, match="chmod 600"):
        make_token(str(path))


@pytest.mark.parametrize("file", ["nowhere/token", ".", "binary"])
def test_a_token_file_that_cannot_be_used_is_named(tmp_path: Path, file: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(AddressError, match=re.escape(str(tmp_path / file))):
        make_token(str(tmp_path / file))


@pytest.mark.parametrize("token", ["secret", "x" * 31, "ü" * 40])
def test_a_token_that_could_be_guessed_is_refused(place: Place, token: str) -> None:
    why = place.refused("--host", "tcp://127.0.0.1:0", env={"KEDGE_TOKEN": token})
    assert "32 random characters" in why
    assert token not in why


def test_an_empty_token_file_gets_a_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o644)
    token = make_token(str(path))
    assert token == path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_refused_token_costs_no_run_an_attempt(place: Place, start: Start, tmp_path: Path) -> None:
    server = start()
    workspace = server.client.workspace(tmp_path)
    run_id = server.client.submit(workspace, server.client.session(workspace), "hang")
    while server.client.get(f"{workspace}/runs/{run_id}").json["state"] != "running":
        pass
    server.kill()
    (place.data_dir / "token").write_text("open to all")
    place.refused("--host", "tcp://127.0.0.1:0")
    client = start().client
    with client.events(workspace, after=0) as events:
        attempts = [
            run.attempt for run in (event.payload for event in events.until("caught_up")) if isinstance(run, Run)
        ]
    assert max(attempts) <= 2
    client.post(f"{workspace}/runs/{run_id}/cancel")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}", "localhost", "127.0.0.1:1", "::1"],
)
def test_its_own_names_are_answered_to(server: Server, tcp: Client, host: str) -> None:
    answer = tcp.ask("GET", "/v1/health", headers={"Host": host.format(port=port(server))})
    assert answer.status == 200


REBOUND = [
    "evil.example",
    "evil.example:{port}",
    "localhost.evil.example:{port}",
    "127.0.0.1.evil.example",
    "192.168.0.1:{port}",
    "0.0.0.0:{port}",
    "localhost.",
    "",
    "[::2]:{port}",
    "[::1",
    "127.0.0.1@evil.example",
    "127.1:{port}",
    "2130706433",
    "[127.0.0.1]evil.example",
    "[127.0.0.1]",
    "[::1]evil.example:{port}",
    "[::1]:{port}:{port}",
    "127.0.0.1:evil.example",
    "localhost:{port}evil.example",
    "localhost:-1",
    "localhost:123456",
    "localhost/evil.example",
    "evil.example/@localhost",
    "\x85localhost",
]


@pytest.mark.parametrize("host", REBOUND)
def test_a_name_that_was_rebound_to_us_is_refused(server: Server, tcp: Client, host: str) -> None:
    answer = tcp.ask("GET", "/v1/health", headers={"Host": host.format(port=port(server))})
    assert (answer.status, answer.code) == (403, "forbidden_host")


NAMES = st.sampled_from(["localhost", "127.0.0.1", "[::1]"])
PORTS = st.one_of(st.just(""), st.integers(0, 99999).map(lambda port: f":{port}"))


@given(
    NAMES, PORTS, st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=12)
)
def test_only_a_name_of_ours_with_a_port_is_a_host_of_ours(name: str, port: str, more: str) -> None:
    assert host_name(f"{name}{port}") == name.strip("[]")
    for text in (f"{name}{more}", f"{more}{name}", f"{name}{port}{more}", f"{name}:{more}"):
        is_port = text == name or re.fullmatch(r":[0-9]{0,5}", text.removeprefix(name), re.ASCII)
        assert (host_name(text) in LOOPBACK_NAMES) == bool(text.startswith(name) and is_port), text


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: localhost\r\n"])
def test_exactly_one_host_is_needed(server: Server, tcp: Client, hosts: bytes) -> None:
    head = b"GET /v1/health HTTP/1.1\r\nAuthorization: Bearer %b\r\nConnection: close\r\n" % server.token.encode()
    assert tcp.said(head + hosts + b"\r\n")[:12] in (b"HTTP/1.1 403", b"HTTP/1.1 400")


ORIGINS = {
    "http://127.0.0.1:{port}": 200,
    "HTTP://127.0.0.1:{port}": 200,
    "null": 403,
    "": 403,
    "http://127.0.0.1": 403,
    "http://127.0.0.1:1": 403,
    "https://127.0.0.1:{port}": 403,
    "http://localhost:{port}": 403,  # another origin than the one asked
    "http://evil.example": 403,
    "http://127.0.0.1:{port}.evil.example": 403,
    "http://127.0.0.1:{port}, http://evil.example": 403,
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_pages_of_other_origins_are_refused(server: Server, tcp: Client, origin: str) -> None:
    answer = tcp.ask("GET", "/v1/health", headers={"Origin": origin.format(port=port(server))})
    assert answer.status == ORIGINS[origin]
    if answer.status == 403:
        assert answer.code == "forbidden_origin"
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_that_asks_whether_it_may_is_refused(server: Server) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = Client(server.tcp).ask("OPTIONS", "/v1/workspaces", headers=headers)
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_two_authorizations_are_none(server: Server, tcp: Client) -> None:
    bearer = f"Authorization: Bearer {server.token}\r\n"
    head = f"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{bearer}{bearer}\r\n"
    assert tcp.said(head.encode()).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("query", ["token={token}", "access_token={token}", "authorization=Bearer%20{token}"])
def test_a_token_in_the_address_is_none(server: Server, query: str) -> None:
    answer = Client(server.tcp).ask("GET", f"/v1/health?{query.format(token=server.token)}")
    assert answer.status == 401
    assert server.token not in server.place.log


def test_an_address_that_other_machines_reach_is_refused(place: Place) -> None:
    why = place.refused("--host", "tcp://0.0.0.0:0")
    assert "can be reached from other machines" in why
    assert "--allow-remote" in why
    for host in ("::", "192.0.2.1", "no.such.name.invalid", "127.1"):
        with pytest.raises(AddressError, match="can be reached from other machines"):
            bind(TcpAddress(host, 0))


def test_who_insists_gets_it_and_still_needs_the_token(start: Start) -> None:
    remote = start("--host", "tcp://0.0.0.0:0", "--allow-remote", "--allow-host", "build.example")
    address = f"tcp://127.0.0.1:{remote.tcp.port}"
    assert Client(address).get("/v1/health").status == 401
    client = Client(address, remote.token)
    for host, status in {
        "192.0.2.7:1": 200,
        "build.example": 200,
        "BUILD.example:80": 200,
        "evil.example": 403,
    }.items():
        assert client.ask("GET", "/v1/health", headers={"Host": host}).status == status, host


def test_an_address_that_is_taken_is_one_line(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        why = place.refused("--host", f"tcp://127.0.0.1:{taken.getsockname()[1]}")
    assert "--host" in why
    assert list((place.runtime_dir / "kedge").iterdir()) == []  # no socket is left behind either


@pytest.mark.parametrize("host", ["no.such.name.invalid", f"{'x' * 70}.example"])
def test_a_name_that_cannot_be_resolved_is_told(host: str) -> None:
    with pytest.raises(AddressError, match="--host"):
        bind(TcpAddress(host, 0), allow_remote=True)

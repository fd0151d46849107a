"""Logins to MCP servers: what is stored and sent where, and servers that want to steal or mislead."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kedge.config.schema import McpOAuthConfig
from kedge.http.connection import Origin
from kedge.jsonrpc.errors import CannotConnect, PeerError
from kedge.mcp.client import Client
from kedge.mcp.errors import LoginFailed, LoginRequired
from kedge.mcp.http import HttpTransport
from kedge.mcp.oauth import web as web_module
from kedge.mcp.oauth.logins import Logins
from kedge.mcp.oauth.tokens import list_grants
from kedge.mcp.oauth.web import LoginWeb
from kedge.models.keys.secrets import McpSecrets
from tests.mcp.oauth_parts import MemoryStore, play_browser
from tests.mcp.oauth_server import OAuthServer
from tests.mcp.raw_server import Got, RawServer, document
from tests.mcp.test_http import Events

NO_CONFIG = McpOAuthConfig()


@contextlib.asynccontextmanager
async def serving() -> AsyncGenerator[tuple[OAuthServer, Logins, MemoryStore]]:
    store = MemoryStore()
    async with OAuthServer().run() as server:
        assert isinstance(server, OAuthServer)
        logins = Logins(store)
        try:
            yield server, logins, store
        finally:
            await logins.close()


async def log_in(server: OAuthServer, logins: Logins, config: McpOAuthConfig = NO_CONFIG) -> str:
    """Log in as a person with a browser does; return the page that the person sees."""
    _, page = await play_browser(await logins.begin(server.url, config))
    assert await logins.wait(server.url, 20)
    return page


async def connect(server: OAuthServer, logins: Logins) -> None:
    client = Client(HttpTransport(server.url, {}, logins.get_tokens(server.url)), Events(), timeout_s=20)
    try:
        await client.connect()
        await client.list_tools()
    finally:
        await client.close()


async def test_a_server_that_wants_a_login_gets_its_token_and_nobody_else_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "credentials.json"
    async with serving() as (server, _, _):
        logins = Logins(McpSecrets(path))
        with pytest.raises(LoginRequired):
            await connect(server, logins)
        assert "logged in" in await log_in(server, logins)
        await connect(server, logins)
        again = Logins(McpSecrets(path))  # as after a restart
        await connect(server, again)
        (client,) = server.clients
        assert client["application_type"] == "native"
        assert client["redirect_uris"][0].startswith("http://127.0.0.1:")
        (form,) = server.forms
        assert form["resource"] == server.url
        await logins.close()
        await again.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "access-1" in path.read_text()
    assert "access-1" not in caplog.text
    assert "refresh-1" not in caplog.text
    assert "access-1" not in repr(await list_grants(McpSecrets(path), server.url))


async def test_an_expired_token_is_refreshed_once_for_all_who_notice_it() -> None:
    async with serving() as (server, logins, store):
        server.lifetime_s = 3600
        await log_in(server, logins)
        server.valid_access.clear()  # as if it had expired earlier
        await asyncio.gather(*(connect(server, logins) for _ in range(8)))
        assert [form["grant_type"] for form in server.forms] == ["authorization_code", "refresh_token"]
        (grant,) = await list_grants(store, server.url)
        assert (grant.access_token, grant.refresh_token) == ("access-2", "refresh-2")
        server.lifetime_s = 0  # expires so soon that it is refreshed before it is sent
        server.valid_access.clear()
        await connect(server, logins)
        seen = len(server.got)
        await connect(server, logins)
        assert next(got.path for got in server.got[seen:]) == "/token"


async def test_a_refresh_that_fails_for_a_moment_keeps_the_login_and_a_refused_one_asks_for_another() -> None:
    async with serving() as (server, logins, store):
        await log_in(server, logins)
        server.valid_access.clear()
        server.token_answer = document({"error": "temporarily_unavailable"}, "503 Service Unavailable")
        with pytest.raises(CannotConnect):
            await connect(server, logins)
        server.token_answer = None
        await connect(server, logins)
        server.valid_access.clear()
        server.token_answer = document({"error": "invalid_grant"}, "400 Bad Request")
        with pytest.raises(LoginRequired, match="expired"):
            await connect(server, logins)
        (grant,) = await list_grants(store, server.url)
        assert (grant.access_token, grant.refresh_token, grant.client_id) == ("", None, "client-1")
        server.token_answer = None
        await log_in(server, logins)
        await connect(server, logins)
        assert len(server.clients) == 1  # the registration was kept


async def test_a_login_that_is_interrupted_loses_neither_the_old_tokens_nor_the_registration() -> None:
    async with serving() as (server, logins, store):
        first = await logins.begin(server.url, NO_CONFIG)
        await logins.close()  # all that is left of a killed process is what was stored
        again = Logins(store)
        second = await again.begin(server.url, NO_CONFIG)
        same = [parse_qs(urlsplit(each).query)["redirect_uri"] for each in (first, second)]
        assert same[0] == same[1]
        assert len(server.clients) == 1
        await play_browser(second)
        assert await again.wait(server.url, 20)
        await again.begin(server.url, NO_CONFIG)
        await again.close()
        await connect(server, Logins(store))


async def test_answers_of_a_browser_count_only_with_the_state_of_the_login() -> None:
    async with serving() as (server, logins, _):
        url = await logins.begin(server.url, NO_CONFIG)
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        redirect = query["redirect_uri"]
        for forged in ("?code=x", "?code=x&state=guess", f"?code=x&state={query['state']}&state=y", "?error=x"):
            status, _ = await play_browser(redirect + forged)
            assert status == 400
        assert (await play_browser(redirect.replace("/callback", "/other")))[0] == 404
        assert not logins.answer(server.url, f"{redirect}?code=x&state=guess")
        assert not await logins.wait(server.url, 0)
        await play_browser(url)
        assert await logins.wait(server.url, 20)


async def test_a_browser_that_cannot_reach_this_machine_is_answered_by_pasting_its_address() -> None:
    async with serving() as (server, logins, _):
        url = await logins.begin(server.url, NO_CONFIG)
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert logins.answer(server.url, server.authorize(query))
        assert await logins.wait(server.url, 20)
        await connect(server, logins)


async def test_a_person_who_says_no_is_told_so() -> None:
    async with serving() as (server, logins, _):
        server.must_deny = True
        _, page = await play_browser(await logins.begin(server.url, NO_CONFIG))
        assert "refused" in page
        with pytest.raises(LoginFailed, match="access_denied"):
            await logins.wait(server.url, 20)


async def test_a_logout_forgets_and_revokes() -> None:
    async with serving() as (server, logins, store):
        await log_in(server, logins)
        assert await logins.log_out(server.url)
        assert store.secrets == {}
        assert server.revoked == ["refresh-1"]
        with pytest.raises(LoginRequired):
            await connect(server, logins)
        assert not await logins.log_out(server.url)


async def test_a_configured_client_is_not_sent_to_another_authorization_server() -> None:
    config = McpOAuthConfig(client_id="mine", client_secret="s3cret")
    async with serving() as (server, logins, _):
        server.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
        await log_in(server, logins, config)
        assert server.clients == []
        assert server.forms[0]["client_secret"] == "s3cret"
        async with OAuthServer().run() as other:
            assert isinstance(other, OAuthServer)
            server.resource = {"authorization_servers": [other.origin]}
            with pytest.raises(LoginFailed, match="another authorization server"):
                await logins.begin(server.url, config)
            assert all("mine" not in got.path + got.body.decode() for got in other.got)


HOSTILE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a login page that is a script": ({"authorization_endpoint": "javascript:alert(1)"}, {}),
    "a login page that is a file": ({"authorization_endpoint": "file:///etc/passwd"}, {}),
    "a login page that is a command": ({"authorization_endpoint": "http://x$(id)`id`.example/"}, {}),
    "a token endpoint without TLS": ({"token_endpoint": "http://tokens.example/"}, {}),
    "a token endpoint with a password": ({"token_endpoint": "https://a:b@tokens.example/"}, {}),
    "no PKCE": ({"code_challenge_methods_supported": ["plain"]}, {}),
    "another issuer": ({"issuer": "https://honest.example"}, {}),
    "a resource of another server": ({}, {"resource": "https://honest.example/mcp"}),
    "a resource above this one": ({}, {"resource": "RESOURCE/mcp/deeper"}),
    "an authorization server without TLS": ({}, {"authorization_servers": ["http://auth.example"]}),
    "no authorization server": ({}, {"authorization_servers": []}),
    "an authorization server that is a file": ({}, {"authorization_servers": ["file:///etc"]}),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_metadata_of_a_malicious_server_is_refused_in_one_line(name: str) -> None:
    async with serving() as (server, logins, store):
        server.metadata, server.resource = HOSTILE[name]
        if "RESOURCE" in server.resource.get("resource", ""):
            server.resource = {"resource": f"{server.url}/deeper"}
        with pytest.raises(PeerError) as raised:
            await logins.begin(server.url, NO_CONFIG)
        assert "\n" not in raised.value.text
        assert server.forms == []
        assert not any("access_token" in secret for secret in store.secrets.values())


async def test_metadata_without_end_is_refused() -> None:
    async with serving() as (server, logins, _):
        server.resource = {"padding": "x" * 1_000_000}
        with pytest.raises(LoginFailed, match="more than"):
            await logins.begin(server.url, NO_CONFIG)


@pytest.mark.parametrize(
    "token", ["a\r\nX-Evil: 1", "", "ü", {"nested": 1}], ids=["injection", "empty", "not ascii", "no text"]
)
async def test_a_token_that_cannot_be_sent_is_refused_and_not_quoted(token: object) -> None:
    async with serving() as (server, logins, _):
        server.token_answer = document({"access_token": token, "token_type": "Bearer"})
        await play_browser(await logins.begin(server.url, NO_CONFIG))
        with pytest.raises(LoginFailed) as raised:
            await logins.wait(server.url, 20)
        assert "Evil" not in str(raised.value)


async def test_a_server_on_the_internet_cannot_lead_to_this_machine_or_its_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {
        "mcp.example": "93.184.216.34",
        "metadata.example": "169.254.169.254",
        "lan.example": "192.168.1.1",
        "loop.example": "127.0.0.1",
    }

    async def resolve(origin: Origin) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        return [ipaddress.ip_address(names.get(origin.host, origin.host))]

    async def reached(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(document({}))

    monkeypatch.setattr(web_module, "_resolve", resolve)
    async with RawServer(reached).run() as inside:
        port = urlsplit(inside.url).port
        web = LoginWeb("https://mcp.example/mcp")
        try:
            for host in ("metadata.example", "lan.example", f"loop.example:{port}", f"127.0.0.1:{port}", "[::1]"):
                with pytest.raises(CannotConnect, match="this machine or its network"):
                    await web.get(f"https://{host}/x", dict[str, str], "tests")
            with pytest.raises(LoginFailed):
                await web.get(inside.url, dict[str, str], "tests")
        finally:
            web.close()
        assert inside.got == []

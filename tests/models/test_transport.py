"""The way out for real: tunnels through a proxy, and certificates of an authority that only the test knows."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.config.schema import Config, ProviderConfig
from kedge.http.proxy import ConnectionOptions
from kedge.models import transport as transport_module
from kedge.models.client import ModelClient
from kedge.models.errors import ConfigError
from kedge.models.provider_registry import configured_providers
from kedge.models.selection.selector import make_endpoint
from kedge.models.transport import MAX_CLIENTS, Transport
from kedge.models.values import Endpoint, HttpRequest, StepRequest, TextDelta
from kedge.protocol.messages import Message, Text
from tests.models.proxies import Authority, new_authority, proxy_to, tls_front
from tests.support.model_server import ModelServer

LIMIT_S = 30.0
NAME = "models.test"  # known to nobody but the proxy
PROMPT = Message(id="m", session_id="s", run_id="r", role="user", parts=[Text("hello")], created_at=0.0)
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("authority"), NAME)


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine uses, the server of these tests has nothing of it."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
async def models() -> AsyncGenerator[ModelClient]:
    async with asyncio.timeout(LIMIT_S):
        models = ModelClient()
        yield models
        await models.close()


def chosen(env: dict[str, str], ca_file: str | None = None) -> Endpoint:
    """As a run with this environment has it."""
    config = Config(providers={"mine": ProviderConfig(base_url=f"https://{NAME}:443/v1", ca_file=ca_file)})
    return make_endpoint(configured_providers(config)["mine"], "m", env)


async def answer(models: ModelClient, endpoint: Endpoint) -> str:
    async with contextlib.aclosing(models.stream(endpoint, StepRequest(system="", history=[PROMPT]))) as groups:
        return "".join([d.text async for group in groups for d in group if isinstance(d, TextDelta)])


async def test_a_run_goes_by_the_proxy_of_its_own_shell_and_believes_its_own_authority(
    models: ModelClient, model_server: ModelServer, authority: Authority
) -> None:
    async with tls_front(model_server.port, authority) as front, proxy_to(front) as proxy:
        env = {"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": str(authority.ca_file)}
        for _ in range(2):
            assert await answer(models, chosen(env)) == "FAKE-ANSWER-OK"
        assert proxy.asked == [f"{NAME}:443"], "and the tunnel is kept for the next step"


async def test_the_servers_own_variables_count_where_a_run_has_none(
    model_server: ModelServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(LIMIT_S), tls_front(model_server.port, authority) as front, proxy_to(front) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
        models = ModelClient()
        assert await answer(models, chosen({"PATH": os.environ["PATH"]})) == "FAKE-ANSWER-OK"
        assert len(proxy.asked) == 1
        await models.close()


async def test_a_ca_file_of_the_configuration_is_believed_for_its_provider(
    models: ModelClient, model_server: ModelServer, authority: Authority
) -> None:
    async with tls_front(model_server.port, authority) as front, proxy_to(front) as proxy:
        env = {"HTTPS_PROXY": proxy.url}
        assert await answer(models, chosen(env, ca_file=str(authority.ca_file))) == "FAKE-ANSWER-OK"
        with pytest.raises(ConfigError, match=r"certificate of models\.test:443") as caught:
            await answer(models, chosen(env))
        assert "SSL_CERT_FILE" in caught.value.text
        assert "ca_file" in caught.value.text


async def test_two_shells_of_one_server_go_different_ways(
    models: ModelClient, model_server: ModelServer, authority: Authority
) -> None:
    async with (
        tls_front(model_server.port, authority) as front,
        proxy_to(front) as one,
        proxy_to(front) as other,
    ):
        env = {"SSL_CERT_FILE": str(authority.ca_file)}
        ways = [chosen({**env, "HTTPS_PROXY": proxy.url}) for proxy in (one, other)]
        said = await asyncio.gather(*(answer(models, way) for way in ways))
        assert said == ["FAKE-ANSWER-OK"] * 2
        assert (len(one.asked), len(other.asked)) == (1, 1)


async def test_a_proxys_password_is_sent_to_it_and_shown_to_nobody(
    models: ModelClient, model_server: ModelServer, authority: Authority
) -> None:
    basic = "Basic bWU6cGxhbnRlZC1wYXNzd29yZA=="  # me:planted-password
    async with tls_front(model_server.port, authority) as front, proxy_to(front, basic) as proxy:
        ca = {"SSL_CERT_FILE": str(authority.ca_file)}
        known = f"http://me:planted-password@{proxy.url.removeprefix('http://')}"
        assert await answer(models, chosen({**ca, "HTTPS_PROXY": known})) == "FAKE-ANSWER-OK"
        wrong = known.replace("planted-password", "planted-mistake")
        with pytest.raises(ConfigError, match="407") as caught:
            await answer(models, chosen({**ca, "HTTPS_PROXY": wrong}))
        assert "planted" not in caught.value.text


async def test_a_model_on_this_machine_is_asked_directly_whatever_the_proxy(
    models: ModelClient, model_server: ModelServer
) -> None:
    env = {"HTTP_PROXY": "http://proxy.test:1", "ALL_PROXY": "http://proxy.test:1"}
    config = Config(providers={"mine": ProviderConfig(base_url=model_server.base_url)})
    endpoint = make_endpoint(configured_providers(config)["mine"], "m", env)
    assert await answer(models, endpoint) == "FAKE-ANSWER-OK"


@pytest.mark.parametrize("proxy", ["nonsense://me:planted@host", "http://host:port", "http://me:planted#x@host"])
async def test_a_proxy_that_cannot_be_used_fails_the_run_that_has_it(models: ModelClient, proxy: str) -> None:
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as caught:
        await answer(models, chosen({"HTTPS_PROXY": proxy}))
    assert "planted" not in caught.value.text


async def test_a_ca_file_that_is_not_there_is_named(models: ModelClient, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca_file .*none\.pem"):
        await answer(models, chosen({"HTTPS_PROXY": "http://proxy.test"}, ca_file=str(tmp_path / "none.pem")))


async def test_a_server_with_a_wrong_variable_still_serves_a_shell_with_a_right_one(
    model_server: ModelServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/at/all.pem")
    models = ModelClient()
    async with asyncio.timeout(LIMIT_S), tls_front(model_server.port, authority) as front, proxy_to(front) as proxy:
        env = {"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": str(authority.ca_file)}
        assert await answer(models, chosen(env)) == "FAKE-ANSWER-OK"
    await models.close()


async def test_no_way_that_somebody_just_chose_is_given_up_for_another(
    model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "MAX_CLIENTS", 1)
    transport = Transport(5.0, 5.0)
    request = HttpRequest("GET", f"{model_server.base_url}/models", {})

    async def ask(number: int) -> int:
        async with transport.send(request, ConnectionOptions(ca_dir=f"/tmp/{number}")) as told:
            assert [chunk async for chunk in told.chunks()], "its connection is kept, and takes a moment to close"
            return told.status

    async with asyncio.timeout(LIMIT_S):
        for _ in range(3):
            assert await asyncio.gather(*map(ask, range(8))) == [200] * 8
    transport.close()


async def test_ways_that_nobody_uses_any_more_are_given_up(model_server: ModelServer) -> None:
    transport = Transport(5.0, 5.0)
    request = HttpRequest("GET", f"{model_server.base_url}/models", {})
    async with asyncio.timeout(LIMIT_S), transport.send(request, ConnectionOptions(ca_dir="/tmp")) as held:
        for number in range(MAX_CLIENTS + 4):
            async with transport.send(request, ConnectionOptions(ca_dir=f"/tmp/{number}")) as told:
                assert told.status == 200
        assert b"".join([chunk async for chunk in held.chunks()]), "the one in use is kept"
    transport.close()


async def test_a_key_that_no_header_can_carry_is_a_mistake_of_the_configuration_and_not_shown(
    model_server: ModelServer,
) -> None:
    transport = Transport(5.0, 5.0)
    for key in ("planted\nX: y", "planted\u201d"):
        request = HttpRequest("GET", f"{model_server.base_url}/models", {"Authorization": f"Bearer {key}"})
        with pytest.raises(ConfigError, match="check the API key") as caught:
            async with transport.send(request):
                pass
        assert caught.value.code == "bad_config"
        assert "planted" not in caught.value.text
    transport.close()

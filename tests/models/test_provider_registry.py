"""Providers of installed packages: their data, a wire of their own, and what becomes of one that is broken."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kedge.config.schema import Config, ProviderConfig
from kedge.models import provider_registry
from kedge.models.client import ModelClient
from kedge.models.errors import ConfigError, Refused
from kedge.models.keys.credentials import CREDENTIALS_FILE, Credentials
from kedge.models.provider_registry import configured_providers
from kedge.models.providers import Provider
from kedge.models.selection.selector import ModelSelector
from kedge.models.values import Endpoint, StepRequest, TextDelta
from kedge.models.wires.provider_errors import error_from_response
from kedge.protocol.messages import Message, Text
from tests.models.packages import Package, laid_out
from tests.support.model_server import ModelServer

LIMIT_S = 30.0
PROMPT = Message(id="m", session_id="s", run_id="r", role="user", parts=[Text("hello")], created_at=0.0)
ENV = {"ACME_API_KEY": "key-of-a-test", "ACME_BASE_URL": "http://gate.test/v1"}
DATA = 'provider = {"base_url": "https://acme.test/v1/", "large": "big", "models": {"big": {"context_window": 9000}}}\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Where packages are found, for one test."""
    target = tmp_path / "site"
    target.mkdir()
    monkeypatch.syspath_prepend(str(target))
    known = set(sys.modules)
    provider_registry.reload()
    yield target
    provider_registry.reload()
    for name in set(sys.modules) - known:
        if name.startswith("kedge_acme"):
            del sys.modules[name]


def install(site: Path, code: str, name: str = "acme") -> None:
    module = f"kedge_acme_{len(list(site.iterdir()))}"
    laid_out(Package(f"pkg-{module}", "2.1", {name: f"{module}:provider"}, {f"{module}.py": code}), site)


def selector(path: Path | None = None) -> ModelSelector:
    return ModelSelector(Credentials(path))


async def report(text: str, details: dict[str, Any]) -> None:
    raise AssertionError


async def endpoint(model: str | None = "acme", env: dict[str, str] = ENV, config: Config | None = None) -> Endpoint:
    return (await selector().find(model, env, config or Config())).endpoint


async def test_a_package_adds_a_provider_with_what_is_known_of_its_models(site: Path) -> None:
    install(site, DATA)
    found = await endpoint(env={"ACME_API_KEY": "k"})
    assert (found.name, found.base_url, found.wire) == ("acme/big", "https://acme.test/v1", "chat")
    assert found.info.context_window == 9000
    assert (await endpoint("acme/other")).info.context_window is None
    assert (await endpoint("acme/other")).base_url == "http://gate.test/v1"


async def test_the_configuration_has_the_last_word(site: Path) -> None:
    install(site, DATA.replace("{", '{"headers": {"X-A": "theirs", "X-B": "theirs"}, ', 1))
    settings = ProviderConfig(headers={"X-A": "mine"}, base_url="http://mine.test/v1")
    found = await endpoint("acme/big", config=Config(providers={"acme": settings}))
    assert found.base_url == "http://mine.test/v1"
    assert dict(found.headers) == {"X-A": "mine", "X-B": "theirs"}


async def test_a_login_is_enough_to_use_it(site: Path, tmp_path: Path) -> None:
    install(site, DATA)
    path = tmp_path / CREDENTIALS_FILE
    path.write_text('{"providers": {"azure": {"api_key": "b"}, "acme": {"api_key": "k"}, "gone": {"api_key": "c"}}}')
    path.chmod(0o600)
    found = (await selector(path).find(None, {}, Config())).endpoint
    assert found.name == "acme/big", "Azure's models have no known names"
    assert (await selector(path).refresh_key(found, {}, Config())).api_key == "k"


async def test_a_refused_key_is_named_by_the_packages_own_variable(site: Path) -> None:
    install(site, 'provider = {"base_url": "https://acme.test/v1", "key_variables": ["ACME_TOKEN"]}\n')
    fault = error_from_response(await endpoint("acme/big"), 401, {}, b"", 0.0)
    assert "set ACME_TOKEN" in fault.text


async def test_its_key_is_looked_for_as_that_of_any_provider(site: Path) -> None:
    install(site, DATA)
    found = await selector().refresh_key(await endpoint("acme/big"), {"ACME_API_KEY": "k"}, Config())
    assert found.api_key == "k"
    with pytest.raises(ConfigError, match="ACME_API_KEY"):
        await selector().select("acme/big", {}, Config(), directory=site, report=report)
    renewed = await selector().renew_key(found, {"ACME_API_KEY": "other"}, Config())
    assert renewed is not None
    assert renewed.api_key == "other"


BROKEN = {
    "import nothing_of_this_name\n": "ModuleNotFoundError: No module named 'nothing_of_this_name'",
    "raise SystemExit(3)\n": "SystemExit: 3",
    "other = {}\n": "has no attribute 'provider'",
    "provider = 5\n": "its entry point names a int, not a dict",
    'provider = {"base_uri": "x"}\n': "base_uri",
    'provider = {"base_url": 5}\n': "Expected `str | null`, got `int` - at `$.base_url`",
    'provider = {"base_url": "ftp://x"}\n': "base_url must be http(s)://",
    'provider = {"wire": "morse"}\n': "morse",
    'provider = {"stream": print}\n': "needs both prepare_request and stream",
    'provider = {"stream": 1, "prepare_request": 2}\n': "prepare_request is not a function",
}


@pytest.mark.parametrize("code", BROKEN)
async def test_what_is_wrong_with_a_package_is_one_line_for_who_names_it_and_nothing_for_others(
    site: Path, code: str
) -> None:
    install(site, code)
    install(site, DATA, "good")
    for named in ("acme/m", "acme"):
        with pytest.raises(ConfigError) as caught:
            await endpoint(named)
        assert "'acme' of the package pkg-kedge_acme_0 2.1 cannot be used" in caught.value.text
        assert BROKEN[code] in caught.value.text
        assert "\n" not in caught.value.text
    assert (await endpoint("good", {})).name == "good/big"
    assert "acme" not in configured_providers(Config(providers={"acme": ProviderConfig(headers={"a": "b"})}))
    assert isinstance(provider_registry.load_all()["acme"], provider_registry.BrokenPackage)
    assert isinstance(provider_registry.load_all()["good"], Provider)


@pytest.mark.parametrize("name", ["openai", "ollama", "local"])
async def test_a_name_that_is_taken_stays_whose_it_was(site: Path, name: str) -> None:
    install(site, DATA, name)
    found = provider_registry.load_all()[name]
    assert isinstance(found, provider_registry.BrokenPackage)
    assert f"the name {name!r} is taken" in found.problem
    if name == "openai":
        assert (await endpoint("openai/gpt-5", {})).base_url == "https://api.openai.com/v1"


WIRE = """
from kedge.models.values import HttpRequest, StepEnd, StreamEnd, TextDelta

def prepare_request(endpoint, request):
    {prepare}
    return HttpRequest("POST", endpoint.base_url + "/chat/completions", {{"content-type": "application/json"}}, body)

class Stream:
    def __init__(self, endpoint, request):
        pass
    def parse_event(self, event):
        {parse}

provider = {{"base_url": "http://acme.test", "large": "m", "prepare_request": prepare_request, "stream": Stream}}
"""
BODY = """body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}'"""
READ = """return [TextDelta("heard"), StepEnd("end_turn"), StreamEnd()] if b'"stop"' in event.data else []"""


async def answer(server: ModelServer) -> str:
    models = ModelClient()
    try:
        target = await endpoint(env={"ACME_BASE_URL": server.base_url})
        async with (
            asyncio.timeout(LIMIT_S),
            contextlib.aclosing(models.stream(target, StepRequest(system="", history=[PROMPT]))) as groups,
        ):
            return "".join([d.text async for group in groups for d in group if isinstance(d, TextDelta)])
    finally:
        await models.close()


async def test_a_wire_of_its_own_is_spoken(site: Path, model_server: ModelServer) -> None:
    install(site, WIRE.format(prepare=BODY, parse=READ))
    assert await answer(model_server) == "heard"
    assert model_server.calls[0].body["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("prepare", "parse"), [("raise KeyError('deep')", READ), (BODY, "raise KeyError('deep')"), ("return", READ)]
)
async def test_a_mistake_in_a_wire_fails_the_step_and_says_whose_it_is(
    site: Path, model_server: ModelServer, prepare: str, parse: str
) -> None:
    install(site, WIRE.format(prepare=prepare, parse=parse))
    with pytest.raises(Refused, match=r"pkg-kedge_acme_0 2\.1") as caught:
        await answer(model_server)
    assert caught.value.code == "bad_response"


async def test_a_configured_wire_comes_before_that_of_the_package(site: Path) -> None:
    install(site, WIRE.format(prepare=BODY, parse=READ))
    assert (await endpoint("acme/m", {})).extension == "acme"
    configured = Config(providers={"acme": ProviderConfig(wire="anthropic")})
    assert ((await endpoint("acme/m", {}, configured)).extension, (await endpoint("acme/m", {}, configured)).wire) == (
        "",
        "anthropic",
    )


def test_packages_are_looked_for_only_when_nobody_knows_the_name() -> None:
    code = """if True:
        import sys
        from kedge.config.schema import Config
        import asyncio
        from kedge.models.keys.credentials import Credentials
        from kedge.models.selection.selector import ModelSelector
        selector = ModelSelector(Credentials())
        asyncio.run(selector.find("openai/gpt-5", {"OPENAI_API_KEY": "k"}, Config()))
        asyncio.run(selector.find(None, {"GROQ_API_KEY": "k"}, Config()))
        assert "importlib.metadata" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""Which model a run uses and why: named, set up, or found on this machine; with its API key, or loaded."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from kedge.config.schema import Config, ModelConfig, ProviderConfig
from kedge.models.embedded.models import EmbeddedModels
from kedge.models.embedded.starter import Report
from kedge.models.errors import ConfigError
from kedge.models.keys.credentials import CREDENTIALS_FILE, Credentials
from kedge.models.providers import BUILT_IN
from kedge.models.selection.selector import LocalServer, LocalServers, ModelSelector, Selection, find_small
from kedge.models.values import Endpoint, ModelInfo
from tests.support.model_server import ModelServer

OPENAI, ANTHROPIC, *_ = BUILT_IN
DIRECTORY = Path("/somewhere")
PLANTED = "planted.key.0123456789"
ENV = {"PATH": os.environ["PATH"]}
PLAIN = Config()
KEY = {"OPENAI_API_KEY": "sk-1"}
BOTH_KEYS = {**KEY, "ANTHROPIC_API_KEY": "sk-2"}
LOCAL = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1/"}
MINE = ProviderConfig(base_url="http://mine.test/v1", api_key="sk-3")
CONFIGURED = Config(model="anthropic/x", providers={"mine": MINE})


class Installed:
    """EmbeddedModels models that are there at once; remembers what it was asked for."""

    def __init__(self, *, is_available: bool = True) -> None:
        self.asked: list[tuple[str, Path]] = []
        self._is_available = is_available

    def is_available(self) -> bool:
        return self._is_available

    async def load(self, name: str, *, directory: Path, env: Mapping[str, str], report: Report) -> Endpoint:
        self.asked.append((name, directory))
        return Endpoint(provider="local", model=name, base_url="local://x/v1", info=ModelInfo(is_tiny=True))


async def report(text: str, details: dict[str, Any]) -> None:
    raise AssertionError


def selector(
    path: Path | None = None, embedded: Installed | None = None, servers: tuple[LocalServer, ...] = ()
) -> ModelSelector:
    return ModelSelector(
        Credentials(path), cast("EmbeddedModels | None", embedded), LocalServers(servers, timeout_s=10.0)
    )


async def select(
    model: str | None, env: Mapping[str, str], config: Config = PLAIN, where: ModelSelector | None = None
) -> Selection:
    return await (where or selector()).select(model, env, config, directory=DIRECTORY, report=report)


async def find(model: str | None, env: Mapping[str, str], config: Config | None = None) -> Selection:
    return await selector(embedded=Installed()).find(model, env, config or PLAIN)


async def chosen(model: str | None, env: Mapping[str, str], config: Config | None = None) -> Endpoint:
    return (await find(model, env, config)).endpoint


@pytest.mark.parametrize(
    ("model", "env", "config", "name", "base_url"),
    [
        (None, KEY, None, f"openai/{OPENAI.large}", OPENAI.base_url),
        ("openai/a", KEY, None, "openai/a", OPENAI.base_url),
        (None, {**KEY, "KEDGE_MODEL": "openai/b"}, None, "openai/b", OPENAI.base_url),
        ("openai/a", {**KEY, "KEDGE_MODEL": "openai/b"}, None, "openai/a", OPENAI.base_url),
        ("openai/maker/model:tag", LOCAL, None, "openai/maker/model:tag", "http://127.0.0.1:1/v1"),
        (None, LOCAL, None, "openai", "http://127.0.0.1:1/v1"),
        (None, {**LOCAL, **BOTH_KEYS}, None, "openai", "http://127.0.0.1:1/v1"),
        (None, {**KEY, "KEDGE_MODEL": " "}, None, f"openai/{OPENAI.large}", OPENAI.base_url),
        (None, {"ANTHROPIC_API_KEY": "sk-2"}, None, f"anthropic/{ANTHROPIC.large}", ANTHROPIC.base_url),
        (None, BOTH_KEYS, None, f"openai/{OPENAI.large}", OPENAI.base_url),
        (None, {**KEY, "ANTHROPIC_BASE_URL": "http://h"}, None, f"anthropic/{ANTHROPIC.large}", "http://h"),
        (None, {**KEY, "KEDGE_MODEL": "anthropic"}, None, f"anthropic/{ANTHROPIC.large}", ANTHROPIC.base_url),
        (None, KEY, CONFIGURED, "anthropic/x", ANTHROPIC.base_url),
        (None, {**KEY, "KEDGE_MODEL": "openai/b"}, CONFIGURED, "openai/b", OPENAI.base_url),
        ("mine/m", {}, CONFIGURED, "mine/m", "http://mine.test/v1"),
        (None, {}, Config(providers={"mine": MINE}), "mine", "http://mine.test/v1"),
        (None, KEY, Config(providers={"mine": MINE}), f"openai/{OPENAI.large}", OPENAI.base_url),
        ("ollama/qwen3:8b", {}, None, "ollama/qwen3:8b", "http://127.0.0.1:11434/v1"),
        ("ollama/q", {"OLLAMA_BASE_URL": "http://gpu.test/v1"}, None, "ollama/q", "http://gpu.test/v1"),
    ],
)
async def test_a_run_gets_what_is_configured(
    model: str | None, env: dict[str, str], config: Config | None, name: str, base_url: str
) -> None:
    endpoint = await chosen(model, env, config)
    assert (endpoint.name, endpoint.base_url) == (name, base_url)
    assert endpoint.api_key is None  # looked up by whoever sends it


@pytest.mark.parametrize(
    ("model", "env", "config", "reason"),
    [
        ("openai/a", KEY, None, "openai/a: the run names it"),
        (None, {"KEDGE_MODEL": "openai/a"}, None, "openai/a: KEDGE_MODEL names it"),
        (None, {}, CONFIGURED, "anthropic/x: the configuration names it"),
        (None, KEY, None, f"openai/{OPENAI.large}: OPENAI_API_KEY is set"),
        (None, LOCAL, None, "openai: OPENAI_BASE_URL is set"),
        (None, {}, Config(providers={"mine": MINE}), "mine: the configuration has providers.mine"),
        ("local/some.gguf", {}, None, "local/some.gguf: the run names it"),
    ],
)
async def test_the_reason_is_one_sentence(
    model: str | None, env: dict[str, str], config: Config | None, reason: str
) -> None:
    assert (await find(model, env, config)).description == reason


async def test_of_two_keys_the_reason_says_which_came_first_and_how_to_choose() -> None:
    why = (await find(None, BOTH_KEYS)).reason
    assert "OPENAI_API_KEY is set" in why
    assert "ANTHROPIC_API_KEY" in why
    assert "KEDGE_MODEL" in why


async def test_with_nothing_set_up_the_model_is_found_on_this_machine() -> None:
    for env in ({}, {"OPENAI_API_KEY": " ", "OPENAI_BASE_URL": ""}, {"OLLAMA_API_KEY": "of the cloud, not of here"}):
        found = await find(None, env)
        assert (found.endpoint.name, found.origin, found.needs_key) == ("local/starter", "machine", False)


@pytest.mark.parametrize(
    ("model", "env", "needs_key"),
    [
        ("openai/a", {}, True),
        ("anthropic/a", {}, True),
        ("openai/a", LOCAL, False),
        ("ollama/a", {}, False),
        ("mine/a", {}, False),
    ],
)
async def test_only_a_vendors_own_address_cannot_do_without_a_key(
    model: str, env: dict[str, str], needs_key: bool
) -> None:
    assert (await find(model, env, CONFIGURED)).needs_key == needs_key


async def test_what_is_configured_for_a_provider_and_known_of_a_model_goes_along() -> None:
    settings = ProviderConfig(
        wire="anthropic",
        base_url="http://gate.test",
        headers={"X-Team": "a"},
        extra_body={"priority": 1},
        models={"claude-sonnet-4-5": ModelConfig(max_output_tokens=9)},
    )
    endpoint = await chosen("gate/claude-sonnet-4-5", {}, Config(providers={"gate": settings}))
    assert (endpoint.wire, endpoint.headers, endpoint.extra_body) == ("anthropic", {"X-Team": "a"}, {"priority": 1})
    assert (endpoint.info.context_window, endpoint.info.max_output_tokens) == (200_000, 9)
    assert (await chosen("gate", {}, Config(providers={"gate": settings}))).model == "claude-sonnet-4-5"


@pytest.mark.parametrize(
    ("env", "settings", "wire"),
    [
        (KEY, None, "responses"),
        ({**KEY, "OPENAI_BASE_URL": f"{OPENAI.base_url}/"}, None, "responses"),
        (KEY, ProviderConfig(wire="chat"), "chat"),
        (LOCAL, None, "chat"),
        ({}, ProviderConfig(base_url="http://127.0.0.1:1/v1"), "chat"),
        (LOCAL, ProviderConfig(wire="responses"), "responses"),
    ],
)
async def test_openai_speaks_its_own_wire_at_its_own_address_and_the_common_one_elsewhere(
    env: dict[str, str], settings: ProviderConfig | None, wire: str
) -> None:
    config = Config(providers={"openai": settings} if settings else {})
    assert (await chosen("openai/a", env, config)).wire == wire


AZURE = {"AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com/", "AZURE_OPENAI_API_KEY": "k"}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://mine.openai.azure.com", "https://mine.openai.azure.com/openai/v1"),
        ("https://mine.openai.azure.com/openai/", "https://mine.openai.azure.com/openai/v1"),
        ("https://mine.openai.azure.com/openai/v1/", "https://mine.openai.azure.com/openai/v1"),
        ("https://gate.test/some/where", "https://gate.test/some/where"),
    ],
)
async def test_a_deployment_of_azure_is_named_and_found_at_the_endpoint(url: str, address: str) -> None:
    endpoint = await chosen("azure/my-gpt", {"AZURE_OPENAI_ENDPOINT": url})
    assert (endpoint.base_url, endpoint.wire, endpoint.key_header) == (address, "responses", "api-key")
    configured = Config(providers={"azure": ProviderConfig(base_url=url)})
    assert (await chosen("azure/my-gpt", {}, configured)).base_url == address


async def test_azure_is_taken_without_a_name_only_where_the_configuration_has_one() -> None:
    assert (await chosen(None, {**AZURE, **KEY})).provider == "openai"
    assert (await chosen(None, AZURE)).provider == "local"
    models = ProviderConfig(models={"my-gpt": ModelConfig()})
    assert (await chosen(None, AZURE, Config(providers={"azure": models}))).name == "azure/my-gpt"


@pytest.mark.parametrize(
    ("model", "env", "hint"),
    [
        ("a", KEY, "openai/a"),
        ("claude-sonnet-4-5", KEY, "anthropic/claude-sonnet-4-5"),
        ("openai/", KEY, "PROVIDER/MODEL"),
        ("nobody/a", KEY, "nobody"),
        ("opnai/a", KEY, "'openai'"),
        ("azure/a", {}, "AZURE_OPENAI_ENDPOINT"),
        ("azure", AZURE, "azure/NAME"),
        (None, {**KEY, "KEDGE_MODEL": "maker/a"}, "openai/maker/a"),
        (None, {"OPENAI_BASE_URL": "localhost:1234"}, "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "ftp://host/v1"}, "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://host:port/v1"}, "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://[::1/v1"}, "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://me:secret@host/v1"}, "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://:secret@host/v1"}, "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://host/v1?key=secret"}, "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://host/v1\nsecret"}, "OPENAI_BASE_URL"),
        (None, {"ANTHROPIC_BASE_URL": "http://me:secret@host"}, "ANTHROPIC_API_KEY"),
    ],
)
async def test_what_is_wrong_is_said_in_one_line(model: str | None, env: dict[str, str], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await find(model, env)
    assert caught.value.code == "bad_config"
    assert hint in caught.value.text
    assert "secret" not in caught.value.text
    assert "\n" not in caught.value.text


@pytest.mark.parametrize(
    ("large", "env", "config", "small"),
    [
        ("openai/gpt-5", KEY, None, f"openai/{OPENAI.small}"),
        ("anthropic/claude-opus-5", {}, None, f"anthropic/{ANTHROPIC.small}"),
        ("openai/a", LOCAL, None, None),
        ("ollama/a", {}, None, None),
        ("mine/a", {}, CONFIGURED, None),
        ("openai/a", LOCAL, Config(small_model="anthropic/tiny"), "anthropic/tiny"),
        ("openai/a", {"KEDGE_SMALL_MODEL": "openai/s"}, Config(small_model="anthropic/tiny"), "openai/s"),
    ],
)
async def test_the_small_model_is_the_configured_one_or_the_vendors(
    large: str, env: dict[str, str], config: Config | None, small: str | None
) -> None:
    found = find_small(await chosen(large, env, config), env, config or PLAIN)
    assert (found and found.endpoint.name) == small


async def test_a_selected_model_has_its_api_key_and_does_not_show_it() -> None:
    selected = await select(None, {"ANTHROPIC_API_KEY": PLANTED})
    assert (selected.endpoint.name, selected.endpoint.api_key) == (f"anthropic/{ANTHROPIC.large}", PLANTED)
    assert PLANTED not in repr(selected) + str(selected) + repr([selected])


@pytest.mark.parametrize(
    ("model", "env", "code", "hint"),
    [
        ("openai/a", {}, "bad_config", "OPENAI_API_KEY"),
        ("anthropic/a", {"OPENAI_API_KEY": "k"}, "bad_config", "ANTHROPIC_API_KEY"),
        (None, {"OPENAI_API_KEY": "secret\nwith a line"}, "bad_config", "OPENAI_API_KEY"),
        (None, {"OPENAI_API_KEY": "secret\N{EN DASH}dash"}, "bad_config", "OPENAI_API_KEY"),
        (None, {}, "no_model", "kedge login"),
        ("local/starter", {}, "no_model", "kedge login"),
    ],
)
async def test_a_missing_key_or_model_is_one_line_that_says_what_to_do(
    model: str | None, env: dict[str, str], code: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        await select(model, env)
    assert caught.value.code == code
    assert hint in caught.value.text
    assert "secret" not in caught.value.text
    assert "\n" not in caught.value.text


async def test_a_server_of_ones_own_needs_no_key() -> None:
    assert (await select("openai/m", {"OPENAI_BASE_URL": "http://h/v1"})).endpoint.api_key is None


async def test_a_stored_key_comes_before_this_machine_and_after_the_environment(tmp_path: Path) -> None:
    path = tmp_path / CREDENTIALS_FILE
    path.write_text(json.dumps({"providers": {"anthropic": {"api_key": PLANTED}}}))
    path.chmod(0o600)
    where = selector(path, Installed())
    selected = await select(None, ENV, where=where)
    assert (selected.endpoint.provider, selected.endpoint.api_key) == ("anthropic", PLANTED)
    assert selected.origin == "default"
    assert (await select(None, {"OPENAI_API_KEY": "k"}, where=where)).endpoint.provider == "openai"


async def test_a_model_server_that_answers_comes_before_the_starter(model_server: ModelServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = LocalServer("lmstudio", "LM Studio", taken.getsockname()[1])
    model_server.models = ("qwen3:8b", "other")
    server = LocalServer("ollama", "Ollama", model_server.port)
    embedded = Installed()
    where = selector(None, embedded, (nobody, server))
    selected = await select(None, {}, where=where)
    assert (selected.endpoint.name, selected.endpoint.base_url) == ("ollama/qwen3:8b", server.base_url)
    assert selected.origin == "machine"
    assert embedded.asked == []
    named = await select("local/a.gguf", {}, where=where)
    assert (named.endpoint.name, named.origin) == ("local/a.gguf", "named")
    assert embedded.asked == [("a.gguf", DIRECTORY)]


async def test_without_a_server_it_is_the_starter() -> None:
    embedded = Installed()
    selected = await select(None, {}, where=selector(None, embedded))
    assert embedded.asked == [("starter", DIRECTORY)]
    assert (selected.endpoint.base_url, selected.origin) == ("local://x/v1", "machine")
    with pytest.raises(ConfigError) as caught:
        await select(None, {}, where=selector(None, Installed(is_available=False)))
    assert caught.value.code == "no_model"


async def test_the_small_model_has_a_key_of_its_own() -> None:
    env = {"ANTHROPIC_API_KEY": PLANTED, "OPENAI_API_KEY": "k"}
    large = await select("openai/gpt-5", env)
    small = await selector().select_small(large, env, Config(small_model="anthropic/tiny"))
    assert small is not None
    assert (small.endpoint.name, small.endpoint.api_key) == ("anthropic/tiny", PLANTED)


async def test_without_a_small_model_it_is_the_large_one_unless_that_is_tiny() -> None:
    env = {"OPENAI_BASE_URL": "http://h/v1"}
    large = await select("openai/m", env)
    assert await selector().select_small(large, env, PLAIN) is large
    tiny = await select(None, ENV, where=selector(None, Installed()))
    assert await selector().select_small(tiny, ENV, PLAIN) is None


async def test_a_refused_key_is_renewed_if_there_is_another(tmp_path: Path) -> None:
    printed = tmp_path / "key"
    printed.write_text("old-key")
    config = Config(providers={"openai": ProviderConfig(api_key_command=f"cat '{printed}'")})
    where = selector()
    endpoint = (await select("openai/m", ENV, config, where)).endpoint
    assert endpoint.api_key == "old-key"
    printed.write_text("new-key")
    renewed = await where.renew_key(endpoint, ENV, config)
    assert renewed is not None
    assert (renewed.name, renewed.api_key) == ("openai/m", "new-key")
    passed_over = await where.renew_key(endpoint, {**ENV, "OPENAI_API_KEY": "old-key"}, config)
    assert passed_over is not None
    assert passed_over.api_key == "new-key"
    assert await where.renew_key(endpoint, {**ENV, "OPENAI_API_KEY": "old-key"}, PLAIN) is None
    embedded = (await select("local/starter", ENV, where=selector(None, Installed()))).endpoint
    assert await where.renew_key(embedded, ENV, PLAIN) is None

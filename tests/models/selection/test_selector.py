"""Which model a run uses, and the sentence that says why."""

from __future__ import annotations

import pytest

from kedge.config.schema import Config, ModelConfig, ProviderConfig
from kedge.models.errors import ConfigError
from kedge.models.providers import BUILT_IN
from kedge.models.selection.selector import resolve, resolve_small
from kedge.models.values import Endpoint

OPENAI, ANTHROPIC, *_ = BUILT_IN
KEY = {"OPENAI_API_KEY": "sk-1"}
BOTH_KEYS = {**KEY, "ANTHROPIC_API_KEY": "sk-2"}
LOCAL = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1/"}
MINE = ProviderConfig(base_url="http://mine.test/v1", api_key="sk-3")
CONFIGURED = Config(model="anthropic/x", providers={"mine": MINE})


def chosen(model: str | None, env: dict[str, str], config: Config | None = None) -> Endpoint:
    choice = resolve(model, env, config)
    assert choice.endpoint is not None
    assert choice.why.startswith(choice.endpoint.name + ": ")
    return choice.endpoint


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
def test_a_run_gets_what_is_configured(
    model: str | None, env: dict[str, str], config: Config | None, name: str, base_url: str
) -> None:
    endpoint = chosen(model, env, config)
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
def test_the_reason_is_one_sentence(model: str | None, env: dict[str, str], config: Config | None, reason: str) -> None:
    assert resolve(model, env, config).why == reason


def test_of_two_keys_the_reason_says_which_came_first_and_how_to_choose() -> None:
    why = resolve(None, BOTH_KEYS).why
    assert "OPENAI_API_KEY is set" in why
    assert "ANTHROPIC_API_KEY" in why
    assert "KEDGE_MODEL" in why


def test_with_nothing_configured_the_machine_itself_is_left() -> None:
    for env in ({}, {"OPENAI_API_KEY": " ", "OPENAI_BASE_URL": ""}, {"OLLAMA_API_KEY": "of the cloud, not of here"}):
        choice = resolve(None, env)
        assert (choice.endpoint, choice.local, choice.name) == (None, "", "local")


@pytest.mark.parametrize(("model", "name"), [("local/a/b.gguf", "a/b.gguf"), ("local/starter", "starter")])
def test_an_embedded_model_is_left_to_those_who_run_it(model: str, name: str) -> None:
    choice = resolve(model, KEY)
    assert (choice.endpoint, choice.local, choice.name, choice.needs_key) == (None, name, model, False)


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
def test_only_a_vendors_own_address_cannot_do_without_a_key(model: str, env: dict[str, str], needs_key: bool) -> None:
    assert resolve(model, env, CONFIGURED).needs_key == needs_key


def test_what_is_configured_for_a_provider_and_known_of_a_model_goes_along() -> None:
    settings = ProviderConfig(
        wire="anthropic",
        base_url="http://gate.test",
        headers={"X-Team": "a"},
        extra_body={"priority": 1},
        models={"claude-sonnet-4-5": ModelConfig(max_output_tokens=9)},
    )
    endpoint = chosen("gate/claude-sonnet-4-5", {}, Config(providers={"gate": settings}))
    assert (endpoint.wire, endpoint.headers, endpoint.extra_body) == ("anthropic", {"X-Team": "a"}, {"priority": 1})
    assert (endpoint.info.context_window, endpoint.info.max_output_tokens) == (200_000, 9)
    assert chosen("gate", {}, Config(providers={"gate": settings})).model == "claude-sonnet-4-5"


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
def test_openai_speaks_its_own_wire_at_its_own_address_and_the_common_one_elsewhere(
    env: dict[str, str], settings: ProviderConfig | None, wire: str
) -> None:
    config = Config(providers={"openai": settings} if settings else {})
    assert chosen("openai/a", env, config).wire == wire


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
def test_a_deployment_of_azure_is_named_and_found_at_the_endpoint(url: str, address: str) -> None:
    endpoint = chosen("azure/my-gpt", {"AZURE_OPENAI_ENDPOINT": url})
    assert (endpoint.base_url, endpoint.wire, endpoint.key_header) == (address, "responses", "api-key")
    configured = Config(providers={"azure": ProviderConfig(base_url=url)})
    assert chosen("azure/my-gpt", {}, configured).base_url == address


def test_azure_is_taken_without_a_name_only_where_the_configuration_has_one() -> None:
    assert chosen(None, {**AZURE, **KEY}).provider == "openai"
    assert resolve(None, AZURE).endpoint is None
    models = ProviderConfig(models={"my-gpt": ModelConfig()})
    assert chosen(None, AZURE, Config(providers={"azure": models})).name == "azure/my-gpt"


@pytest.mark.parametrize(
    ("model", "env", "hint"),
    [
        ("a", KEY, "openai/a"),
        ("claude-sonnet-4-5", KEY, "anthropic/claude-sonnet-4-5"),
        ("openai/", KEY, "PROVIDER/MODEL"),
        ("nobody/a", KEY, "nobody"),
        ("opnai/a", KEY, "did you mean 'openai'?"),
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
def test_what_is_wrong_is_said_in_one_line(model: str | None, env: dict[str, str], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(model, env)
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
def test_the_small_model_is_the_configured_one_or_the_vendors(
    large: str, env: dict[str, str], config: Config | None, small: str | None
) -> None:
    choice = resolve_small(chosen(large, env, config), env, config)
    assert (choice and choice.name) == small

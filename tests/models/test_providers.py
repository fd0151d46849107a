"""Providers are data: built in, or added and changed by configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kedge.config.schema import Config, ProviderConfig
from kedge.models.errors import ConfigError
from kedge.models.provider_registry import configured_providers, require_provider
from kedge.models.providers import BUILT_IN, Provider, check_base_url, find_env_key, resolve_base_url

SECRET = "planted-key-4711"
PAGE = Path(__file__).parents[2] / "docs" / "providers.md"


def test_the_page_has_a_row_for_each_with_its_address_and_its_variables() -> None:
    rows = {row[1]: row[0] for row in re.finditer(r"^\| `(\w+)` \|.*$", PAGE.read_text(), re.MULTILINE)}
    for provider in BUILT_IN:
        assert provider.url_variable in rows[provider.id]
        assert provider.base_url is None or f"`{provider.base_url}`" in rows[provider.id]
        assert provider.is_local or provider.key_variable in rows[provider.id]


def configured(**settings: ProviderConfig) -> dict[str, Provider]:
    return configured_providers(Config(providers=settings))


def test_the_vendors_variables_are_the_ones_that_everybody_knows() -> None:
    by_id = {provider.id: provider for provider in BUILT_IN}
    assert by_id["openai"].key_variable == "OPENAI_API_KEY"
    assert by_id["openai"].url_variable == "OPENAI_BASE_URL"
    assert by_id["anthropic"].key_variable == "ANTHROPIC_API_KEY"
    assert by_id["anthropic"].url_variable == "ANTHROPIC_BASE_URL"
    assert by_id["anthropic"].wire == "anthropic"
    assert by_id["gemini"].key_variable == "GEMINI_API_KEY"
    assert by_id["gemini"].url_variable == "GEMINI_BASE_URL"
    assert by_id["gemini"].wire == "gemini"


def test_every_vendor_is_reached_over_tls_and_every_local_server_on_this_machine() -> None:
    for provider in BUILT_IN:
        if provider.base_url is not None:
            assert check_base_url(provider.base_url, "x", provider) == provider.base_url
            assert provider.base_url.startswith("http://127.0.0.1:" if provider.is_local else "https://")


@pytest.mark.parametrize(
    ("provider", "variables"),
    [
        ("openrouter", "OPENROUTER_API_KEY"),
        ("groq", "GROQ_API_KEY"),
        ("deepseek", "DEEPSEEK_API_KEY"),
        ("mistral", "MISTRAL_API_KEY"),
        ("xai", "XAI_API_KEY"),
        ("qwen", "DASHSCOPE_API_KEY"),
    ],
)
def test_a_vendors_key_is_looked_for_under_the_vendors_own_name(provider: str, variables: str) -> None:
    known = configured_providers(Config())[provider]
    assert known.key_variable == variables
    assert find_env_key(known, {variables: " k "}) == (variables, "k")
    assert find_env_key(known, {variables: " "}) is None


def test_a_provider_of_ones_own_has_variables_by_its_name() -> None:
    mine = Provider(id="my-proxy.2")
    assert (mine.key_variable, mine.url_variable) == ("MY_PROXY_2_API_KEY", "MY_PROXY_2_BASE_URL")


def test_configuration_adds_a_provider_and_changes_a_known_one() -> None:
    known = configured(
        mine=ProviderConfig(base_url="http://127.0.0.1:9/v1"), openai=ProviderConfig(headers={"X-Team": "a"})
    )
    assert (known["mine"].wire, resolve_base_url(known["mine"], {})) == ("chat", "http://127.0.0.1:9/v1")
    assert known["openai"].config.headers == {"X-Team": "a"}
    assert resolve_base_url(known["openai"], {}) == "https://api.openai.com/v1"
    assert configured(mine=ProviderConfig(wire="anthropic", base_url="http://h"))["mine"].wire == "anthropic"


def test_a_configured_address_wins_over_the_variable() -> None:
    env = {"OPENAI_BASE_URL": "http://variable.test/v1/"}
    assert resolve_base_url(configured_providers(Config())["openai"], env) == "http://variable.test/v1"
    assert (
        resolve_base_url(configured(openai=ProviderConfig(base_url="http://file.test"))["openai"], env)
        == "http://file.test"
    )


@pytest.mark.parametrize(
    "url", ["http://gate.test", "http://gate.test/", "http://gate.test/v1", "http://gate.test/v1/"]
)
def test_anthropics_address_may_be_written_with_its_version(url: str) -> None:
    assert (
        resolve_base_url(configured_providers(Config())["anthropic"], {"ANTHROPIC_BASE_URL": url}) == "http://gate.test"
    )


@pytest.mark.parametrize("url", ["http://gate.test", "http://gate.test/", "http://gate.test/v1beta/"])
def test_googles_address_may_be_written_with_its_version(url: str) -> None:
    assert resolve_base_url(configured_providers(Config())["gemini"], {"GEMINI_BASE_URL": url}) == "http://gate.test"


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({"GEMINI_API_KEY": "a", "GOOGLE_API_KEY": "b"}, ("GEMINI_API_KEY", "a")),
        ({"GEMINI_API_KEY": " ", "GOOGLE_API_KEY": "b"}, ("GOOGLE_API_KEY", "b")),
        ({}, None),
    ],
)
def test_googles_key_may_be_in_one_of_two_variables(env: dict[str, str], found: tuple[str, str] | None) -> None:
    assert find_env_key(configured_providers(Config())["gemini"], env) == found


def test_a_provider_without_an_address_says_which_key_to_set() -> None:
    with pytest.raises(ConfigError, match=r"set providers\.mine\.base_url"):
        resolve_base_url(configured(mine=ProviderConfig(api_key=SECRET))["mine"], {})


def test_a_bad_address_names_the_key_of_the_configuration_and_repeats_nothing() -> None:
    provider = configured(mine=ProviderConfig(base_url=f"http://me:{SECRET}@host/v1"))["mine"]
    with pytest.raises(ConfigError) as caught:
        resolve_base_url(provider, {})
    assert "providers.mine.base_url" in caught.value.text
    assert "MINE_API_KEY" in caught.value.text
    assert SECRET not in caught.value.text


def test_an_unknown_provider_is_answered_with_the_nearest_and_all_known_ones() -> None:
    config = Config(providers={"mine": ProviderConfig(base_url="http://h")})
    with pytest.raises(ConfigError) as caught:
        require_provider("antropic", config, "antropic/claude")
    assert "Did you mean 'anthropic'?" in caught.value.text
    for name in (*configured_providers(config), "local"):
        assert name in caught.value.text
    with pytest.raises(ConfigError) as caught:
        require_provider("zzz", config, "zzz/model")
    assert "Did you mean" not in caught.value.text
    assert "openai/zzz/model" in caught.value.text


def test_a_key_in_the_configuration_is_not_shown_by_a_provider() -> None:
    provider = configured(mine=ProviderConfig(api_key=SECRET, headers={"X-Key": SECRET}))["mine"]
    assert SECRET not in repr(provider) + str(provider) + repr([provider])

"""A run's model, ready to be called: with its key, or found on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kedge.config.schema import Config, ProviderConfig
from kedge.models.choose import Chooser, Chosen
from kedge.models.errors import ConfigError
from kedge.models.keys.credentials import CREDENTIALS_FILE, Credentials
from kedge.models.providers import BUILT_IN
from kedge.models.values import Endpoint, ModelInfo

OPENAI, ANTHROPIC, *_ = BUILT_IN
KEY = "planted.key.0123456789"
ENV = {"PATH": os.environ["PATH"]}
PLAIN = Config()


async def machine(name: str, /) -> Chosen:
    """Has one tiny model."""
    endpoint = Endpoint(
        provider="local", model=name or "starter", base_url="http://local", info=ModelInfo(is_tiny=True)
    )
    return Chosen(endpoint=endpoint, why=f"{endpoint.name}: it is here")


def chooser(path: Path | None = None) -> Chooser:
    return Chooser(Credentials(path))


async def test_a_chosen_model_comes_with_its_key_and_does_not_show_it() -> None:
    chosen = await chooser().large(None, {"ANTHROPIC_API_KEY": KEY}, PLAIN)
    assert (chosen.endpoint.name, chosen.endpoint.api_key) == (f"anthropic/{ANTHROPIC.large}", KEY)
    assert chosen.why == f"anthropic/{ANTHROPIC.large}: ANTHROPIC_API_KEY is set"
    assert KEY not in repr(chosen) + str(chosen) + repr([chosen])


@pytest.mark.parametrize(
    ("model", "env", "code", "hint"),
    [
        ("openai/a", {}, "bad_config", "openai/a needs a key: set OPENAI_API_KEY"),
        ("anthropic/a", {"OPENAI_API_KEY": "k"}, "bad_config", "set ANTHROPIC_API_KEY"),
        (None, {"OPENAI_API_KEY": "secret\nwith a line"}, "bad_config", "OPENAI_API_KEY holds characters"),
        (None, {"OPENAI_API_KEY": "secret\N{EN DASH}dash"}, "bad_config", "OPENAI_API_KEY holds characters"),
        (None, {}, "no_model", "run kedge login"),
        ("local/starter", {}, "no_model", "OPENAI_BASE_URL"),
    ],
)
async def test_what_is_missing_is_said_in_one_line(
    model: str | None, env: dict[str, str], code: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        await Chooser(Credentials()).large(model, env, PLAIN)
    assert caught.value.code == code
    assert hint in caught.value.text
    assert "secret" not in caught.value.text
    assert "\n" not in caught.value.text


async def test_a_server_of_ones_own_needs_no_key() -> None:
    chosen = await chooser().large("openai/m", {"OPENAI_BASE_URL": "http://h/v1"}, PLAIN)
    assert chosen.endpoint.api_key is None


async def test_a_stored_key_comes_before_what_the_machine_has_and_after_the_environment(tmp_path: Path) -> None:
    path = tmp_path / CREDENTIALS_FILE
    path.write_text(json.dumps({"providers": {"anthropic": {"api_key": KEY}}}))
    path.chmod(0o600)
    chosen = await chooser(path).large(None, ENV, PLAIN, machine)
    assert (chosen.endpoint.provider, chosen.endpoint.api_key) == ("anthropic", KEY)
    assert "its key is stored" in chosen.why
    assert (await chooser(path).large(None, {"OPENAI_API_KEY": "k"}, PLAIN)).endpoint.provider == "openai"


async def test_with_nothing_configured_it_is_what_the_machine_has() -> None:
    assert (await chooser().large(None, ENV, PLAIN, machine)).endpoint.name == "local/starter"
    named = await chooser().large("local/a.gguf", {"OPENAI_API_KEY": "k"}, PLAIN, machine)
    assert named.endpoint.name == "local/a.gguf"


async def test_the_small_model_has_a_key_of_its_own() -> None:
    env = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": "k"}
    large = await chooser().large("openai/gpt-5", env, PLAIN)
    small = await chooser().small(large, env, Config(small_model="anthropic/tiny"))
    assert small is not None
    assert (small.endpoint.name, small.endpoint.api_key) == ("anthropic/tiny", KEY)


async def test_without_a_small_model_the_large_one_does_it_unless_it_is_tiny() -> None:
    large = await chooser().large("openai/m", {"OPENAI_BASE_URL": "http://h/v1"}, PLAIN)
    assert await chooser().small(large, {"OPENAI_BASE_URL": "http://h/v1"}, PLAIN) is large
    tiny = await chooser().large(None, ENV, PLAIN, machine)
    assert await chooser().small(tiny, ENV, PLAIN) is None


async def test_a_refused_key_is_renewed_where_there_is_another(tmp_path: Path) -> None:
    printed = tmp_path / "key"
    printed.write_text("old-key")
    config = Config(providers={"openai": ProviderConfig(api_key_command=f"cat '{printed}'")})
    choose = chooser()
    chosen = await choose.large("openai/m", ENV, config)
    assert chosen.endpoint.api_key == "old-key"
    printed.write_text("new-key")
    renewed = await choose.renewed(chosen.endpoint, ENV, config)
    assert renewed is not None
    assert (renewed.name, renewed.api_key) == ("openai/m", "new-key")
    passed_over = await choose.renewed(chosen.endpoint, {**ENV, "OPENAI_API_KEY": "old-key"}, config)
    assert passed_over is not None
    assert passed_over.api_key == "new-key"
    assert await choose.renewed(chosen.endpoint, {**ENV, "OPENAI_API_KEY": "old-key"}, PLAIN) is None


async def test_the_embedded_model_has_no_key_to_renew() -> None:
    local = await chooser().large("local/starter", ENV, PLAIN, machine)
    assert await chooser().renewed(local.endpoint, ENV, PLAIN) is None

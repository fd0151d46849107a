"""What can be used now, and for the rest what to do: by key, by login, by a server that answers, inside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest

from kedge.config.schema import Config, ModelConfig, ProviderConfig
from kedge.models.client import ModelClient
from kedge.models.embedded.models import EmbeddedModels
from kedge.models.keys.credentials import CREDENTIALS_FILE, Credentials
from kedge.models.providers import BUILT_IN
from kedge.models.selection.listing import Listing
from kedge.models.selection.selector import LocalServer, LocalServers, ModelSelector
from kedge.protocol.api import Offered, OfferedProvider
from kedge.protocol.environment import WITHHELD
from tests.support.model_server import ModelServer

LIMIT_S = 30.0
DEAD = "http://127.0.0.1:9/v1"  # nobody listens on the discard port
# Whatever runs on the machine of whoever runs the tests, the local servers of these tests are elsewhere.
NOBODY = {f"{each.id.upper()}_BASE_URL": DEAD for each in BUILT_IN if each.is_local}


class Inside:
    def __init__(self, *, is_there: bool) -> None:
        self._is_there = is_there

    def is_available(self) -> bool:
        return self._is_there


@pytest.fixture
async def models() -> AsyncGenerator[ModelClient]:
    async with asyncio.timeout(LIMIT_S):
        models = ModelClient()
        yield models
        await models.close()


def listing(
    models: ModelClient,
    data_dir: Path | None = None,
    *,
    has_inside: bool = False,
    servers: list[LocalServer] | None = None,
) -> Listing:
    credentials = Credentials(data_dir / CREDENTIALS_FILE if data_dir else None)
    embedded = cast("EmbeddedModels", Inside(is_there=has_inside))
    local = LocalServers(servers or [], timeout_s=10.0)
    return Listing(models, ModelSelector(credentials, embedded, local))


def of(offered: Offered, name: str) -> OfferedProvider:
    return next(each for each in offered.providers if each.id == name)


def names(provider: OfferedProvider) -> list[str]:
    return [model.name for model in provider.models]


async def test_a_key_makes_a_vendor_usable_and_others_say_which_variable_to_set(models: ModelClient) -> None:
    offered = await listing(models).list_all({**NOBODY, "GROQ_API_KEY": WITHHELD}, Config(model="groq"))
    groq = of(offered, "groq")
    assert (groq.usable, groq.why) == (True, "GROQ_API_KEY is set")
    assert (offered.model, offered.small_model) == ("groq/openai/gpt-oss-120b", "groq/openai/gpt-oss-20b")
    roles = {model.name: model.roles for model in groq.models if model.roles}
    assert roles == {offered.model: ["large"], offered.small_model: ["small"]}
    model = groq.models[0]
    assert (model.context_window, model.input_price, model.images, model.tools) == (131_072, 0.15, False, True)
    for name, variable in (("openai", "OPENAI_API_KEY"), ("qwen", "DASHSCOPE_API_KEY")):
        provider = of(offered, name)
        assert not provider.usable
        assert variable in provider.why
        assert provider.models, "what there would be is listed all the same"


async def test_a_login_and_the_configuration_count_and_no_command_is_run(models: ModelClient, tmp_path: Path) -> None:
    path = tmp_path / CREDENTIALS_FILE
    path.write_text(json.dumps({"version": 1, "providers": {"xai": {"api_key": "planted-key-of-xai"}}}))
    path.chmod(0o600)
    config = Config(
        providers={
            "mistral": ProviderConfig(api_key="planted-key"),
            "deepseek": ProviderConfig(api_key_command=f"touch {tmp_path}/was-run; echo planted"),
        }
    )
    offered = await listing(models, tmp_path).list_all(NOBODY, config)
    assert "providers.mistral.api_key" in of(offered, "mistral").why
    assert "providers.deepseek.api_key_command" in of(offered, "deepseek").why
    assert all(of(offered, name).usable for name in ("xai", "mistral", "deepseek"))
    assert "planted" not in str(offered)
    assert not (tmp_path / "was-run").exists()


async def test_stored_keys_that_cannot_be_read_are_told_to_who_would_need_one(
    models: ModelClient, tmp_path: Path
) -> None:
    path = tmp_path / CREDENTIALS_FILE
    path.write_text("{}")
    path.chmod(0o644)
    offered = await listing(models, tmp_path).list_all({**NOBODY, "XAI_API_KEY": WITHHELD}, Config(model="xai"))
    assert of(offered, "xai").usable
    assert "chmod 600" in of(offered, "groq").why
    assert not of(offered, "groq").usable


async def test_a_server_of_ones_own_is_asked_for_its_models(models: ModelClient, model_server: ModelServer) -> None:
    model_server.models = ("qwen3-coder", "nomic-embed-text", "llama")
    model_server.others["/api/ps"] = {"models": [{"name": "llama:latest", "context_length": 16_384}]}
    model_server.others["/api/show"] = {"parameters": "", "model_info": {}}
    env = {**NOBODY, "OLLAMA_BASE_URL": model_server.base_url}
    config = Config(providers={"ollama": ProviderConfig(models={"mine": ModelConfig(context_window=4096)})})
    ollama = of(await listing(models).list_all(env, config), "ollama")
    assert (ollama.usable, model_server.base_url in ollama.why) == (True, True)
    assert names(ollama) == ["ollama/mine", "ollama/qwen3-coder", "ollama/llama"]
    assert [model.source for model in ollama.models] == ["config", "server", "server"]
    assert [model.context_window for model in ollama.models] == [4096, None, 16_384]
    vllm = of(await listing(models).list_all(env, config), "vllm")
    assert (vllm.usable, DEAD in vllm.why) == (False, True)


async def test_an_address_in_the_place_of_a_vendors_has_its_own_models(
    models: ModelClient, model_server: ModelServer
) -> None:
    model_server.models = ("first", "second")
    env = {**NOBODY, "OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": WITHHELD}
    offered = await listing(models).list_all(env, Config())
    assert names(of(offered, "openai")) == ["openai/first", "openai/second"]
    assert (offered.model, offered.small_model) == ("openai/first", "openai/first")
    assert of(offered, "openai").models[0].roles == ["large", "small"]
    assert model_server.listings
    assert not [call for call in model_server.calls if WITHHELD in str(call.headers)]


async def test_a_key_that_the_configuration_takes_from_the_shell_is_not_guessed(
    models: ModelClient, model_server: ModelServer
) -> None:
    model_server.models, model_server.expired_key = ("first",), WITHHELD
    config = Config(providers={"mine": ProviderConfig(base_url=model_server.base_url, api_key=WITHHELD)})
    mine = of(await listing(models).list_all(NOBODY, config), "mine")
    assert (names(mine), mine.usable) == (["mine/first"], True)


async def test_servers_that_say_nothing_are_asked_all_at_once_and_not_waited_for(models: ModelClient) -> None:
    now = most = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await reader.read()
        now -= 1
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        offered = await listing(models).list_all(dict.fromkeys(NOBODY, url), Config())
        assert not of(offered, "ollama").usable
    assert most == len(NOBODY)


@pytest.mark.parametrize("has_inside", [True, False])
async def test_the_embedded_model_is_listed_and_usable_if_it_is_installed(
    models: ModelClient, has_inside: bool
) -> None:
    offered = await listing(models, has_inside=has_inside).list_all(NOBODY, Config())
    local = of(offered, "local")
    assert local.usable == has_inside
    assert names(local) == ["local/starter"]
    assert ("pip install" in local.why) != has_inside


async def test_a_mistake_in_an_address_is_told_where_it_belongs(models: ModelClient) -> None:
    env = {**NOBODY, "GROQ_BASE_URL": "groq", "ANTHROPIC_API_KEY": WITHHELD}
    offered = await listing(models).list_all(env, Config(model="anthropic"))
    assert not of(offered, "groq").usable
    assert of(offered, "groq").why.startswith("GROQ_BASE_URL")
    assert of(offered, "anthropic").usable
    assert not of(offered, "azure").usable

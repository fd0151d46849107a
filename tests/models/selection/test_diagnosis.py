"""What `kedge doctor` says of the model is what a run would meet; a key is shown to its provider alone (P16)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from kedge.config.files import ConfigPaths
from kedge.config.load import Loader
from kedge.models.client import ModelClient
from kedge.models.embedded.models import EmbeddedModels
from kedge.models.providers import BUILT_IN
from kedge.models.selection import diagnosis
from kedge.models.selection.diagnosis import Diagnosis, Finding
from kedge.models.selection.selector import LocalServers
from tests.support.model_door import Door
from tests.support.model_plan import AT_ONCE, Plan
from tests.support.model_server import HOST, ModelServer

RIGHT, WRONG = "right.planted.key.0001", "wrong.planted.key.0002"
NOBODY = f"http://{HOST}:1/v1"  # a port that no server has


@pytest.fixture
async def models() -> AsyncGenerator[ModelClient]:
    models = ModelClient()
    yield models
    await models.close()


class Doctor:
    """`config.toml` of the directory is the user's own configuration."""

    def __init__(self, directory: Path, models: ModelClient) -> None:
        self.directory = directory
        self._models = models

    async def __call__(self, env: Mapping[str, str], *, is_offline: bool = False) -> list[Finding]:
        paths = ConfigPaths(system=(), user=self.directory / "config.toml")
        config = Loader(paths).load(self.directory, env).config
        tried = Diagnosis(
            self.directory / "data", self.directory, env, config, models=self._models, servers=LocalServers(())
        )
        return [finding async for finding in tried.findings(is_offline=is_offline)]

    def configure(self, text: str) -> None:
        (self.directory / "config.toml").write_text(text)


@pytest.fixture
def doctor(tmp_path: Path, models: ModelClient) -> Doctor:
    return Doctor(tmp_path, models)


async def test_a_key_that_is_taken_is_said_to_be(doctor: Doctor, model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[RIGHT])
    env = {"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": RIGHT}
    model, key = await doctor(env)
    assert model[0] is key[0] is True
    assert all(each in model[1] for each in ("openai/…", model_server.base_url, "OPENAI_BASE_URL", "OPENAI_API_KEY"))
    assert RIGHT not in f"{model}{key}"


async def test_a_wrong_key_is_a_failure_that_says_where_it_comes_from(
    doctor: Doctor, model_server: ModelServer
) -> None:
    model_server.door = Door(accepted=[RIGHT])
    env = {"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": WRONG, "KEDGE_MODEL": "openai/some"}
    model, (is_fine, text) = await doctor(env)
    assert model[1].startswith("model openai/some at ")
    assert is_fine is False
    assert "OPENAI_API_KEY" in text
    assert WRONG not in text, "not even where the server repeats it"


async def test_a_stored_key_and_one_that_a_command_prints_are_tried(doctor: Doctor, model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[RIGHT])
    doctor.configure(
        f"model = 'mine/m'\n[providers.mine]\nbase_url = '{model_server.base_url}'\napi_key_command = 'echo {WRONG}'\n"
    )
    model, key = await doctor({"PATH": "/usr/bin:/bin"})
    assert "providers.mine.api_key_command" in model[1]
    assert key[0] is False
    data = doctor.directory / "data"
    data.mkdir()
    (data / "credentials.json").write_text(f'{{"version": 1, "providers": {{"mine": {{"api_key": "{RIGHT}"}}}}}}')
    (data / "credentials.json").chmod(0o600)
    model, key = await doctor({"PATH": "/usr/bin:/bin"})
    assert "api_key_command" not in model[1]
    assert key[0] is True


async def test_a_server_without_keys_is_asked_whether_it_is_there(doctor: Doctor, model_server: ModelServer) -> None:
    findings = await doctor({"OPENAI_BASE_URL": model_server.base_url, "KEDGE_MODEL": "openai/m"})
    assert [is_fine for is_fine, _ in findings] == [True, True]
    _, (is_fine, text) = await doctor({"OPENAI_BASE_URL": NOBODY})
    assert is_fine is False
    assert all(each in text for each in (f"{HOST}:1", "OPENAI_BASE_URL", "providers.openai"))


async def test_what_may_pass_by_itself_is_no_failure(doctor: Doctor, model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[RIGHT], lists_to_all=True)
    model_server.plan = Plan(status=503)
    _, (is_fine, _) = await doctor({"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": RIGHT})
    assert is_fine is None


async def test_a_server_that_is_silent_is_not_waited_for(
    doctor: Doctor, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_server.door = Door(accepted=[RIGHT], lists_to_all=True)
    model_server.plan = Plan(hang_after=AT_ONCE)
    monkeypatch.setattr(diagnosis, "CHECK_S", 0.5)
    async with asyncio.timeout(30):
        _, (is_fine, text) = await doctor({"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": RIGHT})
    assert is_fine is False
    assert "did not answer within 0.5 s" in text


async def test_offline_nobody_is_asked(doctor: Doctor, model_server: ModelServer) -> None:
    model_server.door = Door(accepted=[RIGHT])
    env = {"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": WRONG}
    assert [is_fine for is_fine, _ in await doctor(env, is_offline=True)] == [True, None]
    assert model_server.door.asked == []


async def test_a_model_whose_key_is_missing_is_a_failure_also_offline(doctor: Doctor) -> None:
    [(is_fine, text)] = await doctor({"KEDGE_MODEL": "anthropic/claude"}, is_offline=True)
    assert is_fine is False
    assert all(each in text for each in ("KEDGE_MODEL", "ANTHROPIC_API_KEY", "kedge login anthropic"))


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OPENAI_BASE_URL": "me:s3cret-word@host"}, "OPENAI_BASE_URL"),
        (
            {"OPENAI_BASE_URL": "http://me:s3cret-word@host/v1?key=s3cret-word"},
            "OPENAI_BASE_URL",
        ),
        ({"KEDGE_MODEL": "gpt-5"}, "openai/gpt-5"),
        ({"KEDGE_MODEL": "nobody/m"}, "nobody"),
    ],
)
async def test_what_cannot_be_chosen_is_told_as_a_run_tells_it(
    doctor: Doctor, variables: dict[str, str], said: str
) -> None:
    [(is_fine, text)] = await doctor(variables)
    assert is_fine is False
    assert said in text
    assert "s3cret-word" not in text


async def test_with_a_key_alone_it_is_the_model_of_the_vendor(doctor: Doctor) -> None:
    large = {provider.id: provider.large for provider in BUILT_IN}
    env = {"ANTHROPIC_API_KEY": "k"}
    model = await doctor(env, is_offline=True)
    assert model[0] == (True, f"model anthropic/{large['anthropic']} at Anthropic: ANTHROPIC_API_KEY is set")


async def test_the_starter_says_what_it_is_worth_and_when_it_comes(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedModels, "is_available", staticmethod(lambda: True))
    (is_fine, model), (_, fetched), (_, worth) = await doctor({})
    assert is_fine is True
    assert "local/starter" in model
    assert "92 MB" in fetched
    assert "kedge login" in worth


async def test_without_a_key_and_without_the_extra_it_says_all_ways_to_a_model(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedModels, "is_available", staticmethod(lambda: False))
    [(is_fine, text)] = await doctor({})
    assert is_fine is False
    assert all(each in text for each in ("kedge login", "OPENAI_API_KEY", "pip install 'kedge[local]'"))
    [(is_fine, text)] = await doctor({"KEDGE_MODEL": "local/starter"})
    assert (is_fine, text.count("pip install 'kedge[local]'")) == (False, 1)


async def test_a_file_that_is_none_is_a_failure(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedModels, "is_available", staticmethod(lambda: True))
    [(is_fine, text)] = await doctor({"KEDGE_MODEL": "local/mine.gguf"})
    assert (is_fine, "mine.gguf" in text) == (False, True)
    (doctor.directory / "mine.gguf").write_bytes(b"this is none")
    [(is_fine, text)] = await doctor({"KEDGE_MODEL": "local/mine.gguf"})
    assert (is_fine, "local/mine.gguf" in text) == (False, True)

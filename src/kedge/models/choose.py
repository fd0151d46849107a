"""A run's model, ready to be called: what `resolve` chose, with its key, or what this machine has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from kedge.config.schema import Config
from kedge.models.errors import ConfigError
from kedge.models.keys.credentials import Credentials
from kedge.models.providers import Provider, provider_of, providers
from kedge.models.selection.selector import Choice, of_provider, resolve, resolve_small
from kedge.models.values import Endpoint

NO_MODEL = (
    "no model is configured: run kedge login, or set a provider's key (OPENAI_API_KEY, ANTHROPIC_API_KEY, …: kedge"
    " models names them all), or OPENAI_BASE_URL for a compatible server"
)


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is one sentence for people: "openai/gpt-5: OPENAI_API_KEY is set"."""

    endpoint: Endpoint
    why: str
    is_found: bool = False  # nobody named it: it is what the environment, the configuration or the machine has


class Local(Protocol):
    """What this machine has: the embedded model called `name`; where that is empty, a server that answers, else the
    starter. Raises `ConfigError` with the line that says what to do."""

    async def __call__(self, name: str, /) -> Chosen: ...


async def nothing_local(name: str, /) -> Chosen:
    raise ConfigError("no_model", NO_MODEL)


class Chooser:
    """`env` and `config` are those of the run, and so is `local`: fetching a model is told in the run that waits."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def large(
        self, wanted: str | None, env: Mapping[str, str], config: Config, local: Local = nothing_local
    ) -> Chosen:
        """The model that does the work of a run that names `wanted`, or none."""
        return await self._ready(await self.choice(wanted, env, config), env, local)

    async def choice(self, wanted: str | None, env: Mapping[str, str], config: Config) -> Choice:
        """What `resolve` says, or what somebody logged in for; without an endpoint it is what this machine has."""
        choice = resolve(wanted, env, config)
        if choice.endpoint is None and not choice.local:
            choice = await self._of_stored_key(env, config) or choice
        return choice

    async def small(
        self, large: Chosen, env: Mapping[str, str], config: Config, local: Local = nothing_local
    ) -> Chosen | None:
        """The model for titles beside `large`, which may be the same; None where that one is too small for more."""
        choice = resolve_small(large.endpoint, env, config)
        if choice is not None:
            return await self._ready(choice, env, local)
        return None if large.endpoint.info.is_tiny else large

    async def renewed(
        self, endpoint: Endpoint, env: Mapping[str, str], config: Config, refused: Collection[str] = ()
    ) -> Endpoint | None:
        """The endpoint with another key, after its own was refused, as those `refused` before; None: there is none."""
        provider = provider_of(endpoint.provider, config)
        key = provider and await self._credentials.refreshed(provider, env, endpoint.api_key, refused)
        return msgspec.structs.replace(endpoint, api_key=key) if key else None

    async def current(
        self, endpoint: Endpoint, env: Mapping[str, str], config: Config, refused: Collection[str] = ()
    ) -> Endpoint:
        """The endpoint with the key that holds now: somebody may have logged in."""
        provider = provider_of(endpoint.provider, config)
        key = provider and await self._credentials.key(provider, env, refused)
        return msgspec.structs.replace(endpoint, api_key=key) if key else endpoint

    async def _of_stored_key(self, env: Mapping[str, str], config: Config) -> Choice | None:
        """In the order in which providers are known; those of packages come last, and first of all one that needs no
        model to be named."""
        stored = await self._credentials.stored()
        known = [name for name in providers(config) if name in stored]
        names = [*known, *(name for name in stored if name not in known)]
        found = [provider for name in names if (provider := _there(name, config)) is not None]
        first = next((provider for provider in found if provider.has_default), next(iter(found), None))
        return first and msgspec.structs.replace(of_provider(first, "its key is stored", env), is_found=True)

    async def _ready(self, choice: Choice, env: Mapping[str, str], local: Local) -> Chosen:
        if choice.endpoint is None or choice.provider is None:
            return await local(choice.local)
        key = await self._credentials.key(choice.provider, env)
        if key is None and choice.needs_key:
            name = choice.provider.id
            problem = (
                f"{choice.endpoint.name} needs a key: set {choice.provider.key_variable}, or run: kedge login {name}"
            )
            raise ConfigError("bad_config", problem)
        return Chosen(
            endpoint=msgspec.structs.replace(choice.endpoint, api_key=key), why=choice.why, is_found=choice.is_found
        )


def _there(name: str, config: Config) -> Provider | None:
    """The provider that somebody logged in at, if it is still there."""
    try:
        return provider_of(name, config)
    except ConfigError:  # of a package that is broken now
        return None

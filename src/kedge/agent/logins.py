"""Logins: an API key is checked with its provider, stored, and used from the next model call on. No more than the last
four characters of a key are ever shown (P16)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from kedge.config.schema import Config, Configure
from kedge.models.client import ModelClient
from kedge.models.errors import ConfigError, ModelError, Transient
from kedge.models.keys.check import check_key
from kedge.models.keys.credentials import Credentials, check_characters, last_four
from kedge.models.keys.stores import Entry
from kedge.models.provider_registry import add_packages, configured_providers, find_provider
from kedge.models.providers import SEARCH_PROVIDERS, Provider, find_env_key
from kedge.models.selection.selector import select_default_model
from kedge.protocol.api import Credential, CredentialList, LoginBody, LoginProvider, StoredCredential
from kedge.protocol.bounds import MAX_KEY_CHARS
from kedge.protocol.environment import WITHHELD
from kedge.protocol.errors import Invalid, NotFound, Unavailable

_NAME = re.compile(r"(?!sk[-_])[a-z][a-z0-9_.-]{0,23}")  # any other text may be a key pasted in the wrong place


class Logins:
    def __init__(
        self, credentials: Credentials, models: ModelClient, environ: Mapping[str, str], configure: Configure
    ) -> None:
        self._credentials = credentials
        self._models = models
        self._environ = environ
        self._configure = configure

    async def log_in(self, body: LoginBody, directory: Path) -> StoredCredential:
        """Check and store an API key. On any error, the key stored before stays."""
        env = self._environ if body.env is None else body.env
        config = await self._load_config(directory, env)
        provider = _require_provider(body.provider_id, config)
        key = _validate_key(body.api_key)
        if body.check and provider.id not in SEARCH_PROVIDERS:  # a check would be a search that costs
            url = {} if body.base_url is None else {provider.url_variable: body.base_url}
            await self._check(provider, key, {**env, **url})
        storage = config.credentials.store
        try:
            await self._credentials.store(provider.id, key, storage)
        except ConfigError as error:
            raise Invalid("bad_config", f"The key was not saved: {error.text}") from error
        return StoredCredential(provider_id=provider.id, stored_in=storage, last_four=last_four(key))

    async def log_out(self, provider_id: str) -> None:
        try:
            was_stored = await self._credentials.remove(provider_id)
        except ConfigError as error:
            raise Invalid("bad_config", error.text) from error
        if not was_stored:
            raise NotFound("login", provider_id if _NAME.fullmatch(provider_id) else "…")

    async def list_credentials(self, directory: Path, env: Mapping[str, str] | None = None) -> CredentialList:
        """Return the sources of API keys in the order of their precedence, with variables of the server's environment.

        `env` is the environment that the configuration refers to, if not the server's.
        """
        known = configured_providers(await self._load_config(directory, self._environ if env is None else env))
        known = {**await asyncio.to_thread(add_packages, known)}
        for name, provider in SEARCH_PROVIDERS.items():
            known.setdefault(name, provider)
        try:
            stored = await self._credentials.load_stored()
        except ConfigError as error:
            raise Invalid("bad_config", error.text) from error
        others = [Provider(id=name) for name in stored if name not in known]  # no longer configured, or elsewhere
        credentials = [each for provider in [*known.values(), *others] for each in self._list(provider, stored)]
        offered = [
            LoginProvider(
                provider_id=each.id,
                title=each.title or each.id,
                needs_key=not each.is_local,
                key_variable=each.key_variable,
                url_variable=each.url_variable,
            )
            for each in known.values()
        ]
        return CredentialList(credentials, offered)

    def _list(self, provider: Provider, stored: Mapping[str, Entry]) -> Iterator[Credential]:
        is_used = True
        for credential in self._list_sources(provider, stored.get(provider.id)):
            yield msgspec.structs.replace(credential, is_used=is_used)
            is_used = False

    def _list_sources(self, provider: Provider, entry: Entry | None) -> Iterator[Credential]:
        settings, name = provider.config, provider.id
        if key := (settings.api_key or "").strip():
            end = None if key == WITHHELD else last_four(key)  # a variable of the user's shell, not of the server
            yield Credential(provider_id=name, source="config", last_four=end)
        if found := find_env_key(provider, self._environ):
            yield Credential(provider_id=name, source="environment", variable=found[0], last_four=last_four(found[1]))
        if entry is not None:
            storage, end = ("keyring", entry.last_four) if entry.keyring else ("file", last_four(entry.api_key.strip()))
            yield Credential(provider_id=name, source="login", stored_in=storage, last_four=end)
        if (settings.api_key_command or "").strip():
            yield Credential(provider_id=name, source="command")

    async def _check(self, provider: Provider, key: str, env: Mapping[str, str]) -> None:
        unchecked = f"save it unchecked with: kedge login {provider.id} --no-check"
        try:
            endpoint = select_default_model(provider, "", env).endpoint
        except ConfigError as error:
            raise Invalid("bad_config", error.text) from error
        try:
            await check_key(self._models, msgspec.structs.replace(endpoint, api_key=key))
        except Transient as error:
            problem = f"{error.text}. The key was not saved; try again, or {unchecked}"
            raise Unavailable("provider_unreachable", problem) from error
        except ModelError as error:
            if error.code == "auth":
                raise Invalid(
                    "key_refused", f"{endpoint.host} rejected the key. It was not saved; copy it again"
                ) from error
            raise Invalid("key_not_checked", f"The key was not saved: {error.text}; {unchecked}") from error

    async def _load_config(self, directory: Path, env: Mapping[str, str]) -> Config:
        return await asyncio.to_thread(self._configure, directory, env)


def _require_provider(provider_id: str, config: Config) -> Provider:
    try:
        provider = find_provider(provider_id, config)
    except ConfigError as error:  # of a broken provider package
        raise Invalid("unknown_provider", error.text) from error
    provider = provider or SEARCH_PROVIDERS.get(provider_id)
    if provider is not None:
        return provider
    known = configured_providers(config)
    named = f"{provider_id!r}" if _NAME.fullmatch(provider_id) else "of that name"
    raise Invalid("unknown_provider", f"There is no provider {named}. Known providers: {', '.join(sorted(known))}.")


def _validate_key(given: str) -> str:
    key = given.strip()
    if not key or len(key) > MAX_KEY_CHARS:
        raise Invalid("invalid_key", "That is not a valid API key. Copy the whole key and nothing else.")
    try:
        return check_characters(key, "the key")
    except ConfigError as error:
        raise Invalid("invalid_key", error.text) from None

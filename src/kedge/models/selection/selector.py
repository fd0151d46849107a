"""The model of a run: `ModelSelector.select()`.

The order: the model that the run, `KEDGE_MODEL` or the configuration names; then the first provider with an address or
an API key in the environment, with settings in the configuration, or with a stored key; then a model server on this
machine; then the embedded starter model.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from kedge.config.schema import Config
from kedge.http.proxy import choose_connection
from kedge.models import catalog
from kedge.models.embedded.models import INSTALL, STARTER, EmbeddedModels
from kedge.models.embedded.starter import Report
from kedge.models.errors import ConfigError, Refused
from kedge.models.keys.credentials import Credentials
from kedge.models.provider_registry import configured_providers, find_provider, require_provider
from kedge.models.providers import (
    LOCAL,
    NO_SETTINGS,
    Provider,
    choose_wire,
    find_env_key,
    find_model_info,
    find_vendor,
    read_variable,
    resolve_base_url,
)
from kedge.models.values import Endpoint
from kedge.models.wires.requests import exclude_embeddings, parse_listing

NO_MODEL = (
    "No model yet. Add an API key (run kedge login, or set OPENAI_API_KEY, ANTHROPIC_API_KEY, …), start Ollama or LM"
    f" Studio, or install the built-in model: {INSTALL}"
)
STARTER_NOTICE = "Using the tiny built-in model, for testing only. Run kedge login (or /login) to connect a real one."

Origin = Literal["named", "default", "machine"]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """A selected model, and why it is this one.

    `origin` is "named" if somebody named the model, "default" if it is the first provider that is set up, and "machine"
    if nothing is set up and it was found on this machine.
    """

    endpoint: Endpoint  # `find` leaves the API key out, and the model empty if the server has to be asked
    reason: str  # a clause for people: "OPENAI_API_KEY is set"
    provider: Provider | None = None  # None: found on this machine
    origin: Origin = "named"

    @property
    def description(self) -> str:
        """A sentence for people: "openai/gpt-5: OPENAI_API_KEY is set"."""
        if self.origin == "machine" and self.is_embedded:
            return STARTER_NOTICE
        return f"{self.endpoint.name}: {self.reason}"

    @property
    def is_embedded(self) -> bool:
        return self.endpoint.provider == LOCAL

    @property
    def needs_key(self) -> bool:
        """True at a vendor's own address. A server of the user's own may need no key."""
        if self.provider is None or self.provider.is_local:
            return False
        return self.endpoint.base_url == self.provider.base_url


class ModelSelector:
    """Selects models. Environment, configuration and directory are those of the run.

    Without `embedded` and `servers` nothing on this machine is selected.
    """

    def __init__(
        self, credentials: Credentials, embedded: EmbeddedModels | None = None, servers: LocalServers | None = None
    ) -> None:
        self.credentials = credentials
        self._embedded = embedded
        self._servers = servers or LocalServers(())

    @property
    def has_embedded(self) -> bool:
        return self._embedded is not None and self._embedded.is_available()

    async def select(
        self, model: str | None, env: Mapping[str, str], config: Config, *, directory: Path, report: Report
    ) -> Selection:
        """Select the model of a run that names `model` (or none), ready to be called: with its API key, or loaded.

        Raises `ConfigError` with a line that says what to do. `report` hears how far the download of the starter is.
        """
        selection = await self.find(model, env, config)
        if not selection.is_embedded:
            return await self._add_key(selection, env)
        if self._embedded is None:
            raise ConfigError("no_model", NO_MODEL)
        endpoint = await self._embedded.load(selection.endpoint.model, directory=directory, env=env, report=report)
        return msgspec.structs.replace(selection, endpoint=endpoint)

    async def select_small(self, large: Selection, env: Mapping[str, str], config: Config) -> Selection | None:
        """Select the model that writes titles, which may be `large`; None if that one is too small for more work."""
        small = find_small(large.endpoint, env, config)
        if small is None:
            return None if large.endpoint.info.is_tiny else large
        if small.is_embedded:
            raise ConfigError("no_model", f"{small.endpoint.name} cannot be the small model")
        return await self._add_key(small, env)

    async def find(self, model: str | None, env: Mapping[str, str], config: Config) -> Selection:
        """Select a model without reading its API key, running a command or loading anything."""
        catalog.refresh()
        selection = _find_named(model, env, config) or _find_default(env, config)
        selection = selection or await self._find_stored(env, config) or await self._find_on_machine()
        if selection is None:
            raise ConfigError("no_model", NO_MODEL)
        return selection

    async def renew_key(
        self, endpoint: Endpoint, env: Mapping[str, str], config: Config, refused: Collection[str] = ()
    ) -> Endpoint | None:
        """Return the endpoint with another API key than its own and those `refused` before; None if there is none."""
        provider = find_provider(endpoint.provider, config)
        key = provider and await self.credentials.find_other_key(provider, env, endpoint.api_key, refused)
        return msgspec.structs.replace(endpoint, api_key=key) if key else None

    async def refresh_key(
        self, endpoint: Endpoint, env: Mapping[str, str], config: Config, refused: Collection[str] = ()
    ) -> Endpoint:
        """Return the endpoint with the API key that is valid now: somebody may have logged in."""
        provider = find_provider(endpoint.provider, config)
        key = provider and await self.credentials.find_key(provider, env, refused)
        return msgspec.structs.replace(endpoint, api_key=key) if key else endpoint

    async def _find_stored(self, env: Mapping[str, str], config: Config) -> Selection | None:
        """Select the first provider with a stored key; one with a default model comes first, packages come last."""
        stored = await self.credentials.load_stored()
        known = [name for name in configured_providers(config) if name in stored]
        names = [*known, *(name for name in stored if name not in known)]
        providers = [provider for name in names if (provider := _find_usable(name, config)) is not None]
        first = next((provider for provider in providers if provider.has_default), next(iter(providers), None))
        return first and select_default_model(first, "its API key is stored", env, "default")

    async def _find_on_machine(self) -> Selection | None:
        for server in await self._servers.find():
            info = find_model_info(server.models[0], NO_SETTINGS)
            endpoint = Endpoint(provider=server.provider, model=server.models[0], base_url=server.base_url, info=info)
            return Selection(endpoint=endpoint, reason=server.reason, origin="machine")
        if self.has_embedded:
            return _select_embedded(STARTER, "no API key and no model server was found", "machine")
        return None

    async def _add_key(self, selection: Selection, env: Mapping[str, str]) -> Selection:
        provider, endpoint = selection.provider, selection.endpoint
        if provider is None:
            return selection
        key = await self.credentials.find_key(provider, env)
        if key is None and selection.needs_key:
            how = f"set {provider.key_variable}, or run: kedge login {provider.id}"
            raise ConfigError("bad_config", f"{endpoint.name} needs an API key: {how}")
        return msgspec.structs.replace(selection, endpoint=msgspec.structs.replace(endpoint, api_key=key))


def _find_named(model: str | None, env: Mapping[str, str], config: Config) -> Selection | None:
    """Select the model that the run, the environment or the configuration names; None if none does."""
    for name, reason in (
        (model, "the run names it"),
        (read_variable(env, "KEDGE_MODEL"), "KEDGE_MODEL names it"),
        (config.model, "the configuration names it"),
    ):
        if name:
            return _select_by_name(name, reason, env, config)
    return None


def _find_default(env: Mapping[str, str], config: Config) -> Selection | None:
    """Select the first provider that the environment or the configuration gives access to; None if there is none.

    An address in the environment comes first: setting one means that server. Then the API keys, in the order of the
    built-in providers: the same machine must not change its model by chance.
    """
    known = configured_providers(config)
    usable = [provider for provider in known.values() if provider.has_default]
    for provider in usable:
        if read_variable(env, provider.url_variable):
            return select_default_model(provider, f"{provider.url_variable} is set", env, "default")
    remote = (provider for provider in usable if not provider.is_local)
    with_keys = [(provider, found[0]) for provider in remote if (found := find_env_key(provider, env))]
    if with_keys:
        (first, variable), *others = with_keys
        rest = f" (and comes before {others[0][1]}; -m or KEDGE_MODEL choose)" if others else ""
        return select_default_model(first, f"{variable} is set{rest}", env, "default")
    for name, settings in config.providers.items():
        if settings.api_key or settings.api_key_command or settings.base_url:
            return select_default_model(known[name], f"the configuration has providers.{name}", env, "default")
    return None


def find_small(large: Endpoint, env: Mapping[str, str], config: Config) -> Selection | None:
    """Select the small model beside `large`, without its API key; None means `large` itself."""
    for name, reason in (
        (read_variable(env, "KEDGE_SMALL_MODEL"), "KEDGE_SMALL_MODEL names it"),
        (config.small_model, "the configuration names it"),
    ):
        if name:
            return _select_by_name(name, reason, env, config)
    provider = find_provider(large.provider, config)
    if provider is None or not provider.small or large.base_url != provider.base_url:
        return None  # only a vendor's own address is known to have the vendor's small model
    return _select(provider, provider.small, f"the small model of {provider.id}", env)


def select_default_model(
    provider: Provider, reason: str, env: Mapping[str, str], origin: Origin = "named"
) -> Selection:
    """Select the model of a provider where only the provider is known."""
    return _select(provider, _default_model(provider, env), reason, env, origin)


def make_endpoint(provider: Provider, model: str, env: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of a provider's model, without the API key."""
    url = resolve_base_url(provider, env)
    return Endpoint(
        provider=provider.id,
        model=model,
        base_url=url,
        key_header=provider.key_header,
        wire=choose_wire(provider, url),
        headers={**provider.headers, **provider.config.headers},
        extra_body={**provider.extra_body, **provider.config.extra_body},
        info=find_model_info(model, provider.config, provider.id, provider.models.get(model)),
        extension=provider.extension,
        connection=choose_connection(url, env, provider.config.ca_file),
        max_silence_s=provider.config.max_silence_s,
        key_variable=provider.key_variable,
        url_variable=provider.url_variable,
    )


def _select(provider: Provider, model: str, reason: str, env: Mapping[str, str], origin: Origin = "named") -> Selection:
    return Selection(endpoint=make_endpoint(provider, model, env), reason=reason, provider=provider, origin=origin)


def _select_embedded(name: str, reason: str, origin: Origin) -> Selection:
    """Select an embedded model that is not loaded yet: its endpoint has a name and no address."""
    return Selection(endpoint=Endpoint(provider=LOCAL, model=name, base_url=""), reason=reason, origin=origin)


def _select_by_name(named: str, reason: str, env: Mapping[str, str], config: Config) -> Selection:
    name, slash, model = named.strip().partition("/")
    if name == LOCAL:
        return _select_embedded(model or STARTER, reason, "named")
    if not slash and (provider := find_provider(name, config)) is not None:
        return select_default_model(provider, reason, env)
    if not slash:
        vendor = find_vendor(name) or "openai"
        raise ConfigError("bad_config", f"{named!r} is not PROVIDER/MODEL. Did you mean {vendor}/{named}?")
    if not model:
        raise ConfigError("bad_config", f"{named!r} is not PROVIDER/MODEL. Name a model of {name}")
    return _select(require_provider(name, config, named), model, reason, env)


def _default_model(provider: Provider, env: Mapping[str, str]) -> str:
    """Return the model name, or an empty one where the server is to be asked for its first model."""
    if provider.config.models:
        return next(iter(provider.config.models))
    if not provider.has_default:
        raise ConfigError("bad_config", f"Name one of your models of {provider.id}: {provider.id}/NAME")
    # An OpenAI-compatible server has models of its own; one that imitates another vendor has that vendor's.
    url = resolve_base_url(provider, env)
    is_foreign = url != provider.base_url and not provider.extension
    return "" if is_foreign and choose_wire(provider, url) in ("chat", "responses") else provider.large


def _find_usable(name: str, config: Config) -> Provider | None:
    try:
        return find_provider(name, config)
    except ConfigError:  # its package is broken now
        return None


TIMEOUT_S = 0.3  # a server on loopback answers in a few milliseconds
CACHE_S = 30.0  # short, so that a server that was just started is found soon
MAX_RESPONSE_BYTES = 1 << 20


class LocalServer(msgspec.Struct, frozen=True):
    provider: str
    title: str
    port: int
    models: tuple[str, ...] = ()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def reason(self) -> str:
        """Why a run uses this server although no model was named."""
        return f"no API key was found, and {self.title} is running on this machine (port {self.port})"


# In the order of preference.
KNOWN_SERVERS = (
    LocalServer("ollama", "Ollama", 11434),
    LocalServer("lmstudio", "LM Studio", 1234),
    LocalServer("llamacpp", "llama.cpp", 8080),
)


class LocalServers:
    def __init__(
        self,
        servers: Sequence[LocalServer] = KNOWN_SERVERS,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._clock = clock
        self._cached: tuple[float, list[LocalServer]] | None = None

    async def find(self) -> list[LocalServer]:
        """Return the servers that answer and have a model. All are asked at once; the result is cached."""
        if self._cached is None or self._clock() - self._cached[0] > CACHE_S:
            models = await asyncio.gather(*(_list_models(server.port, self._timeout_s) for server in self._servers))
            answering = [
                msgspec.structs.replace(server, models=tuple(names))
                for server, names in zip(self._servers, models, strict=True)
                if names
            ]
            self._cached = (self._clock(), answering)
        return self._cached[1]


async def _list_models(port: int, timeout_s: float) -> list[str]:
    try:
        async with asyncio.timeout(timeout_s):
            return exclude_embeddings(parse_listing(await _get(port, "/v1/models")))
    except (OSError, ValueError, Refused):  # no server, or no model server
        return []


async def _get(port: int, path: str) -> bytes:
    """Send a GET request without the HTTP client, whose import is slow and may not be needed otherwise."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_RESPONSE_BYTES)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise ValueError("not found")
        length = re.search(
            rb"(?im)^content-length:[ \t]*(\d{1,9})[ \t]*\r$", head
        )  # some servers keep the connection open
        max_bytes = min(MAX_RESPONSE_BYTES, int(length[1])) if length else MAX_RESPONSE_BYTES
        body = b""
        while len(body) < max_bytes and (chunk := await reader.read(65536)):
            body += chunk
        return body
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ValueError("no HTTP") from error
    finally:
        writer.close()

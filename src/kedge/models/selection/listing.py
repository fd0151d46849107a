"""The list of models for `kedge models`: those that can be used, and for the others what is missing.

API keys are not read, only searched for. Servers of the user's own are asked for their models, all at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from kedge.config.schema import Config
from kedge.models import catalog, provider_registry, providers
from kedge.models.client import ModelClient
from kedge.models.embedded.models import INSTALL, STARTER
from kedge.models.errors import ModelError
from kedge.models.provider_registry import configured_providers
from kedge.models.providers import LOCAL, Provider, find_env_key, read_variable, resolve_base_url
from kedge.models.selection.selector import ModelSelector, Selection, find_small, make_endpoint
from kedge.models.values import Endpoint, ModelInfo
from kedge.models.wires.requests import exclude_embeddings
from kedge.protocol.api import Offered, OfferedModel, OfferedProvider, Role, Source
from kedge.protocol.environment import WITHHELD

TIMEOUT_S = 2.0  # of a server that is asked for its models
MAX_ASKED_WINDOWS = 10  # of a server with many models
_TINY = ModelInfo(input_price=0.0, output_price=0.0, images=False, tools=False, is_tiny=True)


class Listing:
    def __init__(self, models: ModelClient, selector: ModelSelector) -> None:
        self._models = models
        self._selector = selector

    async def list_all(self, env: Mapping[str, str], config: Config) -> Offered:
        """Return all providers and models for a run with this environment, and the default model."""
        packages = await asyncio.to_thread(provider_registry.load_all)
        known = provider_registry.add_packages(configured_providers(config))
        try:
            stored, problem = set(await self._selector.credentials.load_stored()), ""
        except ModelError as error:  # shown at the providers that need a stored key
            stored, problem = set[str](), error.text
        try:
            selection = await self._selector.find(None, env, config)
            name, why = selection.endpoint.name, selection.description
        except ModelError as error:
            selection, name, why = None, None, error.text
        small = _find_small_name(selection, env, config)
        checks = [self._check(provider, env, stored, problem) for provider in known.values()]
        offers = [*await asyncio.gather(*checks), self._check_embedded()]
        offers += [
            _Offer(Provider(id=name), False, each.problem, {})
            for name, each in packages.items()
            if not isinstance(each, Provider)
        ]
        first = _complete_name(name, offers)
        second = None if first == f"{LOCAL}/{STARTER}" else _complete_name(small, offers) or first
        roles: dict[str, list[Role]] = {}
        if first is not None:
            roles.setdefault(first, []).append("large")
        if second is not None:
            roles.setdefault(second, []).append("small")
        return Offered(
            model=first,
            small_model=second,
            why=why,
            catalog_date=providers.catalog_date(),
            catalog_source=catalog.describe_update(),
            providers=[offer.to_protocol(roles) for offer in offers],
        )

    async def _check(self, provider: Provider, env: Mapping[str, str], stored: Collection[str], problem: str) -> _Offer:
        models = _known_models(provider)
        try:
            url = resolve_base_url(provider, env)
        except ModelError as error:
            return _Offer(provider, False, error.text, models)
        key = describe_key_source(provider, env, stored)
        if url == provider.base_url and not provider.is_local:
            hint = problem or f"set {provider.key_variable}, or run: kedge login {provider.id}"
            return _Offer(provider, key is not None, key or hint, models)
        return await self._ask_server(provider, url, env, models, key)

    async def _ask_server(
        self, provider: Provider, url: str, env: Mapping[str, str], models: dict[str, Source], key: str | None
    ) -> _Offer:
        """Ask a server of the user's own for its models."""
        own: dict[str, Source] = {name: source for name, source in models.items() if source != "catalog"}
        key_variables = {provider.key_variable, *provider.key_variables}
        # The client may have withheld the values of these variables.
        keyless = {name: value for name, value in env.items() if name not in key_variables}
        try:
            endpoint = make_endpoint(provider, "", keyless)
            own_key = (
                None
                if provider.config.api_key_command
                else await self._selector.credentials.find_key(provider, keyless)
            )
            own_key = None if own_key == WITHHELD else own_key  # of a variable that the configuration refers to
            await self._models.warm_up(endpoint)  # our own start-up time is not the server's
            endpoint = msgspec.structs.replace(endpoint, api_key=own_key)
            async with asyncio.timeout(TIMEOUT_S):
                names = await self._models.list_models(endpoint)
        except TimeoutError:
            return _Offer(provider, False, f"{url} does not answer (busy?)", own)
        except ModelError as error:
            if error.code == "unreachable":
                return _Offer(provider, False, f"no server is running at {url}", own)
            if key is not None or own:  # it runs, and need not list its models
                return _Offer(provider, True, f"{key or f'running at {url}'}; it lists no models", own)
            return _Offer(provider, False, error.text, own)
        own.update(dict.fromkeys(exclude_embeddings(names), "server"))
        windows = await self._ask_windows(endpoint, provider, own)
        return _Offer(provider, bool(own), f"running at {url}" if own else f"{url} has no model yet", own, windows)

    async def _ask_windows(self, endpoint: Endpoint, provider: Provider, names: Iterable[str]) -> dict[str, int | None]:
        """Ask for the context windows of the first models."""
        asked = [
            msgspec.structs.replace(endpoint, model=name, info=_find_info(provider, name))
            for name in islice(names, MAX_ASKED_WINDOWS)
        ]
        known = await asyncio.gather(*(self._models.add_window(each) for each in asked))
        return {each.model: each.info.context_window for each in known}

    def _check_embedded(self) -> _Offer:
        provider = Provider(id=LOCAL, title="built in", is_local=True, models={STARTER: _TINY})
        if not self._selector.has_embedded:
            return _Offer(provider, False, f"install it with {INSTALL}", {STARTER: "local"})
        why = "needs no API key; any GGUF file works as local/PATH.gguf"
        return _Offer(provider, True, why, {STARTER: "local"})


class _Offer(NamedTuple):
    provider: Provider
    is_usable: bool
    why: str
    models: Mapping[str, Source]
    windows: Mapping[str, int | None] = {}  # by model, as the server reported them

    @property
    def names(self) -> list[str]:
        return [f"{self.provider.id}/{model}" for model in self.models]

    def to_protocol(self, roles: Mapping[str, list[Role]]) -> OfferedProvider:
        models = [self._model_to_protocol(model, source, roles) for model, source in self.models.items()]
        return OfferedProvider(
            id=self.provider.id,
            title=self.provider.title or self.provider.id,
            usable=self.is_usable,
            why=self.why,
            models=models,
        )

    def _model_to_protocol(self, model: str, source: Source, roles: Mapping[str, list[Role]]) -> OfferedModel:
        info = _find_info(self.provider, model)
        name = f"{self.provider.id}/{model}"
        properties = {field: getattr(info, field) for field in _FIELDS}
        properties["context_window"] = info.context_window or self.windows.get(model)
        properties["efforts"] = list(info.efforts) if info.reasoning else []
        return OfferedModel(name=name, source=source, roles=list(roles.get(name, [])), **properties)


def _find_info(provider: Provider, model: str) -> ModelInfo:
    return providers.find_model_info(model, provider.config, provider.id, provider.models.get(model))


_FIELDS = tuple(field for field in OfferedModel.__struct_fields__ if field in ModelInfo.__struct_fields__)


def _known_models(provider: Provider) -> dict[str, Source]:
    """Return the models by name, those of the configuration first."""
    models: dict[str, Source] = dict.fromkeys(provider.config.models, "config")
    others: list[tuple[Iterable[str], Source]] = [
        (provider.models, "package"),
        (providers.list_catalog().get(provider.id, ()), "catalog"),
    ]
    for names, source in others:
        for name in names:
            models.setdefault(name, source)
    for name in filter(None, (provider.large, provider.small)):
        models.setdefault(name, "catalog")
    return models


def describe_key_source(provider: Provider, env: Mapping[str, str], stored: Collection[str]) -> str | None:
    """Return where a provider's API key comes from, in a few words; None if there is none. The key is not read."""
    if provider.config.api_key:
        return f"providers.{provider.id}.api_key is set"
    if (found := find_env_key(provider, env)) is not None:
        return f"{found[0]} is set"
    if provider.id in stored:
        return "its API key is stored"
    return f"providers.{provider.id}.api_key_command prints its API key" if provider.config.api_key_command else None


def _find_small_name(large: Selection | None, env: Mapping[str, str], config: Config) -> str | None:
    if large is None or large.provider is None:
        return read_variable(env, "KEDGE_SMALL_MODEL") or config.small_model
    try:
        small = find_small(large.endpoint, env, config)
    except ModelError:
        return None
    return small.endpoint.name if small else None


def _complete_name(name: str | None, offers: Iterable[_Offer]) -> str | None:
    """Add the model to a bare provider name: the first one that the server lists."""
    if name is None or "/" in name:
        return name
    return next((each for offer in offers if offer.provider.id == name for each in offer.names), name)

"""Which models can be used now, and for the rest why not: by key, by login, on this machine, inside.

No key is needed to answer that, only where one is; servers of one's own are asked for theirs, all at once and briefly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from kedge.config.schema import Config
from kedge.models import catalog, extensions
from kedge.models.client import Models
from kedge.models.embedded.models import INSTALL, STARTER
from kedge.models.errors import ModelError
from kedge.models.provider_registry import configured_providers
from kedge.models.providers import LOCAL, Provider, find_env_key, read_variable, resolve_base_url
from kedge.models.selection.selector import ModelSelector, Selection, find_small, make_endpoint
from kedge.models.values import ModelInfo
from kedge.models.wires.requests import writers
from kedge.protocol.environment import WITHHELD
from kedge.protocol.models import Offered, OfferedModel, OfferedProvider, Role, Source

ASK_S = 2.0  # a server that takes longer to say what it has is busy with something else
_TINY = ModelInfo(input_price=0.0, output_price=0.0, images=False, tools=False, is_tiny=True)


class Listing:
    def __init__(self, models: Models, selector: ModelSelector) -> None:
        self._models = models
        self._selector = selector

    async def everything(self, env: Mapping[str, str], config: Config) -> Offered:
        packages = await asyncio.to_thread(extensions.everything)
        known = extensions.with_packages(configured_providers(config))
        try:
            stored, problem = set(await self._selector.credentials.stored()), ""
        except ModelError as error:  # whoever would need a login is told
            stored, problem = set[str](), error.text
        try:
            selection = await self._selector.find(None, env, config)
            name, why = selection.endpoint.name, selection.description
        except ModelError as error:
            selection, name, why = None, None, error.text
        small = _small(selection, env, config)
        asked = [self._offer(provider, env, stored, problem) for provider in known.values()]
        offers = [*await asyncio.gather(*asked), self._inside()]
        offers += [
            _Offer(Provider(id=name), False, each.problem, {})
            for name, each in packages.items()
            if not isinstance(each, Provider)
        ]
        first = _first_of(name, offers)
        second = None if first == f"{LOCAL}/{STARTER}" else _first_of(small, offers) or first
        roles: dict[str, list[Role]] = {}
        if first is not None:
            roles.setdefault(first, []).append("large")
        if second is not None:
            roles.setdefault(second, []).append("small")
        return Offered(
            model=first,
            small_model=second,
            why=why,
            catalog_date=catalog.catalog_date(),
            providers=[offer.told(roles) for offer in offers],
        )

    async def _offer(self, provider: Provider, env: Mapping[str, str], stored: Collection[str], problem: str) -> _Offer:
        models = _known(provider)
        try:
            url = resolve_base_url(provider, env)
        except ModelError as error:
            return _Offer(provider, False, error.text, models)
        key = where_key_is(provider, env, stored)
        if url == provider.base_url and not provider.is_local:
            hint = problem or f"set {provider.key_variable}, or run: kedge login {provider.id}"
            return _Offer(provider, key is not None, key or hint, models)
        return await self._asked(provider, url, env, models, key)

    async def _asked(
        self, provider: Provider, url: str, env: Mapping[str, str], models: dict[str, Source], key: str | None
    ) -> _Offer:
        """A server that is somebody's own: it says itself what it has."""
        own: dict[str, Source] = {name: source for name, source in models.items() if source != "catalog"}
        shown = {provider.key_variable, *provider.key_variables}
        keyless = {name: value for name, value in env.items() if name not in shown}  # who asks may have shown no key
        try:
            endpoint = make_endpoint(provider, "", keyless)
            own_key = (
                None if provider.config.api_key_command else await self._selector.credentials.key(provider, keyless)
            )
            own_key = None if own_key == WITHHELD else own_key  # the configuration refers to a variable of the shell
            await self._models.warm_up(endpoint.way)  # what we take to begin is not the server's
            async with asyncio.timeout(ASK_S):
                names = await self._models.offered(msgspec.structs.replace(endpoint, api_key=own_key))
        except TimeoutError:
            return _Offer(provider, False, f"{url} does not answer; is it busy?", own)
        except ModelError as error:
            if error.code == "unreachable":
                return _Offer(provider, False, f"nothing answers at {url}; start it", own)
            if key is not None or own:  # it is there, and need not tell
                return _Offer(provider, True, f"{key or f'answers at {url}'}; it lists no models", own)
            return _Offer(provider, False, error.text, own)
        own.update(dict.fromkeys(writers(names), "server"))
        return _Offer(provider, bool(own), f"answers at {url}" if own else f"{url} has no model yet", own)

    def _inside(self) -> _Offer:
        provider = Provider(id=LOCAL, title="inside", is_local=True, models={STARTER: _TINY})
        if not self._selector.has_embedded:
            return _Offer(provider, False, f"install it with {INSTALL}", {STARTER: "local"})
        why = "no key, no server; any GGUF file as local/PATH.gguf"
        return _Offer(provider, True, why, {STARTER: "local"})


class _Offer(NamedTuple):
    provider: Provider
    is_usable: bool
    why: str
    models: Mapping[str, Source]

    @property
    def names(self) -> list[str]:
        return [f"{self.provider.id}/{model}" for model in self.models]

    def told(self, roles: Mapping[str, list[Role]]) -> OfferedProvider:
        models = [self._told(model, source, roles) for model, source in self.models.items()]
        return OfferedProvider(
            id=self.provider.id,
            title=self.provider.title or self.provider.id,
            usable=self.is_usable,
            why=self.why,
            models=models,
        )

    def _told(self, model: str, source: Source, roles: Mapping[str, list[Role]]) -> OfferedModel:
        provider = self.provider
        info = catalog.info(model, provider.config, provider.id, provider.models.get(model))
        name = f"{provider.id}/{model}"
        told = {field: getattr(info, field) for field in _FIELDS}
        return OfferedModel(name=name, source=source, roles=list(roles.get(name, [])), **told)


_FIELDS = tuple(field for field in OfferedModel.__struct_fields__ if field in ModelInfo.__struct_fields__)


def _known(provider: Provider) -> dict[str, Source]:
    """Its models by name: those of the configuration first, in their order."""
    models: dict[str, Source] = dict.fromkeys(provider.config.models, "config")
    others: list[tuple[Iterable[str], Source]] = [
        (provider.models, "package"),
        (catalog.everything().get(provider.id, ()), "catalog"),
    ]
    for names, source in others:
        for name in names:
            models.setdefault(name, source)
    for name in filter(None, (provider.large, provider.small)):
        models.setdefault(name, "catalog")
    return models


def where_key_is(provider: Provider, env: Mapping[str, str], stored: Collection[str]) -> str | None:
    """Where a provider's key comes from, in a few words; it is not looked at."""
    if provider.config.api_key:
        return f"providers.{provider.id}.api_key is set"
    if (found := find_env_key(provider, env)) is not None:
        return f"{found[0]} is set"
    if provider.id in stored:
        return "its key is stored"
    return f"providers.{provider.id}.api_key_command prints its key" if provider.config.api_key_command else None


def _small(large: Selection | None, env: Mapping[str, str], config: Config) -> str | None:
    if large is None or large.provider is None:
        return read_variable(env, "KEDGE_SMALL_MODEL") or config.small_model
    try:
        small = find_small(large.endpoint, env, config)
    except ModelError:
        return None
    return small.endpoint.name if small else None


def _first_of(name: str | None, offers: Iterable[_Offer]) -> str | None:
    """Where the server decides, it is the first one that it has."""
    if name is None or "/" in name:
        return name
    return next((each for offer in offers if offer.provider.id == name for each in offer.names), name)

"""Which model a run uses, and why. Pure: what needs the network, a disk or a process is left open in the `Choice`.

The order: the run's own model, `KEDGE_MODEL`, the configured one; then what the environment and the configuration give
access to; then what is on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kedge.config.schema import Config
from kedge.models import catalog
from kedge.models.errors import ConfigError
from kedge.models.providers import LOCAL, Provider, address, find, key_in, provider_of, providers, setting, wire_at
from kedge.models.proxy import way_to
from kedge.models.values import Endpoint


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is one sentence. The endpoint has no key yet, and no model where the server decides.

    Without an endpoint the model is on this machine: the embedded one called `local`, or, where that is empty, whatever
    is found here.
    """

    why: str
    provider: Provider | None = None
    endpoint: Endpoint | None = None
    local: str = ""
    is_found: bool = False  # nobody named it

    @property
    def name(self) -> str:
        return self.endpoint.name if self.endpoint else f"{LOCAL}/{self.local}" if self.local else LOCAL

    @property
    def needs_key(self) -> bool:
        """A vendor's own address does; a server of one's own may not."""
        if self.provider is None or self.endpoint is None or self.provider.is_local:
            return False
        return self.endpoint.base_url == self.provider.base_url


def resolve(wanted: str | None, env: Mapping[str, str], config: Config | None = None) -> Choice:
    """The model that does the work of a run that names `wanted`, or none; `env` is its caller's, or the server's."""
    config = config or Config()
    for named, source in (
        (wanted, "the run names it"),
        (setting(env, "KEDGE_MODEL"), "KEDGE_MODEL names it"),
        (config.model, "the configuration names it"),
    ):
        if named:
            return _named(named, source, env, config)
    return msgspec.structs.replace(_found(env, config), is_found=True)


def resolve_small(large: Endpoint, env: Mapping[str, str], config: Config | None = None) -> Choice | None:
    """The model for titles, beside `large`. None: that one itself."""
    config = config or Config()
    for named, source in (
        (setting(env, "KEDGE_SMALL_MODEL"), "KEDGE_SMALL_MODEL names it"),
        (config.small_model, "the configuration names it"),
    ):
        if named:
            return _named(named, source, env, config)
    provider = provider_of(large.provider, config)
    if provider is None or not provider.small or large.base_url != provider.base_url:
        return None  # only a vendor's own address is known to have the vendor's small model
    return _choice(provider, provider.small, f"the small model of {provider.id}", env)


def of_provider(provider: Provider, reason: str, env: Mapping[str, str]) -> Choice:
    """A provider's own choice of model."""
    return _choice(provider, _default_model(provider, env), reason, env)


def _named(named: str, reason: str, env: Mapping[str, str], config: Config) -> Choice:
    known = providers(config)
    name, slash, model = named.strip().partition("/")
    if name == LOCAL:
        return Choice(why=f"{named}: {reason}", local=model or "starter")
    if not slash and (provider := provider_of(name, config)) is not None:
        return of_provider(provider, reason, env)
    if not slash:
        vendor = catalog.vendor_of(name) or "openai"
        raise ConfigError("bad_config", f"{named!r} is not PROVIDER/MODEL; did you mean {vendor}/{named}?")
    if not model:
        raise ConfigError("bad_config", f"{named!r} is not PROVIDER/MODEL; name a model of {name}")
    return _choice(find(name, known, named), model, reason, env)


def _found(env: Mapping[str, str], config: Config) -> Choice:
    """What can be used without a word from anybody.

    An address in the environment comes first: who sets one means that server. Then the keys, OpenAI's before
    Anthropic's: so it has always been, and the same machine must not change its model by chance. Then what the
    configuration gives access to, in its order.
    """
    known = providers(config)
    usable = [provider for provider in known.values() if provider.has_default]
    for provider in usable:
        if setting(env, provider.url_variable):
            return of_provider(provider, f"{provider.url_variable} is set", env)
    keyed = (provider for provider in usable if not provider.is_local)
    with_keys = [(provider, found[0]) for provider in keyed if (found := key_in(provider, env))]
    if with_keys:
        (first, variable), *others = with_keys
        rest = f" (and comes before {others[0][1]}; -m or KEDGE_MODEL choose)" if others else ""
        return of_provider(first, f"{variable} is set{rest}", env)
    for name, settings in config.providers.items():
        if settings.api_key or settings.api_key_command or settings.base_url:
            return of_provider(known[name], f"the configuration has providers.{name}", env)
    return Choice(why="no model is named and no key is set, so it is what this machine has")


def endpoint_of(provider: Provider, model: str, env: Mapping[str, str]) -> Endpoint:
    """Where the provider's model is reached, without a key yet."""
    url = address(provider, env)
    return Endpoint(
        provider=provider.id,
        model=model,
        base_url=url,
        key_header=provider.key_header,
        wire=wire_at(provider, url),
        headers={**provider.headers, **provider.config.headers},
        extra_body={**provider.extra_body, **provider.config.extra_body},
        info=catalog.info(model, provider.config, provider.id, provider.models.get(model)),
        extension=provider.extension,
        way=way_to(url, env, provider.config.ca_file),
    )


def _choice(provider: Provider, model: str, reason: str, env: Mapping[str, str]) -> Choice:
    endpoint = endpoint_of(provider, model, env)
    return Choice(why=f"{endpoint.name}: {reason}", provider=provider, endpoint=endpoint)


def _default_model(provider: Provider, env: Mapping[str, str]) -> str:
    if provider.config.models:
        return next(iter(provider.config.models))
    if not provider.has_default:
        raise ConfigError("bad_config", f"name one of your models of {provider.id}: {provider.id}/NAME")
    # A server that speaks as OpenAI does has models of its own; one that speaks as another vendor has that one's.
    url = address(provider, env)
    is_foreign = url != provider.base_url and not provider.extension
    return "" if is_foreign and wire_at(provider, url) in ("chat", "responses") else provider.large

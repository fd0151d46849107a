"""Providers by name: the built-in ones, those of the configuration, and those of installed packages.

Packages are searched last, and only for a name that is not known: `importlib.metadata` is slow.
"""

from __future__ import annotations

import difflib

import msgspec

from kedge.config.schema import Config
from kedge.models.errors import ConfigError
from kedge.models.providers import BUILT_IN, LOCAL, Provider


def configured_providers(config: Config) -> dict[str, Provider]:
    """Return the providers by id, built-in ones first. Those of packages are included if they are configured."""
    known = {provider.id: provider for provider in BUILT_IN}
    for name, settings in config.providers.items():
        try:
            provider = known.get(name) or _find_installed(name) or Provider(id=name)
        except ConfigError:
            continue  # its package is broken: `find_provider` raises for a run that names it
        if settings.wire:
            provider = msgspec.structs.replace(provider, wire=settings.wire, wire_elsewhere=None, extension="")
        known[name] = msgspec.structs.replace(provider, config=settings)
    return known


def find_provider(name: str, config: Config) -> Provider | None:
    """Raise `ConfigError` if the provider's package is broken."""
    return configured_providers(config).get(name) or _find_installed(name)


def require_provider(name: str, config: Config, model: str) -> Provider:
    """Return the provider, or raise `ConfigError` with a hint; `model` is the name that the user gave."""
    if (provider := find_provider(name, config)) is not None:
        return provider
    known = configured_providers(config)
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        "bad_config",
        f"There is no provider {name!r}. {guess}Known providers: {', '.join(sorted([*known, LOCAL]))}."
        f" For a server at OPENAI_BASE_URL use openai/{model}",
    )


def _find_installed(name: str) -> Provider | None:
    from kedge.models import extensions  # late: it imports importlib.metadata

    return extensions.find_provider(name)

"""Providers as data: a provider is a few lines on top of a wire. Configuration adds some and changes others."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import msgspec

from kedge.config.schema import Config, ProviderConfig, WireName
from kedge.config.vendors import ANTHROPIC_MODEL, OPENAI_MODEL
from kedge.models.errors import ConfigError

NO_SETTINGS = ProviderConfig()


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """`large` and `small` are the models of those roles where none is named; empty: whatever is served there."""

    id: str
    wire: WireName = "chat"
    base_url: str | None = None  # its own address; None: only configuration knows
    is_local: bool = False  # runs on this machine and asks for no key
    large: str = ""
    small: str = ""
    config: ProviderConfig = NO_SETTINGS

    @property
    def key_variable(self) -> str:
        return key_variable(self.id)

    @property
    def url_variable(self) -> str:
        return url_variable(self.id)

    def __repr__(self) -> str:
        return f"Provider({self.id})"  # its configuration may hold a key


# In the order in which they are looked for. The small models write good titles.
BUILT_IN = (
    Provider(
        id="openai",
        base_url="https://api.openai.com/v1",
        large=OPENAI_MODEL,
        small="gpt-5.4-mini",
    ),
    Provider(
        id="anthropic",
        wire="anthropic",
        base_url="https://api.anthropic.com",
        large=ANTHROPIC_MODEL,
        small="claude-haiku-5-5",
    ),
    Provider(id="ollama", base_url="http://127.0.0.1:11434/v1", is_local=True),
    Provider(id="lmstudio", base_url="http://127.0.0.1:1234/v1", is_local=True),
    Provider(id="llamacpp", base_url="http://127.0.0.1:8080/v1", is_local=True),
)
LOCAL = "local"  # the embedded model: no provider with an address


def providers(config: Config) -> dict[str, Provider]:
    """Every provider by its id, the built-in ones first."""
    known = {provider.id: provider for provider in BUILT_IN}
    for name, settings in config.providers.items():
        provider = known.get(name) or Provider(id=name)
        known[name] = msgspec.structs.replace(provider, config=settings, wire=settings.wire or provider.wire)
    return known


def find(name: str, known: Mapping[str, Provider], wanted: str) -> Provider:
    """The provider of that name; `wanted` is the model that was asked for."""
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    guess = f", did you mean {near[0]!r}?" if near else ";"
    problem = f"there is no provider {name!r}{guess} known are {_listed([*known, LOCAL])}"
    raise ConfigError("bad_config", f"{problem}; a model of a server at OPENAI_BASE_URL is openai/{wanted}")


def address(provider: Provider, env: Mapping[str, str]) -> str:
    """Where the provider is reached: as configured, by its variable, or its own."""
    variable = setting(env, provider.url_variable)
    if provider.config.base_url:
        return _checked_url(provider.config.base_url, f"providers.{provider.id}.base_url", provider)
    if variable is not None:
        return _checked_url(variable, provider.url_variable, provider)
    if provider.base_url is None:
        raise ConfigError(
            "bad_config", f"provider {provider.id!r} has no address; set providers.{provider.id}.base_url"
        )
    return provider.base_url


def setting(env: Mapping[str, str], name: str) -> str | None:
    """A variable that is set to nothing is not set."""
    return env.get(name, "").strip() or None


def key_variable(provider_id: str) -> str:
    return f"{_upper(provider_id)}_API_KEY"


def url_variable(provider_id: str) -> str:
    return f"{_upper(provider_id)}_BASE_URL"


def _upper(provider_id: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in provider_id).upper()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _checked_url(url: str, source: str, provider: Provider) -> str:
    try:
        parts = urlsplit(url.strip())
        _ = parts.port  # is checked when it is asked for
    except ValueError:
        parts = None
    is_plain = parts is not None and not (parts.username or parts.password or parts.query or parts.fragment)
    is_printable = url.isprintable() and " " not in url.strip()
    if parts is None or not is_plain or parts.scheme not in ("http", "https") or not parts.hostname or not is_printable:
        # What is wrong with it may be a password in it, so the value is not repeated.
        problem = f"{source} must be http(s)://HOST[:PORT][/PATH], with the key in {provider.key_variable}"
        raise ConfigError("bad_config", problem)
    checked = url.strip().rstrip("/")
    # Anthropic's own tools write it without the version, others with it: both are right here.
    return checked.removesuffix("/v1") if provider.wire == "anthropic" else checked

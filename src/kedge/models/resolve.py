"""Which model and which key a run uses. Pure: the one question that needs the network, what a server offers, is left
open as an `Endpoint` without a model."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from kedge.models.errors import ConfigError
from kedge.models.values import Endpoint

OPENAI_URL = "https://api.openai.com/v1"
# With a key and nothing else: the vendor's current general model, good at code.
DEFAULT_OPENAI_MODEL = "gpt-5"

NO_MODEL = (
    "no model is configured: set OPENAI_API_KEY, or OPENAI_BASE_URL for a compatible server,"
    " and choose a model with -m openai/NAME or KEDGE_MODEL"
)


def resolve(model: str | None, env: Mapping[str, str]) -> Endpoint:
    """The endpoint for a run that names `model`, or none; `env` is its caller's environment, or the server's."""
    named = model or _setting(env, "KEDGE_MODEL")
    key, base_url = _setting(env, "OPENAI_API_KEY"), _setting(env, "OPENAI_BASE_URL")
    if named is None and key is None and base_url is None:
        raise ConfigError("no_model", NO_MODEL)
    name = "" if named is None else _openai_name(named)
    if key is None and base_url is None:
        raise ConfigError("bad_config", f"{named} needs a key: set OPENAI_API_KEY")
    if not name and base_url is None:
        name = DEFAULT_OPENAI_MODEL
    return Endpoint(
        provider="openai",
        model=name,
        base_url=OPENAI_URL if base_url is None else _checked_url(base_url),
        api_key=None if key is None else _checked_key(key),
    )


def _setting(env: Mapping[str, str], name: str) -> str | None:
    """A variable that is set to nothing is not set."""
    return env.get(name, "").strip() or None


def _openai_name(named: str) -> str:
    provider, _, name = named.partition("/")
    if not name:
        raise ConfigError("bad_config", f"{named!r} is not PROVIDER/MODEL; did you mean openai/{named}?")
    if provider != "openai":
        raise ConfigError(
            "bad_config",
            f"there is no provider {provider!r}; write openai/NAME, also for a compatible server (openai/{named})",
        )
    return name


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port  # is checked when it is asked for
    except ValueError:
        parts = None
    is_plain = parts is not None and not (parts.username or parts.password or parts.query or parts.fragment)
    if parts is None or not is_plain or parts.scheme not in ("http", "https") or not parts.hostname or " " in url:
        # What is wrong with it may be a password in it, so the value is not repeated.
        problem = "OPENAI_BASE_URL must be http(s)://HOST[:PORT][/PATH], with the key in OPENAI_API_KEY"
        raise ConfigError("bad_config", problem)
    return url.rstrip("/")


def _checked_key(key: str) -> str:
    """An HTTP header takes no more than this, and the client's own complaint would repeat the key."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("bad_config", "OPENAI_API_KEY holds characters that no key has; copy it again")
    return key

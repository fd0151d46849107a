"""Describe the configuration for people: each value with its origin, secrets masked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import msgspec

from kedge.config.change import SECRET_NAME, is_reference
from kedge.config.keys import Key, format_key, parse_key
from kedge.config.load import Loaded, Origin
from kedge.config.schema_tree import Leaf, iter_leaves
from kedge.protocol.api import ConfigAnswer, ConfigFile, ConfigIgnored, ConfigValue

MASK = "…"
SHOWN_CHARS = 4  # at the end of a secret, to tell one from another
MIN_LENGTH = 12  # of a shorter secret nothing is shown


def describe_config(loaded: Loaded, key: str | None = None) -> ConfigAnswer:
    """Return all values in the order of the schema, or those at and below `key`. Raises `InvalidKey`."""
    below = () if key is None else parse_key(key)
    rows = [row for path, row in _rows(loaded) if path[: len(below)] == below]
    return ConfigAnswer(
        values=rows,
        ignored=[
            ConfigIgnored(each.file, each.line, each.key, each.why)
            for each in loaded.ignored
            if parse_key(each.key)[: len(below)] == below
        ],
        files=[ConfigFile(each.path, each.layer, each.exists, each.trusted) for each in loaded.files],
    )


def mask(secret: str) -> str:
    return MASK + (secret[-SHOWN_CHARS:] if len(secret) >= MIN_LENGTH else "")


def _rows(loaded: Loaded) -> list[tuple[Key, ConfigValue]]:
    values = msgspec.to_builtins(loaded.config)
    rows: list[tuple[Key, ConfigValue]] = []
    for pattern, leaf in iter_leaves():
        found = sorted(path for path in loaded.origins if _matches(path, pattern))
        rows += [(path, _row(path, _at(values, path, leaf), loaded.origins[path])) for path in found]
        if not found and "*" not in pattern:
            rows.append((pattern, _row(pattern, leaf.default, Origin("default"))))
    return rows


def _matches(path: Key, pattern: tuple[str, ...]) -> bool:
    """Whether a key belongs to a schema key. Keys below `extra_body` are deeper than the schema."""
    return len(path) >= len(pattern) and all(a in ("*", b) for a, b in zip(pattern, path, strict=False))


def _row(path: Key, value: Any, origin: Origin) -> ConfigValue:
    return ConfigValue(
        format_key(path), _safe(path, value, origin), origin.layer, origin.name or None, origin.line or None
    )


def _safe(path: Key, value: Any, origin: Origin) -> Any:
    names = [str(name) for name in path]
    if names[0] in ("mcp", "lsp"):
        return _safe_server_value(names, value, origin)
    is_secret = "headers" in names or names[-1] == "api_key"
    if "extra_body" in names:
        is_secret = origin.refers or any(map(SECRET_NAME.search, names[names.index("extra_body") + 1 :]))
    if is_secret:
        return mask(value) if isinstance(value, str) else MASK
    return strip_credentials(value) if isinstance(value, str) and "://" in value else value


def _safe_server_value(names: list[str], value: Any, origin: Origin) -> Any:
    """Values of MCP servers are shown as they are in the file, so that a `${NAME}` is no secret.

    Those of language servers have their references expanded.
    """
    if names[0] == "lsp" and origin.refers:
        return mask(value) if isinstance(value, str) else MASK
    if isinstance(value, list | tuple):
        return mask_arguments(cast("Sequence[str]", value))
    if not isinstance(value, str) or is_reference(value):
        return value
    if names[2] in ("env", "headers") or names[-1] == "client_secret":
        return mask(value)
    if names[2] in ("settings", "options") and any(map(SECRET_NAME.search, names[3:])):
        return mask(value)
    return strip_credentials(value) if "://" in value else value


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a program without the values of options whose names say that they are secret."""
    shown: list[str] = []
    is_value = False
    for each in arguments:
        name, equals, value = each.partition("=")
        if equals and SECRET_NAME.search(name) and not is_reference(value):
            shown.append(f"{name}={mask(value)}")
        else:
            shown.append(each if not is_value or each.startswith("-") or is_reference(each) else mask(each))
        is_value = not equals and each.startswith("-") and SECRET_NAME.search(each) is not None
    return [strip_credentials(each) if "://" in each else each for each in shown]


def strip_credentials(url: str) -> str:
    """Mask user, password and query of a URL: people put secrets there."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")
        netloc = f"{MASK}@{host[2]}" if host[1] else parts.netloc
        return urlunsplit((parts.scheme, netloc, parts.path, MASK if parts.query else "", ""))
    except ValueError:
        return re.sub(r"://.*", f"://{MASK}", url)


def _at(values: Any, path: Key, leaf: Leaf) -> Any:
    for name in path:
        if name not in values:  # omitted, because it is the default
            return leaf.default
        values = values[name]
    return values

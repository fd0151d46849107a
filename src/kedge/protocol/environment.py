"""The caller's environment in a header, for requests without a body: names of variables, and no secrets.

`Kedge-Environment: OPENAI_API_KEY&OPENAI_BASE_URL=http%3A%2F%2Fh%2Fv1`. Values are sent only for variables that name a
model, its address, the home or the directory of the configuration. API keys have no value here, so that none gets into
a header, a log or a trace (P16).
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

HEADER = "Kedge-Environment"
WITHHELD = "withheld"  # the value of a variable whose value was not sent
_SHOWN = ("HOME", "XDG_CONFIG_HOME")
_SHOWN_ENDS = ("_URL", "_ENDPOINT", "_HOST")
_SHOWN_START = "KEDGE_"
_SECRET_ENDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_NEVER = ("KEDGE_TOKEN",)
# The server uses its own proxy: the name alone would be useless, and the value may contain a password.
_LEFT_OUT = ("_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


def encode_environment(env: Mapping[str, str]) -> str:
    parts: list[str] = []
    for name, value in env.items():
        if not value.strip() or name in _NEVER or name.upper().endswith(_LEFT_OUT):
            continue
        shown = f"={quote(value, safe='')}" if _is_shown(name, value) else ""
        parts.append(quote(name, safe="") + shown)
    return "&".join(parts)


def decode_environment(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The caller's variables; None if the header is missing."""
    header = headers.get(HEADER.lower())
    if header is None:
        return None
    return {name: value or WITHHELD for name, value in parse_qsl(header, keep_blank_values=True)}


def _is_shown(name: str, value: str) -> bool:
    may_have_password = "://" in value and "@" in value
    if name.endswith(_SECRET_ENDS) or may_have_password:
        return False
    return name in _SHOWN or name.endswith(_SHOWN_ENDS) or name.startswith(_SHOWN_START)

"""The caller's environment in a header, for requests without a body: which variables are set, and no secret.

`Kedge-Environment: OPENAI_API_KEY&OPENAI_BASE_URL=http%3A%2F%2Fh%2Fv1`: names, and values only of those that say which
model, where, and whose home it is. What names a key has no value here, so that none is in a header, a log or a trace
(P16).
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

HEADER = "Kedge-Environment"
WITHHELD = "withheld"  # what a variable holds whose value was not sent
_SHOWN = ("HOME",)
_SHOWN_ENDS = ("_URL", "_ENDPOINT", "_HOST")
_SHOWN_START = "KEDGE_"
_SECRET_ENDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_NEVER = ("KEDGE_TOKEN",)
# The way out is the server's own here: without a value they would lead nowhere, and with one they may hold a password.
_LEFT_OUT = ("_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


def header_of(env: Mapping[str, str]) -> str:
    told: list[str] = []
    for name, value in env.items():
        if not value.strip() or name in _NEVER or name.upper().endswith(_LEFT_OUT):
            continue
        shown = f"={quote(value, safe='')}" if _is_shown(name, value) else ""
        told.append(quote(name, safe="") + shown)
    return "&".join(told)


def environment_of(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The caller's variables, as far as they were told; None where it told none."""
    told = headers.get(HEADER.lower())
    if told is None:
        return None
    return {name: value or WITHHELD for name, value in parse_qsl(told, keep_blank_values=True)}


def _is_shown(name: str, value: str) -> bool:
    is_address_of_somebody = "://" in value and "@" in value  # a password may be in there
    if name.endswith(_SECRET_ENDS) or is_address_of_somebody:
        return False
    return name in _SHOWN or name.endswith(_SHOWN_ENDS) or name.startswith(_SHOWN_START)

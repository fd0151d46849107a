"""The caller's environment in a header, for requests without a body: which variables are set, and no secret.

`Kedge-Environment: OPENAI_API_KEY&KEDGE_MODEL=openai%2Fgpt-5`: names, and values only of those that say which model and
where. What names a key has no value here, so that none is in a header, a log or a trace (P16).
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

HEADER = "Kedge-Environment"
WITHHELD = "withheld"  # what a variable holds whose value was not sent
_SHOWN_ENDS = ("_BASE_URL", "_ENDPOINT")
_SHOWN_START = "KEDGE_"
_NEVER = ("KEDGE_TOKEN",)
# The way out is the server's own here: without a value they would lead nowhere, and with one they may hold a password.
_LEFT_OUT = ("_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


def header_of(env: Mapping[str, str]) -> str:
    told: list[str] = []
    for name, value in env.items():
        if not value.strip() or name in _NEVER or name.upper().endswith(_LEFT_OUT):
            continue
        is_shown = (name.endswith(_SHOWN_ENDS) or name.startswith(_SHOWN_START)) and "@" not in value
        told.append(f"{quote(name, safe='')}={quote(value, safe='')}" if is_shown else quote(name, safe=""))
    return "&".join(told)


def environment_of(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The caller's variables, as far as they were told; None where it told none."""
    told = headers.get(HEADER.lower())
    if told is None:
        return None
    return {name: value or WITHHELD for name, value in parse_qsl(told, keep_blank_values=True)}

"""Web search that a provider does itself.

What it sends is stored in reasoning parts: the text names queries and sources for people and for other providers, the
signature has the provider's items, which it gets back unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from kedge.config.schema import WireName
from kedge.models.values import Endpoint

MAX_SOURCES = 20  # that are named
# Dollars for one search, as the vendors publish it; `search.cost_per_search` replaces it.
SEARCH_PRICES: dict[WireName, float] = {"anthropic": 0.01, "responses": 0.01, "gemini": 0.014}
_MARKED = "search:"
_OLDER_GEMINI = re.compile(r"gemini-(?:pro\b(?!-latest)|[12]\b)|gemma|learnlm", re.I)  # not beside other tools


def can_search(endpoint: Endpoint) -> bool:
    """Return whether the model's provider searches itself, beside tools of ours."""
    if endpoint.extension:
        return False
    match endpoint.wire:
        case "anthropic":
            return "claude" in endpoint.model
        case "responses":
            return True
        case "gemini":
            return _OLDER_GEMINI.search(endpoint.model) is None
        case "chat":
            return False


def mark(wire: WireName, items: Sequence[Any]) -> str:
    """Return a signature with the items of a provider."""
    return f"{_MARKED}{wire}:{msgspec.json.encode(items).decode()}"


def is_marked(signature: str | None) -> bool:
    return signature is not None and signature.startswith(_MARKED)


def wire_of(signature: str | None) -> str | None:
    """Return the wire whose items a signature has; None if it is no search."""
    return None if signature is None or not is_marked(signature) else signature.split(":", 2)[1]


def read_items(signature: str | None) -> list[Any]:
    """Return the items as they were received."""
    if signature is None or not is_marked(signature):
        return []
    try:
        return msgspec.json.decode(signature.split(":", 2)[2], type=list[Any])
    except (msgspec.MsgspecError, IndexError):
        return []


def describe_queries(queries: Sequence[Any]) -> str:
    quoted = [f'"{query}"' for query in queries if isinstance(query, str) and query]
    return f"Searched the web for {', '.join(quoted)}." if quoted else "Searched the web."


def describe_sources(sources: Sequence[tuple[Any, Any]]) -> str:
    """Return lines with the title and the address of each source."""
    lines: dict[str, None] = {}
    for title, url in sources:
        if isinstance(url, str) and url:
            name = " ".join(title.split()) if isinstance(title, str) else ""
            lines[f"- {name} {url}" if name and name != url else f"- {url}"] = None
    return "\n".join(list(lines)[:MAX_SOURCES])

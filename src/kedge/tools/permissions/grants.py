"""What a person allowed for the rest of a session, read back from the requests that they answered so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from kedge.protocol.requests import PermissionRequest


def granted(requests: Iterable[PermissionRequest]) -> tuple[str, ...]:
    """The rules of requests whose answer was `allow_session`, each once, oldest first."""
    rules: dict[str, None] = {}
    for request in requests:
        found: Any = request.params.get("rules")
        if isinstance(found, list):
            rules |= dict.fromkeys(rule for rule in cast(list[Any], found) if isinstance(rule, str))
    return tuple(rules)

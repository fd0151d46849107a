"""Whose keys the scripted model server takes: everybody's, or only some; and who may see which models there are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_LISTS = ("/v1/models", "/v1beta/models")


@dataclasses.dataclass
class Door:
    """`accepted` is None where nobody is asked for a key."""

    accepted: list[str] | None = None
    lists_to_all: bool = False  # as some gateways do
    lists_to_nobody: bool = False  # as for keys that are good for answers alone
    has_key_path: bool = False  # says itself whether a key is right
    refused: list[str] = dataclasses.field(default_factory=list[str])  # in the order in which they came
    asked: list[str] = dataclasses.field(default_factory=list[str])  # paths, in their order

    def answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]] | None:
        """What is said at the door; None: come in."""
        if path.startswith("/_fake/"):
            return None
        self.asked.append(path)
        if self.accepted is None or (path in _LISTS and self.lists_to_all):
            return None
        key = _key(headers)
        if key not in self.accepted:
            self.refused.append(key)
            return 401, {"error": {"message": f"{key} is not known here", "code": "invalid_api_key"}}
        if path in _LISTS and self.lists_to_nobody:
            return 403, {"error": {"message": f"{key} may not list models"}}
        if path == "/v1/key" and self.has_key_path:
            return 200, {"data": {"label": "a key"}}
        return None


def _key(headers: Mapping[str, str]) -> str:
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    return bearer or headers.get("x-api-key", "") or headers.get("x-goog-api-key", "")

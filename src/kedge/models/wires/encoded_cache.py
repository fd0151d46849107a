"""What was said before is said again with every request: it is encoded once and then remembered.

Without this a step would take longer the more came before it. What is remembered is compared with what is asked for,
so that a history that changed is encoded anew, and its bytes stay the same, so that the provider's cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from kedge.models.wires.history import Abilities, Past, settled, since_summary
from kedge.protocol.messages import Message

# The conversations at work now; one that is larger than this is encoded again for each request.
SAID_BYTES = 8 * 1024 * 1024
MESSAGE_BYTES = 500  # what a message takes that is kept to compare with

# A wire's: what the messages are there, after those that settled `past`.
Encode = Callable[[Sequence[Message], Abilities, Past], list[dict[str, Any]]]
_Key = tuple[str, Encode, Abilities]


class _Known(NamedTuple):
    history: tuple[Message, ...]
    encoded: bytes
    past: Past

    @property
    def size_bytes(self) -> int:
        return len(self.encoded) + len(self.history) * MESSAGE_BYTES


class Said:
    """For all wires and models. A session is remembered for each that it is sent to."""

    def __init__(self, max_bytes: int = SAID_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: dict[_Key, _Known] = {}  # the one that was quiet for longest first

    def messages(self, encode: Encode, history: Sequence[Message], abilities: Abilities) -> list[Any]:
        """The same as `encode(history)`, once it is JSON: raw what is settled, and then the rest."""
        history = since_summary(history)
        if not history:
            return []
        known = self._settled((history[0].session_id, encode, abilities), tuple(history))
        rest = encode(history[len(known.history) :], abilities, known.past.copy())
        # A raw value is copied as it is: this one is many, with the commas between them.
        return [*([msgspec.Raw(known.encoded)] if known.encoded else []), *rest]

    def _settled(self, key: _Key, history: tuple[Message, ...]) -> _Known:
        known = self._known.pop(key, None)
        if known is None or history[: len(known.history)] != known.history:
            known = _Known((), b"", Past())
        more = history[len(known.history) :]
        if count := settled(more):
            past = known.past.copy()
            encode, abilities = key[1:]
            new = [msgspec.json.encode(message) for message in encode(more[:count], abilities, past)]
            encoded = b",".join([known.encoded, *new] if known.encoded else new)
            known = _Known((*known.history, *more[:count]), encoded, past)
        self._keep(key, known)
        return known

    def _keep(self, key: _Key, known: _Known) -> None:
        if known.history and known.size_bytes <= self._max_bytes:
            self._known[key] = known
        while sum(each.size_bytes for each in self._known.values()) > self._max_bytes:
            del self._known[next(iter(self._known))]

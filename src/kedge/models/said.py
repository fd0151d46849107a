"""What was said before is said again with every request: it is encoded once and then remembered.

Without this a prompt would take longer the more came before it. What is remembered is compared with what is asked for,
so that a history that changed is encoded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from kedge.protocol.messages import Message

# The conversations at work now; one that is larger than this is encoded again for each request.
SAID_BYTES = 4 * 1024 * 1024
MESSAGE_BYTES = 500  # what a message takes that is kept to compare with

Wire = Callable[[Sequence[Message]], list[dict[str, Any]]]


class _Known(NamedTuple):
    history: tuple[Message, ...] = ()
    encoded: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.encoded) + len(self.history) * MESSAGE_BYTES


class Said:
    """For one wire: `wire` says what the messages of a turn are there, whatever turns came before."""

    def __init__(self, wire: Wire, max_bytes: int = SAID_BYTES) -> None:
        self._wire = wire
        self._max_bytes = max_bytes
        self._known: dict[str, _Known] = {}  # by session, the one that was quiet for longest first

    def messages(self, history: Sequence[Message]) -> list[Any]:
        """The same as `wire(history)`, once it is encoded. All before the last prompt is remembered."""
        last = next((i for i in reversed(range(len(history))) if history[i].role == "user"), 0)
        before = self._encoded(tuple(history[:last])) if last else b""
        # A raw value is copied as it is: this one is many, with the commas between them.
        return [*([msgspec.Raw(before)] if before else []), *self._wire(history[last:])]

    def _encoded(self, history: tuple[Message, ...]) -> bytes:
        known = self._known.pop(history[0].session_id, _Known())
        if history[: len(known.history)] != known.history:
            known = _Known()
        new = [msgspec.json.encode(message) for message in self._wire(history[len(known.history) :])]
        known = _Known(history, b",".join([known.encoded, *new] if known.encoded else new))
        if known.size_bytes <= self._max_bytes:
            self._known[history[0].session_id] = known
        while sum(each.size_bytes for each in self._known.values()) > self._max_bytes:
            del self._known[next(iter(self._known))]
        return known.encoded

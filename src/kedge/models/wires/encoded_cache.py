"""Cache of the encoded prefix of a conversation.

Every request contains the whole conversation; without the cache a step would take longer the more came before it. The
cached messages are compared with the request's, so that a changed history is encoded again. The bytes of the prefix
stay the same, which the provider's prompt cache needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from kedge.models.wires.history import Abilities, EncodingState, count_settled, drop_summarized
from kedge.protocol.messages import Message

# A conversation that is larger than this is encoded again for each request.
CACHE_BYTES = 8 * 1024 * 1024
MESSAGE_BYTES = 500  # of memory for a message that is kept for comparison

# Encodes messages for a wire, after those that led to the state.
Encode = Callable[[Sequence[Message], Abilities, EncodingState], list[dict[str, Any]]]
_Key = tuple[str, Encode, Abilities]


class _Prefix(NamedTuple):
    history: tuple[Message, ...]
    encoded: bytes
    state: EncodingState

    @property
    def size_bytes(self) -> int:
        return len(self.encoded) + len(self.history) * MESSAGE_BYTES


class EncodedCache:
    """Shared by all wires and models. Entries are per session, wire and abilities."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._prefixes: dict[_Key, _Prefix] = {}  # least recently used first

    def encode_messages(self, encode: Encode, history: Sequence[Message], abilities: Abilities) -> list[Any]:
        """Return the same JSON as `encode(history)`: the prefix as `msgspec.Raw`, then the other messages."""
        history = drop_summarized(history)
        if not history:
            return []
        prefix = self._extend_prefix((history[0].session_id, encode, abilities), tuple(history))
        rest = encode(history[len(prefix.history) :], abilities, prefix.state.copy())
        # This raw value is several messages joined with commas.
        return [*([msgspec.Raw(prefix.encoded)] if prefix.encoded else []), *rest]

    def _extend_prefix(self, key: _Key, history: tuple[Message, ...]) -> _Prefix:
        prefix = self._prefixes.pop(key, None)
        if prefix is None or history[: len(prefix.history)] != prefix.history:
            prefix = _Prefix((), b"", EncodingState())
        more = history[len(prefix.history) :]
        if count := count_settled(more):
            state = prefix.state.copy()
            encode, abilities = key[1:]
            new = [msgspec.json.encode(message) for message in encode(more[:count], abilities, state)]
            encoded = b",".join([prefix.encoded, *new] if prefix.encoded else new)
            prefix = _Prefix((*prefix.history, *more[:count]), encoded, state)
        self._store(key, prefix)
        return prefix

    def _store(self, key: _Key, prefix: _Prefix) -> None:
        if prefix.history and prefix.size_bytes <= self._max_bytes:
            self._prefixes[key] = prefix
        while sum(each.size_bytes for each in self._prefixes.values()) > self._max_bytes:
            del self._prefixes[next(iter(self._prefixes))]

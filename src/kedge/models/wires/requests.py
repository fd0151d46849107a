"""Helpers for requests of all wires: headers, bodies, the encoded history and its cache, the list of models."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from kedge.models.errors import Refused
from kedge.models.values import Endpoint, HttpRequest, StepRequest
from kedge.models.wires.history import GO_ON, Abilities, EncodingState, IdRule, count_settled, drop_summarized
from kedge.protocol.messages import Message
from kedge.version import VERSION

# A conversation that is larger than this is encoded again for each request.
CACHE_BYTES = 8 * 1024 * 1024
MESSAGE_BYTES = 500  # of memory for a message that is kept for comparison

# Encodes messages for a wire, after those that led to the state.
Encode = Callable[[Sequence[Message], Abilities, EncodingState], list[dict[str, Any]]]
_Key = tuple[str, Encode, Abilities]
T = TypeVar("T")


def make_headers(endpoint: Endpoint, own: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
    """Return the headers of a request. Configured ones replace ours, in any capitalization."""
    # Compression would delay a stream until a block is full.
    ours = {"User-Agent": f"kedge/{VERSION}", "Accept-Encoding": "identity", **own}
    kind = {"Accept": "text/event-stream", "Content-Type": "application/json"}
    ours |= kind if is_stream else {"Accept": "application/json"}
    configured = {name.lower() for name in endpoint.headers}
    return {**{name: value for name, value in ours.items() if name.lower() not in configured}, **endpoint.headers}


def make_stream_request(
    endpoint: Endpoint, url: str, own_headers: Mapping[str, str], fields: Mapping[str, Any]
) -> HttpRequest:
    """Return the request for an answer. `extra_body` of the configuration overrides fields; null removes one."""
    merged = {**fields, **endpoint.extra_body}
    body = msgspec.json.encode({name: value for name, value in merged.items() if value is not None})
    return HttpRequest("POST", url, make_headers(endpoint, own_headers, is_stream=True), body)


def make_listing_request(endpoint: Endpoint, url: str, own_headers: Mapping[str, str]) -> HttpRequest:
    return HttpRequest("GET", url, make_headers(endpoint, own_headers, is_stream=False))


def make_key_headers(endpoint: Endpoint) -> dict[str, str]:
    """Return the API key as a bearer token, or in the provider's own header. A JWT is always a bearer token."""
    key = endpoint.api_key
    if key is None:
        return {}
    is_jwt = key.startswith("eyJ") and key.count(".") == 2
    return {endpoint.key_header: key} if endpoint.key_header and not is_jwt else {"Authorization": f"Bearer {key}"}


def find_abilities(endpoint: Endpoint, request: StepRequest, ids: IdRule) -> Abilities:
    """Return what the request may contain. Without tools it has no calls either: some providers reject them."""
    has_tools = endpoint.info.tools and bool(request.tools)
    searches = None if request.search_price is None else endpoint.wire
    images, provider = endpoint.info.images, endpoint.provider
    return Abilities(images=images, tools=has_tools, provider=provider, ids=ids, searches=searches)


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def make_data_url(mime_type: str, data: bytes) -> str:
    return f"data:{mime_type};base64,{encode_base64(data)}"


def encode_messages(
    cache: EncodedCache | None,
    encode: Encode,
    request: StepRequest,
    able: Abilities,
    go_on: Mapping[str, Any] = {"content": GO_ON},
) -> list[Any]:
    """Encode the conversation. If it does not end with a user message, one with the fields of `go_on` is added."""
    if cache is not None:
        encoded = cache.encode_messages(encode, request.history, able)
    else:
        encoded = list[Any](encode(request.history, able, EncodingState()))
    if not encoded or encoded[-1].get("role") in ("assistant", "model"):
        encoded.append({"role": "user", **go_on})
    return encoded


class _Model(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Model]


def parse_listing(data: bytes) -> list[str]:
    """Return the names in a list of models, in the format of all wires but gemini."""
    return [model.id for model in decode_listing(data, _Listing).data]


def decode_listing(data: bytes, kind: type[T]) -> T:
    """Decode a page of a list of models. Raises `Refused`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused("bad_response", f"The list of models cannot be read: {error}") from error


def exclude_embeddings(names: Iterable[str]) -> list[str]:
    """Remove embedding models, which cannot answer."""
    return [name for name in names if "embed" not in name.lower()]


def no_next_page(request: HttpRequest, data: bytes) -> None:
    """Return None: lists of models have one page on most wires."""


class _Prefix(NamedTuple):
    history: tuple[Message, ...]
    encoded: bytes
    state: EncodingState

    @property
    def size_bytes(self) -> int:
        return len(self.encoded) + len(self.history) * MESSAGE_BYTES


class EncodedCache:
    """Encoded prefixes of conversations, shared by all wires and models. Entries are per session, wire and abilities.

    Every request contains the whole conversation; without the cache a step would take longer the more came before it.
    The cached messages are compared with the request's, so that a changed history is encoded again. The bytes of the
    prefix stay the same, which the provider's prompt cache needs.
    """

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

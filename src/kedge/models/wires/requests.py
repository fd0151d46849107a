"""What requests have in common on every wire: headers, the last word of the configuration, the history they carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kedge.models.errors import Refused
from kedge.models.values import Endpoint, HttpRequest, StepRequest
from kedge.models.wires.call_ids import IdRule
from kedge.models.wires.encoded_cache import Encode, Said
from kedge.models.wires.history import GO_ON, Abilities, Past
from kedge.version import VERSION


def headers(endpoint: Endpoint, own: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
    """The configured ones replace ours, however they are spelt."""
    # Compressed streams are held back until a block is full: ask for plain ones.
    ours = {"User-Agent": f"kedge/{VERSION}", "Accept-Encoding": "identity", **own}
    kind = {"Accept": "text/event-stream", "Content-Type": "application/json"}
    ours |= kind if is_stream else {"Accept": "application/json"}
    theirs = {name.lower() for name in endpoint.headers}
    return {**{name: value for name, value in ours.items() if name.lower() not in theirs}, **endpoint.headers}


def key_headers(endpoint: Endpoint) -> dict[str, str]:
    """The key as OpenAI takes it, or as the provider does. A token of a sign-in is always a bearer's."""
    key = endpoint.api_key
    if key is None:
        return {}
    is_token = key.startswith("eyJ") and key.count(".") == 2
    return {endpoint.key_header: key} if endpoint.key_header and not is_token else {"Authorization": f"Bearer {key}"}


def body(endpoint: Endpoint, fields: Mapping[str, Any]) -> bytes:
    """What is configured for the provider goes over what we would send; null takes a field away."""
    merged = {**fields, **endpoint.extra_body}
    return msgspec.json.encode({name: value for name, value in merged.items() if value is not None})


def abilities(endpoint: Endpoint, request: StepRequest, ids: IdRule) -> Abilities:
    """A request that offers no tools cannot speak of calls either: some providers refuse it."""
    has_tools = endpoint.info.tools and bool(request.tools)
    return Abilities(images=endpoint.info.images, tools=has_tools, provider=endpoint.provider, ids=ids)


def messages(said: Said | None, encode: Encode, request: StepRequest, able: Abilities, go_on: Any = GO_ON) -> list[Any]:
    """The conversation, with a word of the user's at its end (`go_on` is its content): models answer someone."""
    if said is not None:
        encoded = said.messages(encode, request.history, able)
    else:
        encoded = list[Any](encode(request.history, able, Past()))
    if not encoded or encoded[-1].get("role") == "assistant":
        encoded.append({"role": "user", "content": go_on})
    return encoded


class _Model(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Model]


def parse_listing(data: bytes) -> list[str]:
    """The names of the models that a server offers, in its order. All wires but one tell them in the same way."""
    try:
        return [model.id for model in msgspec.json.decode(data, type=_Listing).data]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused("bad_response", f"the list of models cannot be read: {error}") from error


def writers(names: Iterable[str]) -> list[str]:
    """Models that answer: one that only measures texts does not."""
    return [name for name in names if "embed" not in name.lower()]


def one_page(asked: HttpRequest, data: bytes) -> None:
    """The list of models that a server gives at once has no next page."""

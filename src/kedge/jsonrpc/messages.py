"""JSON-RPC messages, and who gets those that a server sends on its own. No IO."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from kedge.jsonrpc.errors import InvalidAnswer, PeerError, RpcError

RequestId = int | str
Json = dict[str, Any]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    id: RequestId
    method: str
    params: Json


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    params: Json


class Result(msgspec.Struct, frozen=True, kw_only=True):
    id: RequestId
    result: msgspec.Raw  # decoded by whoever sent the request


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    code: int
    message: str = ""
    data: Any = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    id: RequestId | None  # None: the server could not read the id
    error: ErrorBody

    def as_error(self) -> RpcError:
        return RpcError(self.error.code, self.error.message, self.error.data)


Message = Request | Notification | Result | Failure


class _Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="jsonrpc", tag="2.0"):
    id: RequestId | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: Json | msgspec.UnsetType | None = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorBody | msgspec.UnsetType | None = msgspec.UNSET


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Wire)


def encode(message: Message) -> bytes:
    """Return a message as one line of JSON, without the line break."""
    match message:
        case Request(id=id, method=method, params=params):
            return _encoder.encode(_Wire(id=id, method=method, params=params))
        case Notification(method=method, params=params):
            return _encoder.encode(_Wire(method=method, params=params))
        case Result(id=id, result=result):
            return _encoder.encode(_Wire(id=id, result=result))
        case Failure(id=id, error=error):
            return _encoder.encode(_Wire(id=id, error=error))


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Return the message in `data`; raise `InvalidAnswer` if there is none."""
    try:
        wire = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidAnswer("the server sent something that is no JSON-RPC message") from error
    if wire.method is not msgspec.UNSET:
        params = wire.params or {}
        if wire.id is msgspec.UNSET or wire.id is None:
            return Notification(method=wire.method, params=params)
        return Request(id=wire.id, method=wire.method, params=params)
    if isinstance(wire.error, ErrorBody):
        return Failure(id=None if wire.id is msgspec.UNSET else wire.id, error=wire.error)
    if isinstance(wire.result, msgspec.Raw) and wire.id is not msgspec.UNSET and wire.id is not None:
        return Result(id=wire.id, result=wire.result)
    raise InvalidAnswer("the server sent a JSON-RPC message that is neither request nor response")


class Listener(Protocol):
    """Gets what a server sends on its own. The methods return at once and raise nothing."""

    def on_notification(self, notification: Notification) -> None: ...

    def on_request(self, request: Request, during: RequestId | None) -> None:
        """`during`: the request on whose stream it came; None if the transport cannot know."""

    def on_closed(self, error: PeerError) -> None:
        """The connection ended without `close`. Requests in flight have failed."""

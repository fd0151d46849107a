"""The ASGI application: finds the route, decodes the request, calls the handler, encodes the response."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import aclosing
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from kedge.protocol.bounds import MAX_BODY_BYTES
from kedge.protocol.errors import ErrorBody, Invalid, KedgeError, ShuttingDown
from kedge.protocol.events import encode
from kedge.server.errors import (
    AgentProcess,
    BadRequest,
    BodyTooLarge,
    NotJson,
    headers_of,
    status_of,
)
from kedge.server.http import Context, Request, Response, Route, Router, StreamResponse
from kedge.version import VERSION

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

T = TypeVar("T")

READ_ONLY = "read_only"  # in a connection's state: a process of the agent, which may only read
SLICE_BYTES = 64 * 1024  # the most that one write adds to the buffer of a client that does not read
LINGER_S = 2.0  # for a client to stop sending a refused body and to read the response


class Encoded(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Application:
    def __init__(self, context: Context, routes: Iterable[Route]) -> None:
        self._context = context
        self._router = Router(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no lifespan, no web sockets
        self._context.metrics.request_began()
        try:
            response = await self._respond(scope, receive)
            if isinstance(response, StreamResponse):
                await _send_stream(response, receive, send, with_body=scope["method"] != "HEAD")
            else:
                await _send_response(response, receive, send, with_body=scope["method"] != "HEAD")
        finally:
            self._context.metrics.request_ended()

    async def _respond(self, scope: Scope, receive: Receive) -> Encoded | StreamResponse:
        """The error boundary: whatever a handler raises becomes the response to this one request."""
        try:
            response = await self._handle(scope, receive)
            return response if isinstance(response, StreamResponse) else _encode(response)
        except KedgeError as error:
            return _encode_error(error)
        except asyncio.CancelledError:
            if not self._context.engine.is_stopping:
                raise
            return _encode_error(ShuttingDown())  # the awaited event will not happen in this server any more
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            return _encode(Response(ErrorBody("internal", "Internal error. The server's log has the details."), 500))

    async def _handle(self, scope: Scope, receive: Receive) -> Response | StreamResponse:
        route, path = self._router.find(scope["method"], scope["path"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if route.method != "GET" and scope.get("state", {}).get(READ_ONLY):
            raise AgentProcess
        query = None if route.query is None else decode_query(route.query, scope["query_string"])
        body = await _decode_body(route, headers, receive)
        disconnected = functools.partial(_wait_for_disconnect, receive)
        return await route.handler(Request(self._context, path, headers, query, body, disconnected))


def decode_query(query: type[T], query_string: bytes) -> T:
    given = dict(parse_qsl(query_string.decode("latin-1"), keep_blank_values=True))
    try:
        return msgspec.convert(given, query, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid("invalid_request", f"query: {error}") from None


async def _decode_body(route: Route, headers: dict[str, str], receive: Receive) -> object:
    if route.body is None:
        return None
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise BodyTooLarge
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise NotJson
    data = await _read_body(receive)
    try:
        return msgspec.json.decode(data, type=route.body)
    except msgspec.ValidationError as error:
        raise Invalid("invalid_request", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None


async def _read_body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("The body was cut off.")
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def send_body(body: object, receive: Receive, send: Send) -> None:
    await _send_response(_encode(Response(body)), receive, send, with_body=True)


async def send_error(error: KedgeError, receive: Receive, send: Send) -> None:
    await _send_response(_encode_error(error), receive, send, with_body=True)


def _encode_error(error: KedgeError) -> Encoded:
    return _encode(Response(error.body, status_of(error), headers_of(error)))


def _encode(response: Response) -> Encoded:
    body = response.body if isinstance(response.body, bytes) else encode(response.body)
    headers = {
        "content-type": response.media_type,
        "content-length": str(len(body)),
        "kedge-version": VERSION,
        **response.headers,
    }
    return Encoded(response.status, headers, body)


async def _send_response(response: Encoded, receive: Receive, send: Send, *, with_body: bool) -> None:
    await send({"type": "http.response.start", "status": response.status, "headers": _raw_headers(response.headers)})
    body = {"type": "http.response.body", "body": response.body if with_body else b""}
    if response.headers.get("connection") == "close":
        await send({**body, "more_body": True})
        await _linger(receive)
        body["body"] = b""
    await send(body)


async def _linger(receive: Receive) -> None:
    """Read on for a while: most clients read the response only after they have sent their whole request."""
    left = 2 * MAX_BODY_BYTES
    try:
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (message := await receive()).get("more_body", False):
                left -= len(message["body"])
    except TimeoutError:
        pass


async def _send_stream(stream: StreamResponse, receive: Receive, send: Send, *, with_body: bool) -> None:
    """Send chunks until the stream ends or the client disconnects. `send` waits for a slow client: nothing piles up."""
    headers = {
        "content-type": stream.media_type,
        "cache-control": "no-store",
        "x-accel-buffering": "no",
        "kedge-version": VERSION,
    }
    await send({"type": "http.response.start", "status": 200, "headers": _raw_headers(headers)})
    if not with_body:
        await send({"type": "http.response.body", "body": b""})
        return
    sending = asyncio.ensure_future(_send_chunks(stream, send))
    disconnecting = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({sending, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sending.cancel()
        disconnecting.cancel()
        results = await asyncio.gather(sending, disconnecting, return_exceptions=True)
    if isinstance(results[0], Exception):
        log.error("a stream broke off", exc_info=results[0])


async def _send_chunks(stream: StreamResponse, send: Send) -> None:
    with stream.while_open:
        async with aclosing(stream.chunks) as chunks:  # removes the feed's reader now, not at garbage collection
            async for chunk in chunks:
                for start in range(0, len(chunk), SLICE_BYTES):
                    piece = chunk[start : start + SLICE_BYTES]
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw_headers(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

"""The ASGI application: finds the route, decodes, calls, encodes. An error in a handler is that request's alone."""

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
from kedge.server.context import Context
from kedge.server.errors import (
    AgentProcess,
    BadRequest,
    BodyTooLarge,
    NoRoute,
    NotAllowed,
    NotJson,
    headers_of,
    status_of,
)
from kedge.server.http import Call, Operation, Reply, Stream
from kedge.version import VERSION

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

T = TypeVar("T")

READ_ONLY = "read_only"  # in the state of a connection: who connected may only read
SLICE_BYTES = 64 * 1024  # what one write may add to the buffer of a client that does not read
LINGER_S = 2.0  # for a client to stop sending what was refused and read why


class Encoded(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Router:
    """Paths are words between slashes; a word in braces matches anything that is not empty."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._by_length: dict[int, list[tuple[list[str], dict[str, Operation]]]] = {}
        for operation in operations:
            words = operation.path.split("/")
            found = self._by_length.setdefault(len(words), [])
            methods = next((methods for known, methods in found if known == words), None)
            if methods is None:
                found.append((words, {operation.method: operation}))
            else:
                methods[operation.method] = operation

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
        given = path.split("/")
        allowed: list[str] = []
        for words, methods in self._by_length.get(len(given), []):
            values = _match(words, given)
            if values is None:
                continue
            if operation := methods.get("GET" if method == "HEAD" else method):
                return operation, values
            # A path can match twice: `prompts/list` is also the prompt named "list".
            allowed = allowed or sorted([*methods, "HEAD"] if "GET" in methods else methods)
        if allowed:
            raise NotAllowed(method, allowed)
        raise NoRoute(path)


def _match(words: list[str], given: list[str]) -> dict[str, str] | None:
    values: dict[str, str] = {}
    for word, value in zip(words, given, strict=True):
        if word.startswith("{") and value:
            values[word[1:-1]] = value
        elif word != value:
            return None
    return values


class Application:
    def __init__(self, context: Context, operations: Iterable[Operation]) -> None:
        self._context = context
        self._router = Router(operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no lifespan, no web sockets
        self._context.metrics.request_began()
        try:
            reply = await self._answer(scope, receive)
            if isinstance(reply, Stream):
                await _send_stream(reply, receive, send, with_body=scope["method"] != "HEAD")
            else:
                await _send_reply(reply, receive, send, with_body=scope["method"] != "HEAD")
        finally:
            self._context.metrics.request_ended()

    async def _answer(self, scope: Scope, receive: Receive) -> Encoded | Stream:
        """The boundary: whatever a handler raises is the answer to this request, and nobody else's trouble."""
        try:
            reply = await self._call(scope, receive)
            return reply if isinstance(reply, Stream) else _encoded(reply)
        except KedgeError as error:
            return _error_reply(error)
        except asyncio.CancelledError:
            if not self._context.engine.is_stopping:
                raise
            return _error_reply(ShuttingDown())  # what the request waited for will not happen in this server any more
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            return _encoded(Reply(ErrorBody("internal", "internal error; the server's log says more"), 500))

    async def _call(self, scope: Scope, receive: Receive) -> Reply | Stream:
        operation, path = self._router.find(scope["method"], scope["path"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if operation.method != "GET" and scope.get("state", {}).get(READ_ONLY):
            raise AgentProcess
        query = None if operation.query is None else decode_query(operation.query, scope["query_string"])
        body = await _decode_body(operation, headers, receive)
        gone = functools.partial(_until_disconnect, receive)
        return await operation.handler(Call(self._context, path, headers, query, body, gone))


def decode_query(query: type[T], query_string: bytes) -> T:
    given = dict(parse_qsl(query_string.decode("latin-1"), keep_blank_values=True))
    try:
        return msgspec.convert(given, query, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid("invalid_request", f"query: {error}") from None


async def _decode_body(operation: Operation, headers: dict[str, str], receive: Receive) -> object:
    if operation.body is None:
        return None
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise BodyTooLarge
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise NotJson
    data = await _read_body(receive)
    try:
        return msgspec.json.decode(data, type=operation.body)
    except msgspec.ValidationError as error:
        raise Invalid("invalid_request", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


async def _read_body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the body was cut off")
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def send_answer(body: object, receive: Receive, send: Send) -> None:
    await _send_reply(_encoded(Reply(body)), receive, send, with_body=True)


async def send_error(error: KedgeError, receive: Receive, send: Send) -> None:
    await _send_reply(_error_reply(error), receive, send, with_body=True)


def _error_reply(error: KedgeError) -> Encoded:
    return _encoded(Reply(error.body, status_of(error), headers_of(error)))


def _encoded(reply: Reply) -> Encoded:
    body = reply.body if isinstance(reply.body, bytes) else encode(reply.body)
    headers = {
        "content-type": reply.media_type,
        "content-length": str(len(body)),
        "kedge-version": VERSION,
        **reply.headers,
    }
    return Encoded(reply.status, headers, body)


async def _send_reply(reply: Encoded, receive: Receive, send: Send, *, with_body: bool) -> None:
    await send({"type": "http.response.start", "status": reply.status, "headers": _raw(reply.headers)})
    body = {"type": "http.response.body", "body": reply.body if with_body else b""}
    if reply.headers.get("connection") == "close":
        await send({**body, "more_body": True})
        await _linger(receive)
        body["body"] = b""
    await send(body)


async def _linger(receive: Receive) -> None:
    """Most clients read the answer only after they sent it all; hung up on at once, they would never learn why."""
    left = 2 * MAX_BODY_BYTES
    try:
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (message := await receive()).get("more_body", False):
                left -= len(message["body"])
    except TimeoutError:
        pass


async def _send_stream(stream: Stream, receive: Receive, send: Send, *, with_body: bool) -> None:
    """Pull and send until the story or the client ends. `send` waits for a slow client, and so nothing piles up."""
    headers = {
        "content-type": stream.media_type,
        "cache-control": "no-store",
        "x-accel-buffering": "no",
        "kedge-version": VERSION,
    }
    await send({"type": "http.response.start", "status": 200, "headers": _raw(headers)})
    if not with_body:
        await send({"type": "http.response.body", "body": b""})
        return
    sending = asyncio.ensure_future(_pump(stream, send))
    leaving = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sending.cancel()
        leaving.cancel()
        results = await asyncio.gather(sending, leaving, return_exceptions=True)
    if isinstance(results[0], Exception):
        log.error("a stream broke off", exc_info=results[0])


async def _pump(stream: Stream, send: Send) -> None:
    with stream.while_open:
        # Closed here, so that the feed forgets this reader now and not at garbage collection.
        async with aclosing(stream.chunks) as chunks:
            async for chunk in chunks:
                for start in range(0, len(chunk), SLICE_BYTES):
                    piece = chunk[start : start + SLICE_BYTES]
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

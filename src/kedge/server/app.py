"""The application: finds the route, decodes the request, calls the handler, encodes the response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import aclosing
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from kedge.protocol.bounds import MAX_BODY_BYTES
from kedge.protocol.errors import ErrorBody, Invalid, KedgeError, NotFound, ShuttingDown
from kedge.protocol.events import encode
from kedge.server.errors import AgentProcess, BadRequest, BodyTooLarge, NotJson, headers_of, status_of
from kedge.server.exchange import Exchange
from kedge.server.http import Context, Request, Response, Route, Router, StreamResponse
from kedge.version import VERSION

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE_BYTES = 64 * 1024  # the most that one write adds to the buffer of a client that does not read
LINGER_S = 2.0  # for a client to stop sending a refused body and to read the response


class Application:
    def __init__(self, context: Context, routes: Iterable[Route]) -> None:
        self._context = context
        self._router = Router(routes)

    async def __call__(self, exchange: Exchange) -> None:
        self._context.metrics.request_began()
        try:
            response = await self._respond(exchange)
            if isinstance(response, StreamResponse):
                await _send_stream(response, exchange)
            else:
                await send_response(response, exchange)
        finally:
            self._context.metrics.request_ended()

    async def _respond(self, exchange: Exchange) -> Response | StreamResponse:
        """The error boundary: whatever a handler raises becomes the response to this one request."""
        try:
            response = await self._handle(exchange)
            if isinstance(response, Response) and not isinstance(response.body, bytes):
                return response._replace(body=encode(response.body))  # what cannot be encoded is an error, too
            return response
        except KedgeError as error:
            return _describe_error(error)
        except asyncio.CancelledError:
            if not self._context.engine.is_stopping:
                raise
            return _describe_error(ShuttingDown())  # the awaited event will not happen in this server any more
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            return Response(ErrorBody("internal", "Internal error. The server's log has the details."), 500)

    async def _handle(self, exchange: Exchange) -> Response | StreamResponse:
        route, path, if_not_found = self._router.find(exchange.method, exchange.path)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.headers}
        if route.method != "GET" and exchange.connection.is_read_only:
            raise AgentProcess
        query = None if route.query is None else decode_query(route.query, exchange.query)
        body = await _decode_body(route, headers, exchange)
        try:
            return await route.handler(Request(self._context, path, headers, query, body, exchange.wait_for_disconnect))
        except NotFound as error:
            raise if_not_found or error from None


def decode_query(query: type[T], query_string: bytes) -> T:
    given = dict(parse_qsl(query_string.decode("latin-1"), keep_blank_values=True))
    try:
        return msgspec.convert(given, query, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid("invalid_request", f"query: {error}") from None


async def _decode_body(route: Route, headers: dict[str, str], exchange: Exchange) -> object:
    if route.body is None:
        return None
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise BodyTooLarge
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise NotJson
    data = await _read_body(exchange)
    try:
        return msgspec.json.decode(data, type=route.body)
    except msgspec.ValidationError as error:
        raise Invalid("invalid_request", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None


async def _read_body(exchange: Exchange) -> bytearray:
    body = bytearray()
    while not exchange.is_body_read:
        piece = await exchange.read()
        if piece is None:
            raise BadRequest("The body was cut off.")
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge
    return body


async def send_error(error: KedgeError, exchange: Exchange) -> None:
    await send_response(_describe_error(error), exchange)


def _describe_error(error: KedgeError) -> Response:
    return Response(error.body, status_of(error), headers_of(error))


async def send_response(response: Response, exchange: Exchange) -> None:
    body = response.body if isinstance(response.body, bytes) else encode(response.body)
    headers = {
        "content-type": response.media_type,
        "content-length": str(len(body)),
        "kedge-version": VERSION,
        **response.headers,
    }
    await exchange.start(response.status, headers)
    if headers.get("connection") == "close":
        await exchange.send(body, is_end=False)
        await _linger(exchange)
        body = b""
    await exchange.send(body, is_end=True)


async def _linger(exchange: Exchange) -> None:
    """Read on for a while: most clients read the response only after they have sent their whole request."""
    left = 2 * MAX_BODY_BYTES
    try:
        async with asyncio.timeout(LINGER_S):
            while left > 0 and not exchange.is_body_read and (piece := await exchange.read()) is not None:
                left -= len(piece)
    except TimeoutError:
        pass


async def _send_stream(stream: StreamResponse, exchange: Exchange) -> None:
    """Send chunks until the stream ends or the client disconnects. `send` waits for a slow client: nothing piles up."""
    headers = {
        "content-type": stream.media_type,
        "cache-control": "no-store",
        "x-accel-buffering": "no",
        "kedge-version": VERSION,
    }
    await exchange.start(200, headers)
    if exchange.method == "HEAD":
        await exchange.send(b"", is_end=True)
        return
    sending = asyncio.ensure_future(_send_chunks(stream, exchange))
    disconnecting = asyncio.ensure_future(exchange.wait_for_disconnect())
    try:
        await asyncio.wait({sending, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sending.cancel()
        disconnecting.cancel()
        results = await asyncio.gather(sending, disconnecting, return_exceptions=True)
    if isinstance(results[0], Exception):
        log.error("a stream broke off", exc_info=results[0])


async def _send_chunks(stream: StreamResponse, exchange: Exchange) -> None:
    with stream.while_open:
        async with aclosing(stream.chunks) as chunks:  # removes the feed's reader now, not at garbage collection
            async for chunk in chunks:
                for start in range(0, len(chunk), SLICE_BYTES):
                    await exchange.send(chunk[start : start + SLICE_BYTES], is_end=False)
    await exchange.send(b"", is_end=True)

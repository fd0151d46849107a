"""The HTTP transport of 2024-11-05, which newer revisions replaced: all answers come on one stream of events.

The server names the address for messages in the first event. Another origin than that of the stream is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urljoin

import msgspec

from kedge.http.client import Response
from kedge.http.connection import InvalidUrl, parse_url
from kedge.jsonrpc.errors import CannotConnect, Disconnected, InvalidAnswer, PeerError
from kedge.jsonrpc.messages import Failure, Listener, Notification, Request, RequestId, Result, decode, encode
from kedge.protocol.sse import SseParser

OPEN_S = 15.0
MAX_EVENT_BYTES = 16 * 1024 * 1024


class Sender(Protocol):
    """Sends HTTP requests with the headers of a server."""

    def send(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        can_resend: bool = False,
        url: str | None = None,
    ) -> contextlib.AbstractAsyncContextManager[Response]: ...


class OldTransport:
    def __init__(self, sender: Sender, url: str, listener: Listener) -> None:
        self._sender = sender
        self._url = url
        self._listener = listener
        self._answers: dict[RequestId, asyncio.Future[msgspec.Raw]] = {}
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the stream. Raises `PeerError` if it does not name an address for messages."""
        self._reading = asyncio.create_task(self._read())
        try:
            async with asyncio.timeout(OPEN_S):
                await asyncio.shield(self._endpoint)
        except TimeoutError:
            raise CannotConnect(f"the server sent no event within {OPEN_S:g} s") from None

    async def request(self, request: Request) -> msgspec.Raw:
        answer = self._answers[request.id] = asyncio.get_running_loop().create_future()
        try:
            await self.post(encode(request))
            return await answer
        except asyncio.CancelledError:
            with contextlib.suppress(PeerError, TimeoutError):
                async with asyncio.timeout(1):
                    await self.post(
                        encode(Notification(method="notifications/cancelled", params={"requestId": request.id}))
                    )
            raise
        finally:
            self._answers.pop(request.id, None)

    async def post(self, body: bytes) -> None:
        url = await asyncio.shield(self._endpoint)
        async with self._sender.send("POST", {"Accept": "application/json"}, body, url=url):
            pass

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._endpoint.done() and not self._endpoint.cancelled():
            self._endpoint.exception()  # so that asyncio does not report it

    async def _read(self) -> None:
        error: PeerError = Disconnected("the server ended its stream")
        try:
            async with self._sender.send("GET", {"Accept": "text/event-stream"}, None, can_resend=True) as response:
                await self._follow(response)
        except PeerError as failure:
            error = failure
        if not self._endpoint.done():
            self._endpoint.set_exception(error)
            return
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        self._listener.on_closed(error)

    async def _follow(self, response: Response) -> None:
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            raise InvalidAnswer("the server offers no stream of events")
        parser = SseParser()
        async with contextlib.aclosing(response.chunks()) as chunks:
            async for chunk in chunks:
                for _, data, name in parser.feed(chunk):
                    if len(data) > MAX_EVENT_BYTES:
                        raise InvalidAnswer(f"the server sent more than {MAX_EVENT_BYTES >> 20} MiB in one event")
                    self._take(name, data)
                if parser.pending_bytes > MAX_EVENT_BYTES:
                    raise InvalidAnswer(f"the server sent more than {MAX_EVENT_BYTES >> 20} MiB in one event")

    def _take(self, name: str, data: bytes) -> None:
        if name == "endpoint":
            if not self._endpoint.done():
                self._endpoint.set_result(self._check_endpoint(data.decode("utf-8", "replace")))
            return
        with contextlib.suppress(InvalidAnswer):
            match decode(data):
                case Notification() as notification:
                    self._listener.on_notification(notification)
                case Request() as request:
                    self._listener.on_request(request, None)
                case Result(id=id, result=result):
                    if (answer := self._answers.get(id)) is not None and not answer.done():
                        answer.set_result(result)
                case Failure(id=id) as failure:
                    if id is not None and (answer := self._answers.get(id)) is not None and not answer.done():
                        answer.set_exception(failure.as_error())

    def _check_endpoint(self, text: str) -> str:
        try:
            url = urljoin(self._url, text.strip())
            is_same = parse_url(url)[0] == parse_url(self._url)[0]
        except (ValueError, InvalidUrl):
            raise InvalidAnswer("the server named no address for messages") from None
        if not is_same:
            raise InvalidAnswer("the server wants messages sent to another server")
        return url

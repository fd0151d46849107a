"""The asynchronous transport: `Transport` for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from kedge.client import server_process
from kedge.client.challenge import Challenge
from kedge.client.environment import ServerLocation
from kedge.client.errors import Dropped, NotAllowed, SpawnFailed
from kedge.client.reconnect import SILENCE_S, ReconnectPolicy, Waiter
from kedge.client.transport import (
    CONNECT_S,
    NO_HEADERS,
    Headers,
    decode_answer,
    make_headers,
    make_unreachable,
    open_connection,
)
from kedge.http.client import HttpClient, Response
from kedge.http.connection import ConnectFailed, Connector, HttpError, Origin, Stream, open_unix_stream
from kedge.protocol.address import AddressError, TcpAddress, UnixAddress, check_peer, check_socket


class AsyncTransport:
    def __init__(self, location: ServerLocation, *, client: str) -> None:
        self.location = location
        self._url = "http://localhost"
        if isinstance(location.address, TcpAddress):
            self._url = f"http://{str(location.address).removeprefix('tcp://')}"
        self._headers = {**make_headers(location, client), "Accept-Encoding": "identity"}
        self._http = HttpClient(self._open_checked, connect_s=CONNECT_S, stall_s=SILENCE_S)

    async def close(self) -> None:
        self._http.close()

    async def call(
        self, method: str, target: str, body: object = None, *, policy: ReconnectPolicy, headers: Headers = NO_HEADERS
    ) -> Any:
        """Send a request until it is answered, so it must be one that may arrive twice. Returns the decoded answer."""
        while True:
            try:
                answer = await self.request(method, target, body, headers)
                policy.record_contact()
                return answer
            except (Dropped, SpawnFailed) as error:
                await self.back_off(policy, error)

    async def back_off(self, policy: ReconnectPolicy, error: Exception) -> None:
        """Wait before the next attempt. Raises `Unreachable` when the policy gives up."""
        delay_s = policy.next_delay_s()
        if delay_s is None:
            raise make_unreachable(self.location, policy, error) from error
        await asyncio.sleep(delay_s)

    async def request(self, method: str, target: str, body: object = None, headers: Headers = NO_HEADERS) -> Any:
        """Send a request once; returns the decoded answer."""
        async with self._send(method, target, body, headers) as response:
            return decode_answer(response.status, await response.read())

    async def stream(self, target: str) -> AsyncGenerator[bytes]:
        """Yield the body of an endless answer as it arrives. Ends by `Dropped`."""
        async with self._send("GET", target) as response:
            if response.status != 200:
                decode_answer(response.status, await response.read())
            async with contextlib.aclosing(response.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
        raise Dropped("the server ended the event stream")

    @contextlib.asynccontextmanager
    async def _send(
        self, method: str, target: str, body: object = None, headers: Headers = NO_HEADERS
    ) -> AsyncGenerator[Response]:
        """Send a request, and start a managed server that is not running."""
        content = None if body is None else msgspec.json.encode(body)
        url, sent = f"{self._url}{target}", {**self._headers, **headers}
        # An undo must not arrive twice. `call` itself sends again what may.
        sending = functools.partial(self._http.send, method, url, sent, content, can_resend=method == "GET")
        try:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    response = await stack.enter_async_context(sending())
                except ConnectFailed:
                    if not self.location.is_managed:
                        raise
                    opener = functools.partial(open_connection, self.location)
                    (await asyncio.to_thread(server_process.start_server, self.location, Waiter(), opener)).close()
                    response = await stack.enter_async_context(sending())
                yield response
        except HttpError as error:
            raise Dropped(str(error)) from error

    async def _open_checked(self, origin: Origin) -> Stream:
        """Open a connection and check that the server is the user's own (P16), as `transport.open_connection` does."""
        address = self.location.address
        try:
            if isinstance(address, UnixAddress):
                check_socket(address)
                stream = await open_unix_stream(address.path)
            else:
                stream = await Connector().open(origin)
        except AddressError as error:
            raise NotAllowed(str(error)) from error
        try:
            if isinstance(address, UnixAddress):
                check_peer(stream.transport.get_extra_info("socket"), address)
            else:
                await self._require_proof(stream)
        except AddressError as error:
            stream.close()
            raise NotAllowed(str(error)) from error
        except BaseException:
            stream.close()
            raise
        return stream

    async def _require_proof(self, stream: Stream) -> None:
        """`HttpClient` bounds the time."""
        challenge = Challenge(self.location, stream.transport.get_extra_info("peername"))
        await stream.write(challenge.request, None)
        while not challenge.feed(await stream.read(None)):
            pass

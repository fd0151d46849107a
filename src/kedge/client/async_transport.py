"""The asynchronous transport, on httpx2: `Transport` for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any, cast

import httpcore2
import httpx2
import msgspec

from kedge.client import server_process
from kedge.client.challenge import Challenge
from kedge.client.environment import ServerLocation
from kedge.client.errors import Dropped, NotAllowed, SpawnFailed
from kedge.client.reconnect import SILENCE_S, ReconnectPolicy, Waiter
from kedge.client.transport import (
    CONNECT_S,
    NO_HEADERS,
    RECEIVE_BYTES,
    Headers,
    decode_answer,
    make_headers,
    make_unreachable,
    open_connection,
)
from kedge.protocol.address import AddressError, UnixAddress, check_peer, check_socket

SocketOptions = Iterable[httpcore2.SOCKET_OPTION]


class AsyncTransport:
    def __init__(self, location: ServerLocation, *, client: str, timeout_s: float = SILENCE_S) -> None:
        self.location = location
        address = location.address
        is_unix = isinstance(address, UnixAddress)
        self._http = httpx2.AsyncClient(
            base_url="http://localhost" if is_unix else f"http://{str(address).removeprefix('tcp://')}",
            headers={**make_headers(location, client), "Accept-Encoding": "identity"},
            transport=_HttpTransport(location),
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S, pool=None),
            trust_env=False,  # no proxy between a client and the user's own server
        )

    async def close(self) -> None:
        await self._http.aclose()

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
        response = await self._send(method, target, body, headers)
        try:
            return decode_answer(response.status_code, await response.aread())
        except httpx2.TransportError as error:
            raise _make_dropped(error) from error
        finally:
            await response.aclose()

    async def stream(self, target: str) -> AsyncGenerator[bytes]:
        """Yield the body of an endless answer as it arrives. Ends by `Dropped`."""
        response = await self._send("GET", target)
        try:
            if response.status_code != 200:
                decode_answer(response.status_code, await response.aread())
            async for chunk in response.aiter_raw():
                yield chunk
        except httpx2.TransportError as error:
            raise _make_dropped(error) from error
        finally:
            await response.aclose()
        raise Dropped("the server ended the event stream")

    async def _send(
        self, method: str, target: str, body: object = None, headers: Headers = NO_HEADERS
    ) -> httpx2.Response:
        content = None if body is None else msgspec.json.encode(body)
        request = self._http.build_request(method, target, content=content, headers=headers)
        try:
            return await self._http.send(request, stream=True)
        except httpx2.ConnectError as error:
            if not self.location.is_managed:
                raise _make_dropped(error) from error
        except httpx2.TransportError as error:
            raise _make_dropped(error) from error
        await asyncio.to_thread(self._start_server)
        try:
            return await self._http.send(request, stream=True)
        except httpx2.TransportError as error:
            raise _make_dropped(error) from error

    def _start_server(self) -> None:
        server_process.start_server(self.location, Waiter(), lambda: open_connection(self.location)).close()


class _HttpTransport(httpx2.AsyncHTTPTransport):
    """httpx2's transport with checked connections and without setting up TLS."""

    def __init__(self, location: ServerLocation) -> None:
        address = location.address
        self._pool = httpcore2.AsyncConnectionPool(
            uds=address.path if isinstance(address, UnixAddress) else None,
            max_connections=None,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_CheckedNetwork(location),
        )


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Checks each new connection before a request is sent on it (P16), as `transport.open_connection` does."""

    def __init__(self, location: ServerLocation) -> None:
        self._location = location
        self._plain = cast(httpcore2.AsyncNetworkBackend, httpcore2.AnyIOBackend())

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's signature
        socket_options: SocketOptions | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        address = UnixAddress(path)
        try:
            check_socket(address)
            stream = await self._plain.connect_unix_socket(path, timeout, socket_options)
            try:
                check_peer(stream.get_extra_info("socket"), address)
            except BaseException:
                await stream.aclose()
                raise
        except AddressError as error:
            raise NotAllowed(str(error)) from error
        except OSError as error:  # the server has stopped meanwhile
            raise httpcore2.ConnectError(str(error)) from error
        return stream

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: SocketOptions | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        stream = await self._plain.connect_tcp(host, port, timeout, local_address, socket_options)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._require_proof(stream)
        except TimeoutError:
            await stream.aclose()
            raise Dropped(f"the server did not prove its identity within {CONNECT_S:.0f} s") from None
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def _require_proof(self, stream: httpcore2.AsyncNetworkStream) -> None:
        challenge = Challenge(self._location, stream.get_extra_info("server_addr"))
        await stream.write(challenge.request)
        while not challenge.feed(await stream.read(RECEIVE_BYTES)):
            pass


def _make_dropped(error: httpx2.TransportError) -> Dropped:
    return Dropped(str(error) or type(error).__name__)

"""The asynchronous transport, on httpx2: the same as `wire`, for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import httpcore2
import httpx2
import msgspec

from kedge.client import server_process
from kedge.client.errors import Dropped, NotAllowed, SpawnFailed
from kedge.client.event_cursor import Story
from kedge.client.reconnect import SILENCE_S, Reconnect
from kedge.client.server_location import Endpoint
from kedge.client.transport import (
    CONNECT_S,
    NO_HEADERS,
    RECEIVE_BYTES,
    Headers,
    answer_of,
    connected,
    headers_for,
    unreachable,
)
from kedge.client.waiter import Waiter
from kedge.protocol.address import AddressError, UnixAddress
from kedge.protocol.peer import check_peer, check_socket

if TYPE_CHECKING:
    from kedge.client.event_cursor import Event


SocketOptions = Iterable[httpcore2.SOCKET_OPTION]


class AsyncWire:
    def __init__(self, endpoint: Endpoint, *, client: str, timeout_s: float = SILENCE_S) -> None:
        self.endpoint = endpoint
        where = endpoint.address
        is_unix = isinstance(where, UnixAddress)
        self._http = httpx2.AsyncClient(
            base_url="http://localhost" if is_unix else f"http://{str(where).removeprefix('tcp://')}",
            headers={**headers_for(endpoint, client), "Accept-Encoding": "identity"},
            transport=_Transport(endpoint),
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S, pool=None),
            trust_env=False,  # a proxy has no business between us and our own server
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def call(
        self, method: str, target: str, body: object = None, *, policy: Reconnect, headers: Headers = NO_HEADERS
    ) -> Any:
        """Ask until there is an answer; the request must be one that may arrive twice."""
        while True:
            try:
                answer = await self.request(method, target, body, headers)
                policy.reached()
                return answer
            except (Dropped, SpawnFailed) as error:
                await self.back_off(policy, error)

    async def back_off(self, policy: Reconnect, error: Exception) -> None:
        delay_s = policy.next_delay_s()
        if delay_s is None:
            raise unreachable(self.endpoint, policy, error) from error
        await asyncio.sleep(delay_s)

    async def request(self, method: str, target: str, body: object = None, headers: Headers = NO_HEADERS) -> Any:
        """One request, once; returns the decoded answer."""
        response = await self._send(method, target, body, headers)
        try:
            return answer_of(response.status_code, await response.aread())
        except httpx2.TransportError as error:
            raise _dropped(error) from error
        finally:
            await response.aclose()

    async def stream(self, target: str) -> AsyncGenerator[bytes]:
        """The body of an endless answer, as it comes. Ends only by `Dropped`."""
        response = await self._send("GET", target)
        try:
            if response.status_code != 200:
                answer_of(response.status_code, await response.aread())
            async for chunk in response.aiter_raw():
                yield chunk
        except httpx2.TransportError as error:
            raise _dropped(error) from error
        finally:
            await response.aclose()
        raise Dropped("the server ended the stream")

    async def follow(
        self, workspace: str, story: Story, take: Callable[[Event, bytes], None], policy: Reconnect
    ) -> AsyncGenerator[None]:
        """Hand every new event to `take`, over as many connections as it takes; yields after each piece that came."""
        while True:
            chunks = self.stream(f"{workspace}/events{story.connect()}")
            try:
                async for chunk in chunks:
                    for event, data in story.feed(chunk):
                        policy.reached() if event["type"] == "connected" else policy.progressed()
                        take(event, data)
                    yield
                    if story.is_rewound:
                        break
            except (Dropped, SpawnFailed) as error:
                await self.back_off(policy, error)
            finally:
                await chunks.aclose()

    async def _send(
        self, method: str, target: str, body: object = None, headers: Headers = NO_HEADERS
    ) -> httpx2.Response:
        content = None if body is None else msgspec.json.encode(body)
        request = self._http.build_request(method, target, content=content, headers=headers)
        try:
            return await self._http.send(request, stream=True)
        except httpx2.ConnectError as error:
            if not self.endpoint.is_ours:
                raise _dropped(error) from error
        except httpx2.TransportError as error:
            raise _dropped(error) from error
        await asyncio.to_thread(self._start)
        try:
            return await self._http.send(request, stream=True)
        except httpx2.TransportError as error:
            raise _dropped(error) from error

    def _start(self) -> None:
        server_process.start(self.endpoint, Waiter(), lambda: connected(self.endpoint)).close()


class _Transport(httpx2.AsyncHTTPTransport):
    """httpx2's own, but for how it connects, and without the set-up of TLS."""

    def __init__(self, endpoint: Endpoint) -> None:
        where = endpoint.address
        self._pool = httpcore2.AsyncConnectionPool(
            uds=where.path if isinstance(where, UnixAddress) else None,
            max_connections=None,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_Network(endpoint),
        )


class _Network(httpcore2.AsyncNetworkBackend):
    """Each new connection is checked before anything of value is sent on it (P16), as `wire.connected` does."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._plain = cast(httpcore2.AsyncNetworkBackend, httpcore2.AnyIOBackend())

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - so it is called by httpcore2
        socket_options: SocketOptions | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        where = UnixAddress(path)
        try:
            check_socket(where)
            stream = await self._plain.connect_unix_socket(path, timeout, socket_options)
            try:
                check_peer(stream.get_extra_info("socket"), where)
            except BaseException:
                await stream.aclose()
                raise
        except AddressError as error:
            raise NotAllowed(str(error)) from error
        except OSError as error:  # the server has left meanwhile
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
                await self._demand_proof(stream)
        except TimeoutError:
            await stream.aclose()
            raise Dropped(f"no proof of the token for {CONNECT_S:.0f} s") from None
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def _demand_proof(self, stream: httpcore2.AsyncNetworkStream) -> None:
        from kedge.client.challenge import Challenge

        challenge = Challenge(self._endpoint, stream.get_extra_info("server_addr"))
        await stream.write(challenge.request)
        while not challenge.feed(await stream.read(RECEIVE_BYTES)):
            pass


def _dropped(error: httpx2.TransportError) -> Dropped:
    return Dropped(str(error) or type(error).__name__)

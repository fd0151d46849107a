"""The asynchronous transport, on httpx2: the same as `wire`, for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from kedge.client import spawn
from kedge.client.endpoint import Endpoint
from kedge.client.errors import Dropped, SpawnFailed
from kedge.client.policy import SILENCE_S, Reconnect
from kedge.client.story import Story
from kedge.client.waiting import Waiter
from kedge.client.wire import CONNECT_S, NO_HEADERS, Headers, answer_of, connected, headers_for, unreachable
from kedge.protocol.address import UnixAddress

if TYPE_CHECKING:
    from kedge.client.story import Event


class AsyncWire:
    def __init__(self, endpoint: Endpoint, *, client: str, timeout_s: float = SILENCE_S) -> None:
        self.endpoint = endpoint
        where = endpoint.address
        is_unix = isinstance(where, UnixAddress)
        self._http = httpx2.AsyncClient(
            base_url="http://localhost" if is_unix else f"http://{str(where).removeprefix('tcp://')}",
            headers={**headers_for(endpoint, client), "Accept-Encoding": "identity"},
            transport=httpx2.AsyncHTTPTransport(uds=where.path if is_unix else None, limits=_UNLIMITED),
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
        spawn.start(self.endpoint, Waiter(), lambda: connected(self.endpoint.address)).close()


_UNLIMITED = httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=5.0)


def _dropped(error: httpx2.TransportError) -> Dropped:
    return Dropped(str(error) or type(error).__name__)

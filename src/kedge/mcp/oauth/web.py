"""Requests to the addresses that an MCP server names for its logins.

A malicious server could name addresses that only this machine or its network can reach. So they are https, or http on
this machine if the MCP server itself is on it, and a server on the internet leads to the internet only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import urlencode, urljoin

import msgspec

from kedge.http.addresses import Address, is_public
from kedge.http.client import HttpClient, Response
from kedge.http.connection import ConnectFailed, Connector, HttpError, InvalidUrl, Origin, Stream, parse_url
from kedge.http.proxy import is_loopback
from kedge.jsonrpc.errors import CannotConnect
from kedge.mcp.connections import find_proxy_for
from kedge.mcp.errors import LoginFailed
from kedge.version import VERSION

REQUEST_S = 20.0
MAX_BODY_BYTES = 512 * 1024
MAX_REDIRECTS = 3
MAX_URL_CHARS = 4_000

T = TypeVar("T")


class LoginWeb:
    """Requests for the login to one MCP server. Raises `LoginFailed` for refused addresses, else `CannotConnect`."""

    def __init__(self, server_url: str) -> None:
        self._is_local = is_loopback(server_url)
        self._connector = _GuardedConnector(parse_url(server_url)[0], is_local=self._is_local)
        self._http = HttpClient(self._connector.open, connect_s=REQUEST_S, stall_s=REQUEST_S)

    def close(self) -> None:
        self._http.close()

    def check_url(self, url: str, what: str) -> str:
        """Return the URL. Raises `LoginFailed` if it may be neither requested nor opened in a browser."""
        try:
            origin, parts = parse_url(url)
        except InvalidUrl:
            raise LoginFailed(f"the server names no usable address for {what}") from None
        is_plain = len(url) <= MAX_URL_CHARS and url.isascii() and url.isprintable() and " " not in url
        if not is_plain or parts.username is not None or parts.password is not None or parts.fragment:
            raise LoginFailed(f"the server names no usable address for {what}")
        if origin.scheme != "https" and not (self._is_local and is_loopback(url)):
            raise LoginFailed(f"the server names an address for {what} that is not https: {origin.host[:100]}")
        return url

    async def get(self, url: str, type: type[T], what: str) -> T | None:
        """Return the decoded document; None if there is none at that address."""
        for _ in range(MAX_REDIRECTS + 1):
            status, body, location = await self._request("GET", self.check_url(url, what), {}, None)
            if status in (301, 302, 303, 307, 308) and location:
                url = urljoin(url, location)
                continue
            if status >= 500:
                raise CannotConnect(f"{parse_url(url)[0].host} answered with status {status}")
            if status != 200:
                return None
            try:
                return msgspec.json.decode(body, type=type)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                return None  # a page for people, or another format
        raise LoginFailed(f"the address for {what} is redirected without end")

    async def post_json(self, url: str, document: object, what: str) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        status, body, _ = await self._request("POST", self.check_url(url, what), headers, msgspec.json.encode(document))
        return status, body

    async def post_form(
        self, url: str, fields: Mapping[str, str], headers: Mapping[str, str], what: str
    ) -> tuple[int, bytes]:
        sent = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        status, body, _ = await self._request("POST", self.check_url(url, what), sent, urlencode(fields).encode())
        return status, body

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, bytes, str]:
        own = {"User-Agent": f"kedge/{VERSION}", "Accept": "application/json", "Accept-Encoding": "identity"}
        host = parse_url(url)[0].host
        try:
            async with (
                asyncio.timeout(REQUEST_S),
                self._http.send(method, url, {**own, **headers}, body, can_resend=method == "GET") as response,
            ):
                return response.status, await _read(response), response.headers.get("location", "")
        except TimeoutError:
            raise CannotConnect(f"{host} did not answer within {REQUEST_S:g} s") from None
        except HttpError as error:
            raise CannotConnect(f"{host} cannot be reached: {error}") from error


async def _read(response: Response) -> bytes:
    body = bytearray()
    async with contextlib.aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise LoginFailed(f"the server answered with more than {MAX_BODY_BYTES >> 10} KiB")
    return bytes(body)


class _GuardedConnector(Connector):
    """Connects to checked addresses alone: a name could resolve to another one a moment later."""

    def __init__(self, server: Origin, *, is_local: bool) -> None:
        super().__init__(find_proxy_for)
        self._server = server
        self._is_local = is_local

    async def open(self, origin: Origin) -> Stream:
        if find_proxy_for(origin):
            return await super().open(origin)  # the proxy resolves the name, in its own network
        found = await _resolve(origin)
        is_internal = self._is_local or any(not is_public(each) for each in await _resolve(self._server))
        for each in found:
            if not (is_public(each) or (is_internal and (self._is_local or not each.is_loopback))):
                raise ConnectFailed(f"{each} is an address of this machine or its network")
        for each in found[:-1]:
            with contextlib.suppress(OSError, ConnectFailed):
                return await self.open_address(origin, str(each))
        return await self.open_address(origin, str(found[-1]))


async def _resolve(origin: Origin) -> list[Address]:
    found = await asyncio.get_running_loop().getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]

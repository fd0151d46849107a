"""HTTP GET, with the address checked at every redirect, bounded in size and time.

Imported at the first fetch, because the HTTP client is slow to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

import httpx2

from kedge.tools.errors import ToolError
from kedge.version import VERSION

MAX_REDIRECTS = 5
CONNECT_S = 10.0
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


class Page:
    """A response whose body has not been read yet."""

    def __init__(self, response: httpx2.Response, url: str) -> None:
        self.url = url
        self.status = response.status_code
        self.media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.charset = response.charset_encoding
        self._response = response

    async def chunks(self, max_bytes: int) -> AsyncGenerator[bytes]:
        """Yield the decompressed body. Raises ToolError over `max_bytes`, because half a file would be misleading."""
        size = 0
        async for chunk in self._response.aiter_bytes():
            size += len(chunk)
            if size > max_bytes:
                raise ToolError(f"{self.url} has more than {max_bytes >> 20} MiB, which is the limit.")
            yield chunk


@contextlib.asynccontextmanager
async def get(
    url: str, *, allow_private: bool, timeout_s: float, headers: Mapping[str, str] = {}
) -> AsyncGenerator[Page]:
    """Send a request and follow redirects within the host. Raises `ToolError`, also at the timeout."""
    try:
        async with asyncio.timeout(timeout_s), await asyncio.to_thread(_client, timeout_s) as client:
            for _ in range(MAX_REDIRECTS + 1):
                target = await resolve_target(url, allow_private=allow_private)
                response = await _send(client, target, headers)
                async with contextlib.aclosing(response):
                    location = response.headers.get("location")
                    if response.is_redirect and location:
                        url = _check_redirect(target, urljoin(target.url, location))
                        continue
                    yield Page(response, target.url)
                    return
            raise ToolError(f"{url} was redirected more than {MAX_REDIRECTS} times.")
    except TimeoutError:
        raise ToolError(f"{url} did not answer in full within {timeout_s:g} s.") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ToolError(f"{url} could not be fetched: {str(error) or type(error).__name__}.") from error


def _check_redirect(target: Target, url: str) -> str:
    """Return the URL of a redirect within the host. Permission was given for that host only."""
    if parse_url(url).hostname != target.parts.hostname:
        raise ToolError(f"{target.url} redirects to {url}, on another host. Fetch that address itself if you need it.")
    return url


async def _send(client: httpx2.AsyncClient, target: Target, headers: Mapping[str, str]) -> httpx2.Response:
    """Send a request to the first reachable address. A proxy resolves the name itself."""
    sent = {"User-Agent": f"kedge/{VERSION}", **headers}
    if any(os.environ.get(name) for name in _PROXIES):
        return await client.send(client.build_request("GET", target.url, headers=sent), stream=True)
    for ip in target.ips[:-1]:
        with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
            return await client.send(_request(client, target, ip, sent), stream=True)
    return await client.send(_request(client, target, target.ips[-1], sent), stream=True)


def _request(client: httpx2.AsyncClient, target: Target, ip: str, headers: dict[str, str]) -> httpx2.Request:
    """Build a request to a checked IP address, with the original host name."""
    host = f"[{ip}]" if ":" in ip else ip
    netloc = host if target.parts.port is None else f"{host}:{target.parts.port}"
    url = target.parts._replace(netloc=netloc, fragment="").geturl()
    name = {"sni_hostname": target.parts.hostname}
    return client.build_request("GET", url, headers={**headers, "Host": target.parts.netloc}, extensions=name)


def _client(timeout_s: float) -> httpx2.AsyncClient:
    """Blocks: loads the certificates."""
    return httpx2.AsyncClient(timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S), follow_redirects=False)


MAX_URL_CHARS = 8_000
_RESOLVE_S = 10.0
# Special-purpose blocks of IANA that some version of `ipaddress` calls global. The few reachable addresses in them
# (anycast of PCP and TURN, AMT, AS112, ORCHID) have no web pages.
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "100.64.0.0/10",  # shared by carriers' customers (RFC 6598)
            "192.0.0.0/24",  # protocol assignments; clouds have their metadata there
            "192.88.99.0/24",  # relays of 6to4, given up
            "2001::/23",  # protocol assignments
            "2001:db8::/32",  # documentation
            "3fff::/20",  # documentation (RFC 9637)
        ),
    )
)
# Other IPv6 addresses are local, or embed an IPv4 address.
_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Target(NamedTuple):
    """A checked URL. Connect to one of `ips`: the name may resolve to another address a moment later."""

    url: str
    parts: SplitResult
    ips: list[str]


def parse_url(url: str) -> SplitResult:
    """Raises ToolError for anything but http and https URLs without credentials."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port  # raises ValueError if invalid
    except ValueError as error:
        raise ToolError(f"{url[:200]!r} is not a URL: {error}.") from error
    if len(url) > MAX_URL_CHARS:
        raise ToolError(f"The address is over {MAX_URL_CHARS} characters long.")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ToolError(f"{url[:200]!r} cannot be fetched; only http:// and https:// can.")
    if parts.username or parts.password:
        raise ToolError("Addresses with a user name or a password in them are not fetched.")
    return parts


async def resolve_target(url: str, *, allow_private: bool) -> Target:
    """Resolve the host name. Raises ToolError unless all its addresses are public (or `allow_private`)."""
    parts = parse_url(url)
    assert parts.hostname is not None
    found = await _look_up(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    if not allow_private and (private := [ip for ip in found if not is_public(ip)]):
        raise ToolError(
            f"{parts.hostname} is {private[0]}, an address of this machine or its network, which is not fetched."
            " The user can allow it with `fetch.allow_private = true` in the configuration."
        )
    return Target(url.strip(), parts, [str(ip) for ip in found])


def is_public(ip: Address) -> bool:
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(ip.ipv4_mapped)
        if ip.sixtofour is not None:
            return is_public(ip.sixtofour)
        if ip.teredo is not None:
            return False
        if ip in _NAT64:
            return is_public(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
        if ip not in _UNICAST:
            return False
    return (
        ip.is_global and not ip.is_multicast and not any(ip in net for net in _NOT_PUBLIC if net.version == ip.version)
    )


async def _look_up(host: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise ToolError(f"{host} could not be looked up in {_RESOLVE_S:.0f} s.") from None
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{host} could not be looked up: {error}.") from error
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]

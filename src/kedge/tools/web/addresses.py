"""Which addresses may be fetched: a page must not lead the agent to what only this machine or its network can reach."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from kedge.tools.errors import ToolError

MAX_URL_CHARS = 8_000
_RESOLVE_S = 10.0
# Blocks of IANA's registries of special-purpose addresses that some version of the library calls global, whole: the few
# addresses in them that are reachable (anycast of PCP and TURN, AMT, AS112, ORCHID) have no pages.
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
# All other IPv6 addresses are some network's own, or hold an IPv4 address that nobody would look at.
_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Target(NamedTuple):
    """An address that was judged: whoever connects goes to one of `ips`, not to what the name means a moment later."""

    url: str
    parts: SplitResult
    ips: list[str]


def checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
        _ = parts.port  # is checked when it is asked for
    except ValueError as error:
        raise ToolError(f"{url[:200]!r} is no address: {error}.") from error
    if len(url) > MAX_URL_CHARS:
        raise ToolError(f"The address is over {MAX_URL_CHARS} characters long.")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ToolError(f"{url[:200]!r} cannot be fetched: only http:// and https:// addresses can.")
    if parts.username or parts.password:
        raise ToolError("Addresses with a user name or a password in them are not fetched.")
    return parts


async def judged(url: str, *, allow_private: bool) -> Target:
    """Resolve and judge. Every address of the name must be public, because any of them might be used."""
    parts = checked_url(url)
    assert parts.hostname is not None
    found = await _addresses(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    if not allow_private and (private := [ip for ip in found if not is_public(ip)]):
        raise ToolError(
            f"{parts.hostname} is {private[0]}, an address inside this machine or its network, which is not fetched."
            " A person can allow it with `fetch.allow_private = true` in the configuration."
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


async def _addresses(host: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise ToolError(f"{host} could not be looked up in {_RESOLVE_S:.0f} s.") from None
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{host} could not be looked up: {error}.") from error
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]

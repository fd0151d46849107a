"""Check of URLs: a page must not lead the agent to servers that only this machine or its network can reach."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from kedge.tools.errors import ToolError

if TYPE_CHECKING:
    from kedge.http.addresses import Address

MAX_URL_CHARS = 8_000
_RESOLVE_S = 10.0


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
    from kedge.http.addresses import is_public  # at its first use

    parts = parse_url(url)
    assert parts.hostname is not None
    found = await _look_up(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    if not allow_private and (private := [ip for ip in found if not is_public(ip)]):
        raise ToolError(
            f"{parts.hostname} is {private[0]}, an address of this machine or its network, which is not fetched.",
            "The user can allow it with `fetch.allow_private = true` in the configuration.",
        )
    return Target(url.strip(), parts, [str(ip) for ip in found])


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

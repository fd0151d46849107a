"""Getting something from the web: judged at every redirect, bounded in size and time.

Imported at the first fetch: its HTTP client costs more than all tools together.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urljoin

import httpx2

from kedge.tools.errors import ToolError
from kedge.tools.web.addresses import Target, checked_url, judged
from kedge.version import VERSION

MAX_REDIRECTS = 5
CONNECT_S = 10.0
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


class Page:
    """An answer whose body is still to be read."""

    def __init__(self, response: httpx2.Response, url: str) -> None:
        self.url = url
        self.status = response.status_code
        self.media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.charset = response.charset_encoding
        self._response = response

    async def chunks(self, max_bytes: int) -> AsyncGenerator[bytes]:
        """The body, decompressed. Over `max_bytes` it is an error: half a file would be a trap."""
        size = 0
        async for chunk in self._response.aiter_bytes():
            size += len(chunk)
            if size > max_bytes:
                raise ToolError(f"{self.url} has more than {max_bytes >> 20} MiB, the most that is taken.")
            yield chunk


@contextlib.asynccontextmanager
async def get(
    url: str, *, allow_private: bool, timeout_s: float, headers: Mapping[str, str] = {}
) -> AsyncGenerator[Page]:
    """Follow redirects, each one judged before it is followed. Raises `ToolError`; ends in time whatever is sent."""
    try:
        async with asyncio.timeout(timeout_s), await asyncio.to_thread(_client, timeout_s) as client:
            for _ in range(MAX_REDIRECTS + 1):
                target = await judged(url, allow_private=allow_private)
                response = await _send(client, target, headers)
                async with contextlib.aclosing(response):
                    where = response.headers.get("location")
                    if response.is_redirect and where:
                        url = _within(target, urljoin(target.url, where))
                        continue
                    yield Page(response, target.url)
                    return
            raise ToolError(f"{url} was redirected more than {MAX_REDIRECTS} times.")
    except TimeoutError:
        raise ToolError(f"{url} did not answer in full within {timeout_s:g} s.") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ToolError(f"{url} could not be fetched: {str(error) or type(error).__name__}.") from error


def _within(target: Target, url: str) -> str:
    """A redirect within the host that was asked for. Leave was given for that one, and rules know only that one."""
    if checked_url(url).hostname != target.parts.hostname:
        raise ToolError(
            f"{target.url} leads to {url}, on another host. Fetch that address itself, if it is what you want."
        )
    return url


async def _send(client: httpx2.AsyncClient, target: Target, headers: Mapping[str, str]) -> httpx2.Response:
    """To the first of its addresses that can be reached; a proxy looks names up by itself."""
    sent = {"User-Agent": f"kedge/{VERSION}", **headers}
    if any(os.environ.get(name) for name in _PROXIES):
        return await client.send(client.build_request("GET", target.url, headers=sent), stream=True)
    for ip in target.ips[:-1]:
        with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
            return await client.send(_request(client, target, ip, sent), stream=True)
    return await client.send(_request(client, target, target.ips[-1], sent), stream=True)


def _request(client: httpx2.AsyncClient, target: Target, ip: str, headers: dict[str, str]) -> httpx2.Request:
    """To the address that was judged, under the name that was asked for."""
    host = f"[{ip}]" if ":" in ip else ip
    place = host if target.parts.port is None else f"{host}:{target.parts.port}"
    url = target.parts._replace(netloc=place, fragment="").geturl()
    name = {"sni_hostname": target.parts.hostname}
    return client.build_request("GET", url, headers={**headers, "Host": target.parts.netloc}, extensions=name)


def _client(timeout_s: float) -> httpx2.AsyncClient:
    """Loads the certificates: not for the loop."""
    return httpx2.AsyncClient(timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S), follow_redirects=False)

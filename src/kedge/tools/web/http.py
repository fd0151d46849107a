"""HTTP GET, with the address checked at every redirect, bounded in size and time.

Imported at the first fetch, because the HTTP client is slow to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urljoin

import httpx2

from kedge.tools.errors import ToolError
from kedge.tools.web.addresses import Target, parse_url, resolve_target
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
        raise ToolError(
            f"{target.url} redirects to {url}, on another host.", "Fetch that address itself if you need it."
        )
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

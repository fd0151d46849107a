"""HTTP GET, with the address checked at every redirect, bounded in size and time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import zlib
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urljoin

from kedge.http.client import HttpClient, Response
from kedge.http.connection import ConnectFailed, Connector, HttpError, Origin, Stream
from kedge.http.proxy import find_proxy
from kedge.tools.errors import ToolError
from kedge.tools.web.addresses import Target, parse_url, resolve_target
from kedge.version import VERSION

MAX_REDIRECTS = 5
CONNECT_S = 10.0
INFLATE_BYTES = 64 * 1024  # decompressed at a time: a small page may contain gigabytes
_find_charset = re.compile(r";\s*charset\s*=\s*[\"']?([^\s;\"']+)", re.IGNORECASE).search
_REDIRECTS = (301, 302, 303, 307, 308)


class Page:
    """A response whose body has not been read yet."""

    def __init__(self, response: Response, url: str) -> None:
        content_type = response.headers.get("content-type", "")
        charset = _find_charset(content_type)
        self.url = url
        self.status = response.status
        self.media_type = content_type.partition(";")[0].strip().lower()
        self.charset = charset and charset[1].lower()
        self._response = response

    async def chunks(self, max_bytes: int) -> AsyncGenerator[bytes]:
        """Yield the decompressed body. Raises ToolError over `max_bytes`, because half a file would be misleading."""
        size = 0
        async with contextlib.aclosing(self._decompress()) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > max_bytes:
                    raise ToolError(f"{self.url} has more than {max_bytes >> 20} MiB, which is the limit.")
                yield chunk

    async def _decompress(self) -> AsyncGenerator[bytes]:
        encoding = self._response.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip"):
            raise ToolError(f"{self.url} is compressed with {encoding[:20]}, which was not asked for.")
        inflate = zlib.decompressobj(wbits=31) if encoding == "gzip" else None  # 31: gzip only
        is_empty = True
        async with contextlib.aclosing(self._response.chunks()) as chunks:
            async for chunk in chunks:
                if inflate is None:
                    yield chunk
                    continue
                is_empty = False
                try:
                    while chunk and not inflate.eof:
                        yield inflate.decompress(chunk, INFLATE_BYTES)
                        chunk = inflate.unconsumed_tail
                except zlib.error as error:
                    raise ToolError(f"{self.url} is not valid gzip: {error}.") from error
                if inflate.eof:
                    return  # the decompressor would keep all data that follows
        if inflate is not None and not is_empty:
            yield inflate.flush()
            if not inflate.eof:
                raise ToolError(f"{self.url} ended in the middle of its gzip data.")


@contextlib.asynccontextmanager
async def get(
    url: str, *, allow_private: bool, timeout_s: float, headers: Mapping[str, str] = {}
) -> AsyncGenerator[Page]:
    """Send a request and follow redirects within the host. Raises `ToolError`, also at the timeout."""
    sent = {"User-Agent": f"kedge/{VERSION}", "Accept": "*/*", "Accept-Encoding": "gzip", **headers}
    connector = _CheckedConnector()
    client = HttpClient(connector.open, connect_s=timeout_s, stall_s=timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(MAX_REDIRECTS + 1):
                connector.target = target = await resolve_target(url, allow_private=allow_private)
                async with client.send("GET", target.url, sent) as response:
                    location = response.headers.get("location")
                    if response.status in _REDIRECTS and location:
                        url = _check_redirect(target, location)
                        continue
                    yield Page(response, target.url)
                    return
            raise ToolError(f"{url} was redirected more than {MAX_REDIRECTS} times.")
    except TimeoutError:
        raise ToolError(f"{url} did not answer in full within {timeout_s:g} s.") from None
    except HttpError as error:
        raise ToolError(f"{url} could not be fetched: {error}.") from error
    finally:
        client.close()


def _check_redirect(target: Target, location: str) -> str:
    """Return the URL of a redirect within the host. Permission was given for that host only."""
    with contextlib.suppress(UnicodeDecodeError):
        location = location.encode("latin-1").decode()  # many servers send UTF-8
    try:
        url = urljoin(target.url, location)
    except ValueError as error:
        raise ToolError(f"{target.url} redirects to {location[:200]!r}, which is not a URL: {error}.") from error
    if parse_url(url).hostname != target.parts.hostname:
        raise ToolError(
            f"{target.url} redirects to {url}, on another host.", "Fetch that address itself if you need it."
        )
    return url


class _CheckedConnector(Connector):
    """Connects to the checked addresses of `target` alone, or to a proxy, which resolves the name itself."""

    target: Target

    def __init__(self) -> None:
        super().__init__(lambda origin: find_proxy(f"{origin.scheme}://{origin.netloc}", os.environ))

    async def open(self, origin: Origin) -> Stream:
        if self._find_proxy(origin):
            return await super().open(origin)
        for ip in self.target.ips[:-1]:
            with contextlib.suppress(OSError, ConnectFailed):
                async with asyncio.timeout(CONNECT_S):
                    return await self.open_address(origin, ip)
        return await self.open_address(origin, self.target.ips[-1])

"""HTTP clients for model APIs, one for each proxy and certificate setting. Their errors become `ModelError`s.

Imported at the first model call: importing httpx2 takes longer than the rest of the server's start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2
import msgspec

from kedge.models.errors import ConfigError, Transient
from kedge.models.proxy import DEFAULT_CONNECTION, ConnectionOptions, is_loopback
from kedge.models.values import HttpRequest

MAX_IDLE_CONNECTIONS = 20  # kept for the next step: a handshake costs more than they do
IDLE_CONNECTION_S = 60.0
MAX_STALE = 3  # idle connections that one request may find closed; a server that always closes is an error
VARIABLES = "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
MAX_CLIENTS = 16  # each takes some hundred KB


class Response:
    """A response whose body is not read yet."""

    def __init__(self, response: httpx2.Response, host: str) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._host = host

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the body as they arrive, not decoded."""
        with _translate_errors(self._host):
            async for chunk in self._response.aiter_raw():
                yield chunk


class LocalSockets(Protocol):
    """Sockets of embedded models (`local://HOST/…`). The model stays loaded while its socket is in use."""

    def using(self, host: str) -> contextlib.AbstractAsyncContextManager[str]: ...


class Transport:
    """One client for each `ConnectionOptions`: runs of different shells must not share proxies or certificates."""

    def __init__(self, connect_s: float, stall_s: float, local: LocalSockets | None = None) -> None:
        self._local = local
        self._timeout = httpx2.Timeout(stall_s, connect=connect_s)
        # The client logs the address of every request, which is private.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        self._clients: dict[ConnectionOptions, _PooledClient] = {}  # least recently used first

    async def warm_up(self, connection: ConnectionOptions = DEFAULT_CONNECTION) -> None:
        """Make the client ahead of the first request."""
        await self._get_client(connection)

    @contextlib.asynccontextmanager
    async def send(
        self, request: HttpRequest, connection: ConnectionOptions = DEFAULT_CONNECTION
    ) -> AsyncGenerator[Response, None]:
        """Send a request. Leaving the context before the body's end closes the connection."""
        async with self._lend_client(request, connection) as (client, url, host):
            with _translate_errors(host):
                async with contextlib.aclosing(await _send(client, request, url)) as response:
                    yield Response(response, host)

    async def close(self) -> None:
        for pooled in self._clients.values():
            await pooled.client.aclose()

    @contextlib.asynccontextmanager
    async def _lend_client(
        self, request: HttpRequest, connection: ConnectionOptions
    ) -> AsyncGenerator[tuple[httpx2.AsyncClient, str, str], None]:
        """Yield the client for a request, the URL for that client, and the name of the host for error messages."""
        parts = urlsplit(request.url)
        if parts.scheme != "local" or self._local is None:
            if not connection.proxy and is_loopback(request.url):
                connection = msgspec.structs.replace(connection, is_direct=True)
            pooled = await self._get_client(connection)
            pooled.users += 1
            try:
                await self._close_unused()
                yield pooled.client, request.url, request.host
            finally:
                pooled.users -= 1
            return
        async with self._local.using(parts.netloc) as socket, _make_local_client(socket, self._timeout) as client:
            yield client, parts._replace(scheme="http", netloc="localhost").geturl(), f"the local model {parts.netloc}"

    async def _get_client(self, connection: ConnectionOptions) -> _PooledClient:
        pooled = self._clients.pop(connection, None)
        if pooled is None:
            made = await asyncio.to_thread(_make_client, connection, self._timeout)  # reads certificates
            pooled = self._clients.pop(connection, None) or made  # another task may have been faster
        self._clients[connection] = pooled
        return pooled

    async def _close_unused(self) -> None:
        """Close unused clients if there are too many. All are removed before the first await."""
        unused = [connection for connection, pooled in self._clients.items() if not pooled.users]
        closing = [self._clients.pop(connection) for connection in unused[: max(0, len(self._clients) - MAX_CLIENTS)]]
        for pooled in closing:
            await pooled.client.aclose()


async def _send(client: httpx2.AsyncClient, request: HttpRequest, url: str) -> httpx2.Response:
    """Send the request, and again at once if an idle connection turns out to be closed.

    A server may close an idle connection while it is being used, and then has not seen the request. A failure on a new
    connection is an error.
    """
    for stale in range(MAX_STALE + 1):
        is_new = False

        async def trace(event: str, _info: dict[str, Any]) -> None:
            nonlocal is_new
            is_new = is_new or ".connect_" in event

        message = client.build_request(
            request.method, url, headers=request.headers, content=request.body, extensions={"trace": trace}
        )
        try:
            return await client.send(message, stream=True)
        except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError) as error:
            if is_new or stale == MAX_STALE or not _is_unanswered(error):
                raise
    raise AssertionError("unreachable")


def _is_unanswered(error: httpx2.TransportError) -> bool:
    """True if the connection was closed before any byte of a response."""
    return not isinstance(error, httpx2.RemoteProtocolError) or "without sending a response" in str(error)


class _PooledClient:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.users = 0


def _make_local_client(socket: str, timeout: httpx2.Timeout) -> httpx2.AsyncClient:
    """Make a client for one request: there is no handshake to save, and the next request may reach another process."""
    transport = httpx2.AsyncHTTPTransport(uds=socket, verify=False)
    return httpx2.AsyncClient(transport=transport, timeout=timeout, trust_env=False)


def _make_client(connection: ConnectionOptions, timeout: httpx2.Timeout) -> _PooledClient:
    limits = httpx2.Limits(max_keepalive_connections=MAX_IDLE_CONNECTIONS, keepalive_expiry=IDLE_CONNECTION_S)
    try:
        verify = _load_certificates(connection)
        client = httpx2.AsyncClient(
            # An explicit transport ignores proxies of the environment.
            transport=httpx2.AsyncHTTPTransport(verify=verify, limits=limits) if connection.is_direct else None,
            proxy=connection.proxy or None,
            verify=verify,
            timeout=timeout,
            limits=limits,
            follow_redirects=False,  # never send an API key to another host
            # One client serves many callers, which must not share cookies.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )
    except (ImportError, OSError) as error:
        raise ConfigError("bad_config", f"Cannot set up HTTPS: {error} (check {VARIABLES})") from error
    except (ValueError, httpx2.InvalidURL):
        # The message may quote a part of the password in the proxy's URL.
        problem = f"The URL of a proxy is not valid (check {VARIABLES})"
        raise ConfigError("bad_config", problem) from None
    return _PooledClient(client)


def _load_certificates(connection: ConnectionOptions) -> ssl.SSLContext | bool:
    """Return True for the certificates of the machine."""
    if not (connection.ca_file or connection.ca_dir or connection.extra_ca_file):
        return True
    if connection.ca_file or connection.ca_dir:
        context = ssl.create_default_context(cafile=connection.ca_file or None, capath=connection.ca_dir or None)
    else:
        context = ssl.create_default_context()
    if connection.extra_ca_file:
        try:
            context.load_verify_locations(cafile=Path(connection.extra_ca_file).expanduser())
        except OSError as error:
            raise ConfigError("bad_config", f"ca_file {connection.extra_ca_file} cannot be read: {error}") from error
    return context


@contextlib.contextmanager
def _translate_errors(host: str) -> Generator[None, None, None]:
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):  # a retry would fail, too
            how = "set SSL_CERT_FILE or providers.NAME.ca_file to the file of its CA"
            raise ConfigError("bad_config", f"The certificate of {host} is not trusted: {error}; {how}") from error
        raise Transient("unreachable", f"Could not reach {host} ({_describe(error)})") from error
    except httpx2.TimeoutException as error:
        raise Transient("stalled", f"{host} sent nothing for too long") from error
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        problem = f"The URL of {host} is not valid: {error}; check base_url, or the *_BASE_URL variable"
        raise ConfigError("bad_config", problem) from error
    except httpx2.TransportError as error:
        raise Transient("dropped", f"{host} closed the connection: {str(error) or type(error).__name__}") from error


def _describe(error: httpx2.TransportError) -> str:
    text = str(error) or "no answer"
    return "no network?" if "Name or service not known" in text or "name resolution" in text.lower() else text

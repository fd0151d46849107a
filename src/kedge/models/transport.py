"""HTTP clients for model APIs, one for each proxy and certificate setting. Their errors become `ModelError`s."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import msgspec

from kedge.http import client, connection
from kedge.http.client import HttpClient
from kedge.http.proxy import DEFAULT_CONNECTION, ConnectionOptions, find_proxy, is_loopback
from kedge.models.errors import ConfigError, Transient
from kedge.models.values import HttpRequest

if TYPE_CHECKING:
    import ssl

VARIABLES = "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
MAX_CLIENTS = 16


class Response:
    """A response whose body is not read yet."""

    def __init__(self, response: client.Response, host: str) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._host = host

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the body as they arrive, not decompressed."""
        with _translate_errors(self._host):
            async for chunk in self._response.chunks():
                yield chunk


class LocalSockets(Protocol):
    """Sockets of embedded models (`local://HOST/…`). The model stays loaded while its socket is in use."""

    def using(self, host: str) -> contextlib.AbstractAsyncContextManager[str]: ...


class Transport:
    """One client for each `ConnectionOptions`: runs of different shells must not share proxies or certificates."""

    def __init__(self, connect_s: float, stall_s: float, local: LocalSockets | None = None) -> None:
        self._connect_s = connect_s
        self._stall_s = stall_s
        self._local = local
        self._clients: dict[ConnectionOptions, _SharedClient] = {}  # least recently used first

    async def warm_up(self, url: str, options: ConnectionOptions = DEFAULT_CONNECTION) -> None:
        """Load the certificates if the URL needs them."""
        if url.startswith("https:"):
            await self._get_client(options).connector.load_tls()

    @contextlib.asynccontextmanager
    async def send(
        self, request: HttpRequest, options: ConnectionOptions = DEFAULT_CONNECTION, stall_s: float | None = None
    ) -> AsyncGenerator[Response, None]:
        """Send a request. Leaving the context before the body's end closes the connection.

        `stall_s` replaces the limit of all requests; `inf` is none.
        """
        async with self._lend_client(request, options) as (http, url, host):
            headers = request.headers
            if "accept" not in map(str.lower, headers):
                headers = {"Accept": "*/*", **headers}
            with _translate_errors(host):
                async with http.send(request.method, url, headers, request.body, stall_s=stall_s) as response:
                    yield Response(response, host)

    def close(self) -> None:
        for shared in self._clients.values():
            shared.http.close()

    @contextlib.asynccontextmanager
    async def _lend_client(
        self, request: HttpRequest, options: ConnectionOptions
    ) -> AsyncGenerator[tuple[HttpClient, str, str], None]:
        """Yield the client for a request, the URL for that client, and the name of the host for error messages."""
        parts = urlsplit(request.url)
        if parts.scheme != "local" or self._local is None:
            if not options.proxy and is_loopback(request.url):
                options = msgspec.structs.replace(options, is_direct=True)
            shared = self._get_client(options)
            shared.users += 1
            try:
                yield shared.http, request.url, request.host
            finally:
                shared.users -= 1
                unused = [options for options, shared in self._clients.items() if not shared.users]
                for each in unused[: max(0, len(self._clients) - MAX_CLIENTS)]:
                    self._clients.pop(each).http.close()
            return
        async with self._local.using(parts.netloc) as socket:
            # For one request: there is no handshake to save, and the next request may reach another process.
            http = HttpClient(
                lambda _: connection.open_unix_stream(socket), connect_s=self._connect_s, stall_s=self._stall_s
            )
            try:
                url = parts._replace(scheme="http", netloc="localhost").geturl()
                yield http, url, f"the local model {parts.netloc}"
            finally:
                http.close()

    def _get_client(self, options: ConnectionOptions) -> _SharedClient:
        shared = self._clients.pop(options, None)
        if shared is None:
            connector = connection.Connector(
                functools.partial(_find_proxy, options), functools.partial(_load_certificates, options)
            )
            http = HttpClient(connector.open, connect_s=self._connect_s, stall_s=self._stall_s)
            shared = _SharedClient(connector, http)
        self._clients[options] = shared
        return shared


class _SharedClient:
    def __init__(self, connector: connection.Connector, http: HttpClient) -> None:
        self.connector = connector
        self.http = http
        self.users = 0


def _find_proxy(options: ConnectionOptions, origin: connection.Origin) -> str:
    if options.is_direct:
        return ""
    proxy = options.proxy or find_proxy(f"{origin.scheme}://{origin.netloc}", os.environ)
    if proxy:
        try:
            connection.parse_proxy(proxy)
        except connection.InvalidUrl as error:
            raise ConfigError("bad_config", f"The proxy cannot be used: {error} (check {VARIABLES})") from None
    return proxy


def _load_certificates(options: ConnectionOptions) -> ssl.SSLContext:
    """Blocks: reads files. The error names the file."""
    try:
        context = connection.load_certificates(options.ca_file, options.ca_dir)
    except (ImportError, OSError) as error:
        raise ConfigError("bad_config", f"Cannot set up HTTPS: {error} (check {VARIABLES})") from error
    if options.extra_ca_file:
        try:
            context.load_verify_locations(cafile=Path(options.extra_ca_file).expanduser())
        except OSError as error:
            raise ConfigError("bad_config", f"ca_file {options.extra_ca_file} cannot be read: {error}") from error
    return context


@contextlib.contextmanager
def _translate_errors(host: str) -> Generator[None, None, None]:
    try:
        yield
    except connection.UntrustedCertificate as error:  # a retry would fail, too
        how = "set SSL_CERT_FILE or providers.NAME.ca_file to the file of its CA"
        raise ConfigError("bad_config", f"The certificate of {host} is not trusted: {error}; {how}") from error
    except connection.ProxyRefused as error:
        raise ConfigError("bad_config", f"Could not reach {host} ({error}); check {VARIABLES}") from error
    except connection.ConnectFailed as error:
        raise Transient("unreachable", f"Could not reach {host} ({_describe(error)})") from error
    except connection.TimedOut as error:
        raise Transient("stalled", f"{host} sent {error}") from error
    except connection.InvalidUrl as error:
        problem = f"The URL of {host} is not valid: {error}; check base_url, or the *_BASE_URL variable"
        raise ConfigError("bad_config", problem) from error
    except connection.InvalidHeader as error:
        problem = f"The request to {host} cannot be sent: {error}; check the API key and providers.NAME.headers"
        raise ConfigError("bad_config", problem) from error
    except connection.HttpError as error:
        raise Transient("dropped", f"{host} closed the connection: {error}") from error


def _describe(error: Exception) -> str:
    text = str(error)
    return "no network?" if "Name or service not known" in text or "name resolution" in text.lower() else text

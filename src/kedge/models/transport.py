"""The one HTTP client of the server, and its errors in our words. Imported at the first model call: it costs more than
the rest of the server's start."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Protocol
from urllib.parse import urlsplit

import httpx2

from kedge.models.errors import ConfigError, Transient
from kedge.models.values import HttpRequest

KEEP_IDLE = 20  # connections kept for the next step; a handshake costs more than they do
KEEP_IDLE_S = 60.0


class Answer:
    """An answer whose body is still to be read."""

    def __init__(self, response: httpx2.Response, host: str) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._host = host

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body's bytes as they arrive, neither decoded nor held back."""
        with _in_our_words(self._host):
            async for chunk in self._response.aiter_raw():
                yield chunk


class Local(Protocol):
    """Who has the models inside (`local://HOST/…`): lends the socket of one that runs."""

    def using(self, host: str) -> contextlib.AbstractAsyncContextManager[str]: ...


class Transport:
    def __init__(self, connect_s: float, stall_s: float, local: Local | None = None) -> None:
        self._local = local
        self._timeout = httpx2.Timeout(stall_s, connect=connect_s)
        # The client tells of every request, with its address: that is a user's business, not the log's.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        try:
            self._client = _new_client(self._timeout)
        except (ImportError, ValueError, OSError, httpx2.InvalidURL) as error:
            variables = "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
            raise ConfigError("bad_config", f"no way out to a model: {error} (check {variables})") from error

    @contextlib.asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncGenerator[Answer, None]:
        """Leaving it before the body's end closes the connection."""
        async with self._way(request) as (client, url, host):
            with _in_our_words(host):
                async with client.stream(
                    request.method, url, headers=request.headers, content=request.body
                ) as response:
                    yield Answer(response, host)

    async def close(self) -> None:
        await self._client.aclose()

    @contextlib.asynccontextmanager
    async def _way(self, request: HttpRequest) -> AsyncGenerator[tuple[httpx2.AsyncClient, str, str], None]:
        """The client for a request, the address as it knows it, and who is there, for people."""
        parts = urlsplit(request.url)
        if parts.scheme != "local" or self._local is None:
            yield self._client, request.url, request.host
            return
        async with self._local.using(parts.netloc) as socket, _new_local_client(socket, self._timeout) as client:
            yield client, parts._replace(scheme="http", netloc="localhost").geturl(), f"the local model {parts.netloc}"


def _new_local_client(socket: str, timeout: httpx2.Timeout) -> httpx2.AsyncClient:
    """For one request: there is no handshake to save, and the next one may find another process."""
    way = httpx2.AsyncHTTPTransport(uds=socket, verify=False)
    return httpx2.AsyncClient(transport=way, timeout=timeout, trust_env=False)


def _new_client(timeout: httpx2.Timeout) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        timeout=timeout,
        limits=httpx2.Limits(max_keepalive_connections=KEEP_IDLE, keepalive_expiry=KEEP_IDLE_S),
        follow_redirects=False,  # a key goes where it was meant to go, and nowhere else
        # One client serves many callers: nothing is carried from one to another.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )


@contextlib.contextmanager
def _in_our_words(host: str) -> Generator[None, None, None]:
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
        raise Transient("unreachable", f"cannot reach {host}: {str(error) or 'no answer'}") from error
    except httpx2.TimeoutException as error:
        raise Transient("stalled", f"{host} was silent for too long") from error
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        problem = f"the address of {host} cannot be used: {error}; check base_url, or the *_BASE_URL variable"
        raise ConfigError("bad_config", problem) from error
    except httpx2.TransportError as error:
        raise Transient("dropped", f"{host} broke the connection: {str(error) or type(error).__name__}") from error

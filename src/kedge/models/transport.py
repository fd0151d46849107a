"""The HTTP clients of the server, and their errors in our words. Imported at the first model call: it costs more than
the rest of the server's start."""

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
from kedge.models.proxy import ANY_WAY, Way, is_loopback
from kedge.models.values import HttpRequest

KEEP_IDLE = 20  # connections kept for the next step; a handshake costs more than they do
KEEP_IDLE_S = 60.0
MAX_STALE = 3  # kept connections that one request may find closed; a server that always hangs up is a fault
VARIABLES = "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
MAX_WAYS = 16  # clients with a proxy or certificates of their own; each holds some hundred KB


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
    """One client for each way out: what runs of one shell share, others may not."""

    def __init__(self, connect_s: float, stall_s: float, local: Local | None = None) -> None:
        self._local = local
        self._timeout = httpx2.Timeout(stall_s, connect=connect_s)
        # The client tells of every request, with its address: that is a user's business, not the log's.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        self._clients: dict[Way, _Client] = {}  # the one that was asked for last comes last

    async def warm_up(self, way: Way = ANY_WAY) -> None:
        """Have the client for that way; without one, that which most runs use."""
        await self._known(way)

    @contextlib.asynccontextmanager
    async def send(self, request: HttpRequest, way: Way = ANY_WAY) -> AsyncGenerator[Answer, None]:
        """Leaving it before the body's end closes the connection."""
        async with self._client_for(request, way) as (client, url, host):
            with _in_our_words(host):
                async with contextlib.aclosing(await _send(client, request, url)) as response:
                    yield Answer(response, host)

    async def close(self) -> None:
        for each in self._clients.values():
            await each.client.aclose()

    @contextlib.asynccontextmanager
    async def _client_for(
        self, request: HttpRequest, way: Way
    ) -> AsyncGenerator[tuple[httpx2.AsyncClient, str, str], None]:
        """The client for a request, the address as it knows it, and who is there, for people."""
        parts = urlsplit(request.url)
        if parts.scheme != "local" or self._local is None:
            if not way.proxy and is_loopback(request.url):
                way = msgspec.structs.replace(way, is_direct=True)
            known = await self._known(way)
            known.users += 1
            try:
                await self._give_up_idle()
                yield known.client, request.url, request.host
            finally:
                known.users -= 1
            return
        async with self._local.using(parts.netloc) as socket, _new_local_client(socket, self._timeout) as client:
            yield client, parts._replace(scheme="http", netloc="localhost").geturl(), f"the local model {parts.netloc}"

    async def _known(self, way: Way) -> _Client:
        """The client of a way, made if need be."""
        known = self._clients.pop(way, None)
        if known is None:
            made = await asyncio.to_thread(_new_client, way, self._timeout)  # certificates take some milliseconds
            known = self._clients.pop(way, None) or made  # somebody may have been quicker
        self._clients[way] = known
        return known

    async def _give_up_idle(self) -> None:
        """Ways that nobody uses go when there are too many. All are taken out before the first one is waited for."""
        idle = [way for way, each in self._clients.items() if not each.users]
        given_up = [self._clients.pop(way) for way in idle[: max(0, len(self._clients) - MAX_WAYS)]]
        for each in given_up:
            await each.client.aclose()


async def _send(client: httpx2.AsyncClient, request: HttpRequest, url: str) -> httpx2.Response:
    """Send it, and again at once where a kept connection turns out to be closed: a server may close an idle one at the
    moment in which it is used, and then has not seen the request. What fails on a new connection is a fault."""
    for stale in range(MAX_STALE + 1):
        is_new = False

        async def watch(event: str, _info: dict[str, Any]) -> None:
            nonlocal is_new
            is_new = is_new or ".connect_" in event

        sent = client.build_request(
            request.method, url, headers=request.headers, content=request.body, extensions={"trace": watch}
        )
        try:
            return await client.send(sent, stream=True)
        except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError) as error:
            if is_new or stale == MAX_STALE or not _is_unanswered(error):
                raise
    raise AssertionError("unreachable")


def _is_unanswered(error: httpx2.TransportError) -> bool:
    """Whether the connection was closed before anything of an answer came."""
    return not isinstance(error, httpx2.RemoteProtocolError) or "without sending a response" in str(error)


class _Client:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.users = 0


def _new_local_client(socket: str, timeout: httpx2.Timeout) -> httpx2.AsyncClient:
    """For one request: there is no handshake to save, and the next one may find another process."""
    way = httpx2.AsyncHTTPTransport(uds=socket, verify=False)
    return httpx2.AsyncClient(transport=way, timeout=timeout, trust_env=False)


def _new_client(way: Way, timeout: httpx2.Timeout) -> _Client:
    limits = httpx2.Limits(max_keepalive_connections=KEEP_IDLE, keepalive_expiry=KEEP_IDLE_S)
    try:
        verify = _certificates(way)
        client = httpx2.AsyncClient(
            # A transport of one's own takes no proxy from the environment.
            transport=httpx2.AsyncHTTPTransport(verify=verify, limits=limits) if way.is_direct else None,
            proxy=way.proxy or None,
            verify=verify,
            timeout=timeout,
            limits=limits,
            follow_redirects=False,  # a key goes where it was meant to go, and nowhere else
            # One client serves many callers: nothing is carried from one to another.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )
    except (ImportError, OSError) as error:
        raise ConfigError("bad_config", f"no way out to a model: {error} (check {VARIABLES})") from error
    except (ValueError, httpx2.InvalidURL):
        # What it says of a proxy's address may be a piece of the password in it.
        problem = f"no way out to a model: a proxy's address cannot be used (check {VARIABLES})"
        raise ConfigError("bad_config", problem) from None
    return _Client(client)


def _certificates(way: Way) -> ssl.SSLContext | bool:
    """True: those that the machine believes."""
    if not (way.ca_file or way.ca_dir or way.extra_ca_file):
        return True
    if way.ca_file or way.ca_dir:
        context = ssl.create_default_context(cafile=way.ca_file or None, capath=way.ca_dir or None)
    else:
        context = ssl.create_default_context()
    if way.extra_ca_file:
        try:
            context.load_verify_locations(cafile=Path(way.extra_ca_file).expanduser())
        except OSError as error:
            raise ConfigError("bad_config", f"ca_file {way.extra_ca_file} cannot be used: {error}") from error
    return context


@contextlib.contextmanager
def _in_our_words(host: str) -> Generator[None, None, None]:
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):  # and will again
            how = "name the file of who signed it with SSL_CERT_FILE, or providers.NAME.ca_file"
            raise ConfigError("bad_config", f"the certificate of {host} is not believed: {error}; {how}") from error
        raise Transient("unreachable", f"cannot reach {host}: {str(error) or 'no answer'}") from error
    except httpx2.TimeoutException as error:
        raise Transient("stalled", f"{host} was silent for too long") from error
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        problem = f"the address of {host} cannot be used: {error}; check base_url, or the *_BASE_URL variable"
        raise ConfigError("bad_config", problem) from error
    except httpx2.TransportError as error:
        raise Transient("dropped", f"{host} broke the connection: {str(error) or type(error).__name__}") from error

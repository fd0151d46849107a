"""The HTTP transport of MCP: one POST for each message, answered with JSON or with a stream of events.

Both eras share it. The modern one has no session; closing the stream of a request cancels it. The legacy one has a
session, a stream for what the server sends on its own, and streams that continue after a disconnect.

The address is the user's, and everything else comes from the server: sizes are bounded, redirects stay on its origin,
and credentials are sent to that origin only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
from typing import Any, NoReturn, Protocol
from urllib.parse import urljoin, urlsplit

import msgspec

from kedge.http.client import HttpClient, Response
from kedge.http.connection import (
    ConnectFailed,
    HttpError,
    InvalidHeader,
    InvalidUrl,
    parse_url,
)
from kedge.jsonrpc.errors import CannotConnect, Disconnected, InvalidAnswer, PeerError, TimedOut
from kedge.jsonrpc.messages import (
    Failure,
    Json,
    Listener,
    Message,
    Notification,
    Request,
    RequestId,
    Result,
    decode,
    encode,
)
from kedge.mcp.connections import CONNECT_S, make_http_client
from kedge.mcp.errors import HttpRefused, LoginRequired
from kedge.mcp.http_headers import (
    HeaderParam,
    InvalidSchema,
    find_header_params,
    list_param_headers,
    list_request_headers,
)
from kedge.mcp.messages import META_VERSION, ToolInfo
from kedge.mcp.old_sse import OldTransport
from kedge.protocol.sse import SseParser
from kedge.version import VERSION

log = logging.getLogger(__name__)

PROBE_S = 20.0  # HTTP servers answer what they do not know
GOODBYE_S = 2.0  # for messages that end something; the server may be gone
MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # an answer, or one event of a stream
MAX_STREAM_BYTES = 256 * 1024 * 1024  # all events of one stream
MAX_ERROR_BYTES = 64 * 1024  # of the body of an error
MAX_REDIRECTS = 3
MAX_RESUMES = 20  # of one stream without a message in between
RESUME_S = 1.0
MAX_RESUME_S = 30.0
LISTEN_AGAIN_S = (1.0, 5.0, 30.0, 120.0)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ACCEPT = "application/json, text/event-stream"
# Headers that belong to the protocol, and cannot be configured.
_RESERVED = re.compile(
    r"accept|accept-encoding|connection|content-(type|length)|transfer-encoding|last-event-id"
    r"|mcp-(protocol-version|method|name|session-id|param-.*)",
    re.IGNORECASE,
)
# May arrive twice: they change nothing.
_REPEATABLE = frozenset({"initialize", "server/discover", "ping"})


class Authorization(Protocol):
    """Gives the requests to one server their token."""

    async def get_header(self) -> str | None:
        """Return the value of `Authorization`, None without a token. Raises `LoginRequired` or `CannotConnect`."""
        ...

    async def renew(self, status: int, challenge: str, used: str | None) -> None:
        """Get another token after a 401 or 403 with this `WWW-Authenticate`. Returns if a retry may help.

        Raises `LoginRequired` if a person must log in.
        """


class HttpTransport:
    """Implements `kedge.mcp.port.Transport`."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        authorization: Authorization | None = None,
        http: HttpClient | None = None,
    ) -> None:
        """`authorization` is not used if `headers` have one."""
        headers = {name: value for name, value in headers.items() if not _RESERVED.fullmatch(name)}
        names = {name.lower() for name in headers}
        self._url = url
        self._own_headers = {
            **headers,
            **({} if "user-agent" in names else {"User-Agent": f"kedge/{VERSION}"}),
            "Accept-Encoding": "identity",
        }
        self._authorization = None if "authorization" in names else authorization
        self._http = http or make_http_client()
        self._host = urlsplit(url).netloc.rpartition("@")[2]
        self._listener: Listener | None = None
        self._version = ""  # of the legacy era
        self._session_id: str | None = None
        self._old: OldTransport | None = None
        self._has_ended = False
        self._header_params: dict[str, list[HeaderParam]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def probe_timeout_s(self) -> float:
        return PROBE_S

    async def open(self, listener: Listener) -> None:
        self._listener = listener
        try:
            parse_url(self._url)
        except InvalidUrl as error:
            raise CannotConnect(f"the address cannot be used: {error}") from None

    async def request(self, request: Request) -> msgspec.Raw:
        if self._old is not None:
            return await self._old.request(request)
        headers = {"Accept": _ACCEPT, **self._list_message_headers(request.method, request.params)}
        can_resend = request.method in _REPEATABLE or request.method.endswith("/list")
        try:
            async with self.send("POST", headers, encode(request), can_resend=can_resend) as response:
                if request.method == "initialize":
                    self._session_id = response.headers.get("mcp-session-id")
                return await self._read_result(request, response)
        except HttpRefused as error:
            if request.method != "initialize" or error.status not in (400, 404, 405):
                raise
            return await self._initialize_old(request, error)
        except asyncio.CancelledError:
            if self._is_legacy(request.params) and request.method != "initialize":
                self._start(self._say_goodbye("POST", _encode_cancel(request.id)))
            raise

    async def notify(self, notification: Notification) -> None:
        await self._post(notification.method, notification.params, encode(notification))
        if notification.method == "notifications/initialized" and self._old is None:
            self._start(self._listen())

    async def respond(self, response: Result | Failure) -> None:
        await self._post("", {}, encode(response))

    def use_version(self, version: str) -> None:
        self._version = version

    def filter_tools(self, tools: Sequence[ToolInfo]) -> list[ToolInfo]:
        usable: list[ToolInfo] = []
        self._header_params.clear()
        for tool in tools:
            try:
                params = find_header_params(tool)
            except InvalidSchema as error:
                log.warning("tool %s of %s is left out: %s", ascii(tool.name[:100]), self._host, error)
                continue
            if params:
                self._header_params[tool.name] = params
            usable.append(tool)
        return usable

    async def close(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._old is not None:
            await self._old.close()
        if self._session_id is not None:
            await self._say_goodbye("DELETE", None)
        self._http.close()

    async def _initialize_old(self, request: Request, refusal: HttpRefused) -> msgspec.Raw:
        """Try the transport of 2024-11-05, whose servers refuse every POST to this address."""
        assert self._listener is not None
        old = OldTransport(self, self._url, self._listener)
        try:
            await old.open()
        except PeerError:
            await old.close()
            raise refusal from None
        self._old = old
        return await old.request(request)

    # --- requests

    def _is_legacy(self, params: Json) -> bool:
        return META_VERSION not in params.get("_meta", {})

    def _list_message_headers(self, method: str, params: Json) -> dict[str, str]:
        if not self._is_legacy(params):
            headers = {
                "MCP-Protocol-Version": str(params["_meta"][META_VERSION]),
                **list_request_headers(method, params),
            }
            if method == "tools/call":
                named = self._header_params.get(str(params.get("name")), ())
                headers |= list_param_headers(named, params.get("arguments"))
            return headers
        return self._list_session_headers() if method != "initialize" else {}

    def _list_session_headers(self) -> dict[str, str]:
        headers = {"MCP-Protocol-Version": self._version} if self._version else {}
        return headers if self._session_id is None else {**headers, "Mcp-Session-Id": self._session_id}

    async def _post(self, method: str, params: Json, body: bytes) -> None:
        if self._old is not None:
            await self._old.post(body)
            return
        headers = {"Accept": _ACCEPT, **self._list_message_headers(method, params)}
        try:
            async with asyncio.timeout(CONNECT_S), self.send("POST", headers, body):
                pass
        except TimeoutError:
            raise TimedOut(f"{self._host} took no message within {CONNECT_S:g} s") from None

    @contextlib.asynccontextmanager
    async def send(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        can_resend: bool = False,
        url: str | None = None,
    ) -> AsyncGenerator[Response]:
        """Send a request and yield its answer, which is a success. Raises `PeerError`."""
        sent = {**self._own_headers, **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
        is_renewed = False
        redirects = 0
        while True:
            token = None if self._authorization is None else await self._authorization.get_header()
            if token is not None:
                sent["Authorization"] = token
            challenge, status = "", 0
            with self._translate_errors():
                async with self._http.send(
                    method, url or self._url, sent, body, can_resend=can_resend, stall_s=math.inf
                ) as response:
                    status = response.status
                    if status in _REDIRECTS:
                        redirects += 1
                        self._follow(response, redirects)
                        continue
                    if 200 <= status < 300:
                        yield response
                        return
                    challenge = response.headers.get("www-authenticate", "")
                    if not (status == 401 or (status == 403 and "insufficient_scope" in challenge)):
                        await self._raise_refusal(response, is_in_session="Mcp-Session-Id" in sent)
            if self._authorization is None:
                raise HttpRefused(f"{self._host} refuses the configured headers (status {status})", status)
            if is_renewed:
                raise LoginRequired(f"{self._host} refuses the token it was given")
            try:
                await self._authorization.renew(status, challenge, token)
            except LoginRequired as error:
                if status == 401 and self._listener is not None:  # nothing works without another login
                    self._listener.on_closed(error)
                raise
            is_renewed = True

    def _follow(self, response: Response, redirects: int) -> None:
        """Use the address of a redirect from now on. Another origin gets neither headers nor prompts."""
        try:
            url = urljoin(self._url, response.headers.get("location", ""))
            is_same = parse_url(url)[0] == parse_url(self._url)[0]
        except (ValueError, InvalidUrl):
            raise InvalidAnswer(f"{self._host} redirects to something that is no address") from None
        if not is_same:
            other = urlsplit(url)
            hint = "if you trust that address, set it as url"
            raise HttpRefused(
                f"{self._host} redirects to {other.scheme}://{other.netloc[:200]}; {hint}", response.status
            )
        if redirects > MAX_REDIRECTS or response.status in (301, 302, 303):
            raise HttpRefused(
                f"{self._host} redirects without end, or in a way that loses the request", response.status
            )
        self._url = url

    async def _raise_refusal(self, response: Response, *, is_in_session: bool) -> NoReturn:
        """Raise what an error status means."""
        body = b""
        with contextlib.suppress(InvalidAnswer):
            async with asyncio.timeout(CONNECT_S):
                body = await _read(response, MAX_ERROR_BYTES)
        with contextlib.suppress(InvalidAnswer):
            message = decode(body)
            if isinstance(message, Failure) and not (response.status == 404 and is_in_session):
                raise message.as_error()
        if response.status == 404 and is_in_session:
            error = Disconnected(f"{self._host} has ended the session")
            self._session_id = None
            if self._listener is not None:
                self._listener.on_closed(error)
            raise CannotConnect(f"{self._host} has ended the session; the request was not executed")
        raise HttpRefused(f"{self._host} answered with status {response.status}", response.status)

    @contextlib.contextmanager
    def _translate_errors(self) -> Generator[None]:
        try:
            yield
        except (ConnectFailed, InvalidUrl, InvalidHeader) as error:
            raise CannotConnect(f"{self._host} cannot be reached: {error}") from error
        except HttpError as error:
            raise Disconnected(f"{self._host} closed the connection: {error}") from error

    # --- answers

    async def _read_result(self, request: Request, response: Response) -> msgspec.Raw:
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type == "text/event-stream":
            return await self._read_stream(request, response)
        if media_type != "application/json":
            shown = media_type[:60] or "no type"
            raise InvalidAnswer(
                f"{self._host} answered with {shown.encode('ascii', 'replace').decode()}, not with JSON"
            )
        with self._translate_errors():
            message = decode(await _read(response, MAX_MESSAGE_BYTES))
        if (result := _take_result(message, request.id)) is None:
            raise InvalidAnswer(f"{self._host} answered another request")
        return result

    async def _read_stream(self, request: Request, response: Response) -> msgspec.Raw:
        """Return the result from the stream of a request. In the legacy era the stream may continue in another one."""
        position = _Position()
        with contextlib.suppress(Disconnected):
            if (result := await self._follow_events(response, position, request.id)) is not None:
                return result
        while position.event_id and self._is_legacy(request.params) and position.resumes < MAX_RESUMES:
            position.resumes += 1
            await asyncio.sleep(position.delay_s)
            headers = {
                "Accept": "text/event-stream",
                "Last-Event-ID": position.event_id,
                **self._list_session_headers(),
            }
            with contextlib.suppress(Disconnected, CannotConnect):
                async with self.send("GET", headers, None, can_resend=True) as resumed:
                    if (result := await self._follow_events(resumed, position, request.id)) is not None:
                        return result
        raise Disconnected(f"{self._host} ended its answer before the result")

    async def _follow_events(self, response: Response, position: _Position, id: RequestId | None) -> msgspec.Raw | None:
        """Take the events of a stream. Return the result of the request `id`, None at the end of the stream."""
        parser = SseParser()
        size = 0
        with self._translate_errors():
            async with contextlib.aclosing(response.chunks()) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    for event_id, data, name in parser.feed(chunk):
                        position.event_id = event_id or position.event_id
                        if name not in ("", "message") or not data:
                            continue
                        position.resumes = 0
                        if (result := self.take(data, id)) is not None:
                            return result
                    position.retry_ms = parser.retry_ms
                    if parser.pending_bytes > MAX_MESSAGE_BYTES or size > MAX_STREAM_BYTES:
                        raise InvalidAnswer(f"{self._host} sent more than {MAX_MESSAGE_BYTES >> 20} MiB in one answer")
        return None

    def take(self, data: bytes, id: RequestId | None) -> msgspec.Raw | None:
        assert self._listener is not None
        if len(data) > MAX_MESSAGE_BYTES:
            raise InvalidAnswer(f"{self._host} sent more than {MAX_MESSAGE_BYTES >> 20} MiB in one message")
        try:
            message = decode(data)
        except InvalidAnswer:
            log.warning("%s sent an event that is no message", self._host)
            return None
        match message:
            case Notification():
                self._listener.on_notification(message)
            case Request():
                self._listener.on_request(message, id)
            case _ if id is not None:
                return _take_result(message, id)
            case _:
                pass
        return None

    # --- what happens beside the requests

    async def _listen(self) -> None:
        """Legacy era: take what the server sends on its own, on a stream that not every server offers."""
        position = _Position()
        failures = 0
        while failures < len(LISTEN_AGAIN_S):
            headers = {"Accept": "text/event-stream", **self._list_session_headers()}
            if position.event_id:
                headers["Last-Event-ID"] = position.event_id
            try:
                async with self.send("GET", headers, None, can_resend=True) as response:
                    if not response.headers.get("content-type", "").startswith("text/event-stream"):
                        return
                    failures = 0
                    await self._follow_events(response, position, None)
            except (HttpRefused, LoginRequired, InvalidAnswer):
                return
            except PeerError:
                pass
            delay_s = max(LISTEN_AGAIN_S[failures], position.delay_s)
            failures += 1
            await asyncio.sleep(delay_s)

    async def _say_goodbye(self, method: str, body: bytes | None) -> None:
        with contextlib.suppress(PeerError, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                async with self.send(method, {"Accept": _ACCEPT, **self._list_session_headers()}, body):
                    pass

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _take_result(message: Message, id: RequestId) -> msgspec.Raw | None:
    """Return the result if the message answers this request. Raises `RpcError`."""
    match message:
        case Result() if message.id == id:
            return message.result
        case Failure() if message.id in (id, None):
            raise message.as_error()
        case _:
            return None


def _encode_cancel(id: RequestId) -> bytes:
    return encode(Notification(method="notifications/cancelled", params={"requestId": id}))


async def _read(response: Response, max_bytes: int) -> bytes:
    body = bytearray()
    async with contextlib.aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > max_bytes:
                raise InvalidAnswer(f"the server's answer is over {max_bytes >> 10} KiB")
    return bytes(body)


class _Position:
    """Where a stream is, to continue it."""

    def __init__(self) -> None:
        self.event_id: str | None = None
        self.retry_ms: int | None = None
        self.resumes = 0

    @property
    def delay_s(self) -> float:
        return RESUME_S if self.retry_ms is None else min(self.retry_ms / 1000, MAX_RESUME_S)

"""A connection to one MCP server: chooses the protocol's era, sends requests, and gets what the server says by itself.

It does no IO but through its `Transport`. Ids are never used twice, and each answer has a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from kedge.jsonrpc.errors import (
    METHOD_NOT_FOUND,
    CannotConnect,
    Disconnected,
    InvalidAnswer,
    PeerError,
    RpcError,
    TimedOut,
)
from kedge.jsonrpc.messages import ErrorBody, Failure, Json, Notification, Request, RequestId, Result
from kedge.mcp.errors import HEADER_MISMATCH, MODERN_CODES, UNSUPPORTED_VERSION, HttpRefused
from kedge.mcp.messages import (
    CLIENT_INFO,
    LEGACY,
    LEGACY_VERSIONS,
    META_SERVER,
    MODERN,
    MODERN_VERSIONS,
    CallResult,
    DiscoverResult,
    Era,
    Implementation,
    InitializeResult,
    InputRequest,
    PromptInfo,
    PromptPage,
    PromptResult,
    ResourceInfo,
    ResourcePage,
    ResourceResult,
    ResourceTemplate,
    ResourceTemplatePage,
    ServerCapabilities,
    TaskState,
    ToolInfo,
    ToolPage,
    client_capabilities,
    modern_meta,
)
from kedge.mcp.port import Transport

T = TypeVar("T")

# A server that `npx` or `uvx` downloads first needs this long; nothing waits for it.
CONNECT_S = 120.0
TIMEOUT_S = 60.0  # for an answer; news of progress start the time again
MAX_TIMEOUTS = 30  # so often at most
LIST_S = 30.0
MAX_PAGES = 100
MAX_ITEMS = 2_000  # tools, prompts, resources of a server: the rest is not seen
# A stream for changes that broke is opened again, the later the more often it broke.
LISTEN_AGAIN_S = (1.0, 5.0, 30.0, 120.0)
_PROBE_REFUSED = frozenset({400, 404, 405, 406, 415, 422, 501})  # by servers that do not know the modern era
_RESULT_TYPES = frozenset({"complete", "input_required", "task"})
CHANGES = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}


class CallWatcher(Protocol):
    """What the caller of a tool is told while it runs, and asked."""

    @property
    def can_elicit(self) -> bool: ...  # a person can answer
    def on_progress(self, text: str) -> None: ...
    async def elicit(self, request: InputRequest) -> Json: ...  # legacy era; returns an ElicitResult


class ClientEvents(Protocol):
    """What the owner of a connection is told. The methods return at once and raise nothing."""

    def on_change(self, what: str) -> None: ...  # "tools", "prompts" or "resources" are to be listed again
    def on_closed(self, error: PeerError) -> None: ...  # the connection ended by itself


class _Call:
    """A request in flight."""

    def __init__(self, limit: asyncio.Timeout, timeout_s: float, watcher: CallWatcher | None) -> None:
        self.watcher = watcher
        self._limit = limit
        self._timeout_s = timeout_s
        self._restarts = 0
        self._questions = 0

    def restart_timeout(self) -> None:
        if self._restarts < MAX_TIMEOUTS and not self._questions:
            self._restarts += 1
            self._set_timeout()

    @contextlib.contextmanager
    def pause_timeout(self) -> Generator[None]:
        """While a person is asked."""
        self._questions += 1
        self._limit.reschedule(None)
        try:
            yield
        finally:
            self._questions -= 1
            if not self._questions and not self._limit.expired():
                self._set_timeout()

    def _set_timeout(self) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time() + self._timeout_s)


class Client:
    """Implements `kedge.jsonrpc.messages.Listener`. `connect` first; `close` in any case."""

    def __init__(
        self, transport: Transport, events: ClientEvents, *, timeout_s: float = TIMEOUT_S, can_elicit: bool = True
    ) -> None:
        self.era: Era = "modern"
        self.version = MODERN
        self.server = Implementation()
        self.capabilities = ServerCapabilities()
        self.instructions: str | None = None
        self.tools_ttl_s: float | None = None  # how long the server says that its list of tools is good
        self._transport = transport
        self._events = events
        self._timeout_s = timeout_s
        self._can_elicit = can_elicit  # declared at the beginning in the legacy era
        self._last_id = 0
        self._calls: dict[RequestId, _Call] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def connect(self) -> None:
        """Open the transport and choose the version. Raises `PeerError`; then, or if canceled, nothing is left open."""
        try:
            await self._transport.open(self)
            async with asyncio.timeout(CONNECT_S):
                await self._negotiate()
        except TimeoutError as error:
            await self.close()
            raise CannotConnect(f"the server gave no answer within {CONNECT_S:.0f} s") from error
        except RpcError as error:
            await self.close()
            raise CannotConnect(f"the server refused the connection: {error.text}") from error
        except BaseException:
            await self.close()
            raise
        if self.era == "modern" and (wanted := self._find_subscriptions()):
            self._start(self._listen(wanted))

    async def close(self) -> None:
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await self._transport.close()

    # --- requests

    async def list_tools(self) -> list[ToolInfo]:
        """Return the tools that can be called. A malformed one is left out."""
        if self.capabilities.tools is None:
            return []
        ttls_ms: list[float] = []

        def take(page: ToolPage) -> Sequence[msgspec.Raw]:
            if page.ttl_ms is not None:
                ttls_ms.append(page.ttl_ms)
            return page.tools

        raw = await self._list("tools/list", ToolPage, take)
        self.tools_ttl_s = min(ttls_ms) / 1000 if ttls_ms else None
        tools: list[ToolInfo] = []
        for each in raw:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
                tools.append(msgspec.json.decode(each, type=ToolInfo))
        return self._transport.filter_tools(tools)

    async def call_tool(
        self, name: str, arguments: Json, watcher: CallWatcher, *, again: Json | None = None
    ) -> CallResult:
        """Call a tool. `again`: `inputResponses` and `requestState` after a result that required input."""
        params = {"name": name, "arguments": arguments, **(again or {})}
        return await self._send("tools/call", params, CallResult, watcher=watcher)

    async def get_task(self, task_id: str, *, can_elicit: bool = False) -> TaskState:
        return await self._send("tasks/get", {"taskId": task_id}, TaskState, can_elicit=can_elicit)

    async def update_task(self, task_id: str, responses: Json) -> None:
        params = {"taskId": task_id, "inputResponses": responses}
        await self._send("tasks/update", params, msgspec.Raw, can_elicit=True)

    async def cancel_task(self, task_id: str) -> None:
        await self._send("tasks/cancel", {"taskId": task_id}, msgspec.Raw)

    async def list_prompts(self) -> list[PromptInfo]:
        if self.capabilities.prompts is None:
            return []
        return await self._list("prompts/list", PromptPage, lambda page: page.prompts)

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> PromptResult:
        return await self._send("prompts/get", {"name": name, "arguments": arguments}, PromptResult)

    async def list_resources(self) -> list[ResourceInfo]:
        if self.capabilities.resources is None:
            return []
        return await self._list("resources/list", ResourcePage, lambda page: page.resources)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        if self.capabilities.resources is None:
            return []
        pages = self._list("resources/templates/list", ResourceTemplatePage, lambda page: page.resource_templates)
        return await pages

    async def read_resource(self, uri: str) -> ResourceResult:
        return await self._send("resources/read", {"uri": uri}, ResourceResult)

    # --- what the server sends by itself

    def on_notification(self, notification: Notification) -> None:
        if (what := CHANGES.get(notification.method)) is not None:
            self._events.on_change(what)
        elif notification.method == "notifications/progress":
            self._report_progress(notification.params)

    def on_request(self, request: Request, during: RequestId | None) -> None:
        if self.era == "legacy":
            self._start(self._answer(request, during))

    def on_closed(self, error: PeerError) -> None:
        if not self._is_closed:
            self._events.on_closed(error)

    def _report_progress(self, params: Json) -> None:
        call = self._calls.get(params.get("progressToken", ""))
        if call is None:
            return
        call.restart_timeout()
        if call.watcher is not None and (text := _format_progress(params)):
            call.watcher.on_progress(text)

    async def _answer(self, request: Request, during: RequestId | None) -> None:
        response: Result | Failure
        match request.method:
            case "ping":
                response = _respond(request, {})
            case "elicitation/create":
                response = _respond(request, await self._elicit(request, during))
            case _:
                problem = ErrorBody(METHOD_NOT_FOUND, "Kedge does not answer this request")
                response = Failure(id=request.id, error=problem)
        with contextlib.suppress(PeerError):  # the connection ended: so did the call
            await self._transport.respond(response)

    async def _elicit(self, request: Request, during: RequestId | None) -> Json:
        """Ask the caller of the tool that is running. If several are, any of them: one user has them all."""
        calls = [self._calls[during]] if during in self._calls else list(self._calls.values())
        for call in calls:
            if call.watcher is not None and call.watcher.can_elicit:
                with call.pause_timeout():
                    return await call.watcher.elicit(InputRequest(method=request.method, params=request.params))
        return {"action": "decline"}

    # --- era and version

    async def _negotiate(self) -> None:
        self._use("modern", MODERN)
        discover = asyncio.create_task(self._discover())
        try:
            done, _ = await asyncio.wait([discover], timeout=self._transport.probe_timeout_s)
            if not done:
                await self._negotiate_silent(discover)
            elif (discovered := self._judge_probe(discover)) is not None:
                self._accept_modern(discovered)
            else:
                await self._initialize()
        finally:
            discover.cancel()
            await asyncio.wait([discover])

    async def _negotiate_silent(self, discover: asyncio.Task[DiscoverResult]) -> None:
        """The server is slow, or ignores what it does not know: begin as with a legacy one, and accept either."""
        initialize = asyncio.create_task(self._initialize())
        try:
            await asyncio.wait([discover, initialize], return_when=asyncio.FIRST_COMPLETED)
            if initialize.done() and initialize.exception() is None:
                return
            if not discover.done():
                await asyncio.wait([discover])
            if (discovered := self._judge_probe(discover)) is None:
                await initialize
            else:
                self._accept_modern(discovered)
        finally:
            initialize.cancel()
            await asyncio.wait([initialize])

    def _judge_probe(self, probe: asyncio.Task[DiscoverResult]) -> DiscoverResult | None:
        """Return the server's answer to `server/discover`; None if the server is of the legacy era."""
        try:
            discovered = probe.result()
        except RpcError as error:
            if error.code == UNSUPPORTED_VERSION and _find_supported(error) & set(LEGACY_VERSIONS):
                return None
            if error.code in MODERN_CODES:
                raise CannotConnect(f"the server speaks no version of MCP that Kedge does: {error.text}") from error
            return None
        except HttpRefused as error:
            if error.status in _PROBE_REFUSED:
                return None
            raise
        except InvalidAnswer:
            return None
        if set(discovered.supported_versions) & set(MODERN_VERSIONS):
            return discovered
        if set(discovered.supported_versions) & set(LEGACY_VERSIONS):
            return None
        versions = ", ".join(discovered.supported_versions[:5])
        raise CannotConnect(f"the server speaks no version of MCP that Kedge does, only {versions}")

    async def _discover(self) -> DiscoverResult:
        return await self._send("server/discover", {}, DiscoverResult, timeout_s=CONNECT_S)

    def _accept_modern(self, discovered: DiscoverResult) -> None:
        self._use("modern", next(each for each in MODERN_VERSIONS if each in discovered.supported_versions))
        self.capabilities = discovered.capabilities
        self.instructions = discovered.instructions
        with contextlib.suppress(msgspec.ValidationError):
            self.server = msgspec.convert(discovered.meta.get(META_SERVER, {}), Implementation)

    async def _initialize(self) -> None:
        self._transport.use_version(LEGACY)
        params: Json = {
            "protocolVersion": LEGACY,
            "capabilities": client_capabilities("legacy", can_elicit=self._can_elicit),
            "clientInfo": CLIENT_INFO,
        }
        answer = await self._send("initialize", params, InitializeResult, timeout_s=CONNECT_S, is_bare=True)
        if answer.protocol_version not in LEGACY_VERSIONS:
            raise CannotConnect(f"the server speaks MCP {answer.protocol_version[:40]}, which Kedge does not")
        self._use("legacy", answer.protocol_version)
        self.capabilities, self.instructions = answer.capabilities, answer.instructions
        self.server = answer.server_info
        await self._transport.notify(Notification(method="notifications/initialized", params={}))

    def _use(self, era: Era, version: str) -> None:
        self.era, self.version = era, version
        self._transport.use_version(version)

    # --- sending

    async def _list(self, method: str, type: type[T], items_of: Callable[[T], Sequence[Any]]) -> list[Any]:
        items: list[Any] = []
        cursors: set[str] = set()
        params: Json = {}
        while len(cursors) < MAX_PAGES and len(items) < MAX_ITEMS:
            page = await self._send(method, params, type, timeout_s=LIST_S)
            items += items_of(page)
            cursor: str | None = getattr(page, "next_cursor", None)
            if not cursor or cursor in cursors:
                break
            cursors.add(cursor)
            params = {"cursor": cursor}
        return items[:MAX_ITEMS]

    async def _send(
        self,
        method: str,
        params: Json,
        type: type[T],
        *,
        watcher: CallWatcher | None = None,
        can_elicit: bool = False,
        timeout_s: float | None = None,
        is_bare: bool = False,
    ) -> T:
        """Send a request and return its decoded result. `is_bare`: without the fields of its era."""
        can_elicit = can_elicit or (watcher is not None and watcher.can_elicit)
        for is_retry in (False, True):
            try:
                raw = await self._request(
                    method, params, watcher, can_elicit, timeout_s or self._timeout_s, is_bare=is_bare
                )
            except RpcError as error:
                if is_retry or is_bare or not await self._follow_refusal(method, error):
                    raise
            else:
                return _decode_result(raw, type)
        raise AssertionError

    async def _follow_refusal(self, method: str, error: RpcError) -> bool:
        """Adapt to what the server wants; return whether to send the request, which was not executed, once more."""
        usable = [each for each in MODERN_VERSIONS if each in _find_supported(error)]
        if error.code == UNSUPPORTED_VERSION and usable:
            self._use("modern", usable[0])  # a server may stop to speak a version at any time
            return True
        if error.code == HEADER_MISMATCH and method == "tools/call":
            await self.list_tools()  # other parameters are to be sent as headers
            return True
        return False

    async def _request(
        self,
        method: str,
        params: Json,
        watcher: CallWatcher | None,
        can_elicit: bool,
        timeout_s: float,
        *,
        is_bare: bool,
    ) -> msgspec.Raw:
        self._last_id += 1
        id = self._last_id
        meta: Json = {}
        if self.era == "modern" and not is_bare:
            meta = modern_meta(self.version, client_capabilities("modern", can_elicit=can_elicit))
        if watcher is not None:
            meta["progressToken"] = id
        request = Request(id=id, method=method, params={**params, "_meta": meta} if meta else params)
        try:
            async with asyncio.timeout(timeout_s) as limit:
                self._calls[id] = _Call(limit, timeout_s, watcher)
                return await self._transport.request(request)
        except TimeoutError as error:
            raise TimedOut(f"no answer to {method} within {timeout_s:g} s") from error
        finally:
            self._calls.pop(id, None)

    # --- changes (modern era)

    def _find_subscriptions(self) -> Json:
        offered = self.capabilities
        lists = {"toolsListChanged": offered.tools, "promptsListChanged": offered.prompts}
        lists["resourcesListChanged"] = offered.resources
        return {name: True for name, each in lists.items() if each is not None and each.list_changed}

    async def _listen(self, wanted: Json) -> None:
        """Keep a stream for changes open for as long as the connection is."""
        for delay_s in (*LISTEN_AGAIN_S, *(LISTEN_AGAIN_S[-1] for _ in range(1_000))):
            self._last_id += 1
            meta = modern_meta(self.version, client_capabilities("modern", can_elicit=False))
            params = {"notifications": wanted, "_meta": meta}
            try:
                await self._transport.request(Request(id=self._last_id, method="subscriptions/listen", params=params))
            except RpcError:
                return  # it is not offered after all
            except Disconnected:
                if self._is_closed:
                    return
            except PeerError:
                pass
            await asyncio.sleep(delay_s)
            for what in ("tools", "prompts", "resources"):  # what changed meanwhile is not known
                self._events.on_change(what)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _find_supported(error: RpcError) -> set[str]:
    match error.data:
        case {"supported": [*versions]}:
            return {version for version in versions if isinstance(version, str)}
        case _:
            return set()


def _decode_result(raw: msgspec.Raw, type: type[T]) -> T:
    try:
        result = msgspec.json.decode(raw, type=type)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidAnswer(f"the server's answer is not what the protocol asks for: {error}"[:300]) from error
    if (kind := getattr(result, "result_type", "complete")) not in _RESULT_TYPES:
        raise InvalidAnswer(f"the server's answer has a type that Kedge does not know: {str(kind)[:40]}")
    return result


def _respond(request: Request, result: Json) -> Result:
    return Result(id=request.id, result=msgspec.Raw(msgspec.json.encode(result)))


def _format_progress(params: Json) -> str:
    progress, total, message = params.get("progress"), params.get("total"), params.get("message")
    numbers = f"{progress:g}" if isinstance(progress, int | float) else ""
    if numbers and isinstance(total, int | float):
        numbers += f"/{total:g}"
    return " ".join(part for part in (numbers, message if isinstance(message, str) else "") if part)

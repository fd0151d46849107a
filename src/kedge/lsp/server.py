"""One running language server: its documents, its diagnostics, and requests to it.

Diagnostics are fresh or none: those of a pull belong to the text that was sent before it; published ones count only
with the version of that text, or, from a server that names none, after it has answered a request behind the change.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kedge.jsonrpc.errors import CannotConnect, Disconnected, PeerError, RpcError, TimedOut
from kedge.jsonrpc.messages import ErrorBody, Failure, Notification, Request, RequestId, Result
from kedge.lsp.documents import Document, Documents, SaveOptions
from kedge.lsp.known_servers import Installed
from kedge.lsp.messages import (
    CONTENT_MODIFIED,
    METHOD_NOT_FOUND,
    SERVER_CANCELLED,
    Capabilities,
    Diagnostic,
    DiagnosticOptions,
    DiagnosticReport,
    InitializeResult,
    Json,
    PublishedDiagnostics,
    as_object,
    as_objects,
    convert_diagnostics,
    decode_as,
    initialize_params,
)
from kedge.lsp.positions import PositionEncoding, path_to_uri, uri_to_path
from kedge.lsp.transport import LspTransport
from kedge.protocol.lsp import LspState
from kedge.protocol.text_safety import one_line

log = logging.getLogger(__name__)

T = TypeVar("T")

INITIALIZE_S = 45.0  # bash-language-server takes one second, a JVM many
REQUEST_S = 20.0
SHUTDOWN_S = 2.0
QUIET_S = 0.3  # a server that names no versions publishes several times for one change
RETRY_S = 0.05  # after an answer that the server gave up
MAX_DIAGNOSTICS = 2_000  # of a document: the rest is not read
MAX_REGISTRATIONS = 200

_ENCODINGS: dict[str, PositionEncoding] = {"utf-8": "utf-8", "utf-16": "utf-16", "utf-32": "utf-32"}
_NULL = msgspec.Raw(b"null")


class LanguageServer:
    """Implements `kedge.jsonrpc.messages.Listener`. Call `start` once, and `close` at the end."""

    def __init__(
        self, installed: Installed, root: Path, transport: LspTransport, on_change: Callable[[], None]
    ) -> None:
        self.installed = installed
        self.root = root
        self.state: LspState = "starting"
        self.error = ""  # one line: why it failed
        self.capabilities = Capabilities()
        self.encoding: PositionEncoding = "utf-16"
        self.ready_at = 0.0
        self.ready = asyncio.Event()  # it has answered `initialize`, or failed
        self._transport = transport
        self._on_change = on_change
        self._ids = itertools.count(1)
        self._registered: dict[str, tuple[str, Json]] = {}  # capabilities announced later: method and options by id
        self._progress: set[int | str] = set()
        self._idle = asyncio.Event()
        self._expirations = 0  # so often it said that its diagnostics are outdated
        self._tasks: set[asyncio.Task[Any]] = set()
        self.documents = Documents(installed.server.languages, self)

    @property
    def name(self) -> str:
        return self.installed.server.name

    @property
    def is_busy(self) -> bool:
        """Whether it says that it is loading or indexing."""
        return bool(self._progress)

    @property
    def pid(self) -> int | None:
        return self._transport.pid

    @property
    def stderr_tail(self) -> str:
        return self._transport.stderr_tail

    async def read_memory(self) -> int:
        """Return the bytes that its processes use together; 0 if unknown."""
        process = self._transport.process
        return await process.memory_bytes() if process is not None else 0

    # --- life

    async def start(self) -> None:
        """Start the process and initialize it. On failure `state` is "failed", and `error` says why."""
        try:
            await self._transport.open(self)
            await self._initialize()
        except PeerError as error:
            await self._fail(error.text)
        except asyncio.CancelledError:
            await self._fail("the start was canceled")
            raise
        except Exception as error:
            log.exception("cannot start the language server %s", self.name)
            await self._fail(f"it could not be started ({type(error).__name__})")
        finally:
            self.ready.set()
            self._on_change()

    async def _initialize(self) -> None:
        server = self.installed.server
        uri = path_to_uri(self.root)
        params = initialize_params(uri, self.root.name or "/", os.getpid(), server.options)
        result = await self.request("initialize", params, InitializeResult, INITIALIZE_S)
        self.capabilities = result.capabilities
        self.encoding = _ENCODINGS.get(result.capabilities.position_encoding, "utf-16")
        await self._transport.notify(Notification(method="initialized", params={}))
        if server.settings is not None:
            settings = {"settings": server.settings}
            await self._transport.notify(Notification(method="workspace/didChangeConfiguration", params=settings))
        if self.state == "starting":
            self.state = "ready"
            self.ready_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Shut the server down; what is left of its processes is ended."""
        was_ready, self.state = self.state == "ready", "stopped" if self.state != "failed" else "failed"
        if was_ready:
            with contextlib.suppress(PeerError):
                await self.request("shutdown", None, msgspec.Raw, SHUTDOWN_S)
                await self._transport.notify(Notification(method="exit", params={}))
        await self._transport.close()
        self.documents.forget_all()

    async def _fail(self, why: str) -> None:
        self.state, self.error = "failed", why
        await self._transport.close()

    # --- requests

    async def request(self, method: str, params: Any, type_: type[T], timeout_s: float = REQUEST_S) -> T:
        """Send a request and decode its result. Raises `PeerError`."""
        request = Request(id=next(self._ids), method=method, params=params)
        try:
            async with asyncio.timeout(timeout_s):
                raw = await self._transport.request(request)
        except TimeoutError:
            raise TimedOut(f"{self.name} did not answer {method} within {timeout_s:.0f} s") from None
        return decode_as(type_, raw, method)

    async def request_fresh(self, method: str, params: Any, type_: type[T], timeout_s: float = REQUEST_S) -> T:
        """As `request`; repeats it while the server says that its answer is outdated."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            left = deadline - asyncio.get_running_loop().time()
            try:
                return await self.request(method, params, type_, max(left, 0))
            except RpcError as error:
                if error.code not in (CONTENT_MODIFIED, SERVER_CANCELLED) or left < RETRY_S:
                    raise
                await asyncio.sleep(RETRY_S)

    async def wait_until_idle(self, deadline: float) -> None:
        """Wait until it has loaded the project, or until a time of the loop's clock."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._progress:
                    await self._idle.wait()

    async def notify(self, method: str, params: Json) -> None:
        """Raises `PeerError`."""
        if self.state != "ready":
            raise CannotConnect(f"{self.name} is not running")
        await self._transport.notify(Notification(method=method, params=params))

    # --- diagnostics

    @property
    def pull_options(self) -> DiagnosticOptions | None:
        """How diagnostics are requested; None for a server that publishes them."""
        if self.capabilities.diagnostic_provider is not None:
            return self.capabilities.diagnostic_provider
        for method, options in self._registered.values():
            if method == "textDocument/diagnostic":
                with contextlib.suppress(msgspec.ValidationError):
                    return msgspec.convert(options, DiagnosticOptions)
        return None

    async def diagnose(self, document: Document, timeout_s: float) -> list[Diagnostic] | None:
        """Return the diagnostics of a document's current text; None if they do not come in time. Raises `PeerError`."""
        version = document.version
        try:
            async with asyncio.timeout(timeout_s):
                while not document.is_diagnosed and document.version == version:
                    if self.state != "ready":
                        raise Disconnected(f"{self.name} has ended")
                    if (options := self.pull_options) is not None:
                        await asyncio.shield(self._begin_pull(document, options))
                    else:
                        await self._wait_for_published(document, version)
        except TimeoutError:
            return None
        return document.diagnostics if document.is_diagnosed and document.version == version else None

    def _begin_pull(self, document: Document, options: DiagnosticOptions) -> asyncio.Task[None]:
        """Ask for the diagnostics of the current text, once; an answer that nobody waits for is kept, too."""
        if document.pull is None or document.pull[0] != document.version or document.pull[1].done():
            task = asyncio.get_running_loop().create_task(self._pull(document, options))
            self._keep(task)
            document.pull = (document.version, task)
        return document.pull[1]

    async def _pull(self, document: Document, options: DiagnosticOptions) -> None:
        version, expirations = document.version, self._expirations
        params: Json = {"textDocument": {"uri": document.uri}}
        if options.identifier is not None:
            params["identifier"] = options.identifier
        if document.result_id is not None:
            params["previousResultId"] = document.result_id
        report = await self.request_fresh("textDocument/diagnostic", params, DiagnosticReport)
        if (document.version, self._expirations) != (version, expirations):
            return
        if report.kind == "unchanged" and document.result_id is not None:
            document.set_diagnostics(document.diagnostics, version)
        else:
            document.result_id = report.result_id
            document.set_diagnostics(convert_diagnostics(report.items[:MAX_DIAGNOSTICS]), version)

    async def _wait_for_published(self, document: Document, version: int) -> None:
        """Return when the server published, or said that it wants to be asked instead."""

        def is_over() -> bool:
            return document.is_diagnosed or self.pull_options is not None or self.state != "ready"

        if document.names_versions is not False:
            await document.wait_until(lambda: is_over() or document.names_versions is False)
            if is_over():
                return
        if document.version > 1:
            # What the server published before it answers this request may be of an earlier text.
            answered_at = await asyncio.shield(self._find_answer_position(document))
            await document.wait_until(lambda: document.published_at > answered_at or is_over())
            if is_over():
                return
        while True:  # until it is quiet
            seen = document.publications
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUIET_S):
                    await document.wait_until(lambda seen=seen: document.publications > seen)
            if document.publications == seen:
                break
        if document.version == version:
            document.set_diagnostics(document.diagnostics, version)

    def _find_answer_position(self, document: Document) -> asyncio.Task[int]:
        """Send a request behind the current text, once; the task goes on if nobody waits for it any more."""
        if document.barrier is None or document.barrier[0] != document.version:
            params = {"textDocument": {"uri": document.uri}}
            request = Request(id=next(self._ids), method="textDocument/documentSymbol", params=params)
            task = asyncio.get_running_loop().create_task(self._transport.request_position(request))
            self._keep(task)
            document.barrier = (document.version, task)
        return document.barrier[1]

    # --- what the server sends by itself

    def on_notification(self, notification: Notification) -> None:
        match notification.method:
            case "textDocument/publishDiagnostics":
                self._take_published(notification.params)
            case "$/progress":
                self._take_progress(notification.params)
            case _:
                pass

    def on_request(self, request: Request, during: RequestId | None) -> None:
        self._keep(asyncio.get_running_loop().create_task(self._respond(self._answer(request))))

    def on_closed(self, error: PeerError) -> None:
        if self.state != "stopped":
            self.state, self.error = "failed", error.text
        self.documents.forget_all()
        self.ready.set()
        self._idle.set()
        self._progress.clear()
        self._on_change()

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a task until it is done; whoever waits for it gets its error, else nobody does."""
        self._tasks.add(task)

        def forget(done: asyncio.Task[Any]) -> None:
            self._tasks.discard(done)
            if not done.cancelled():
                done.exception()

        task.add_done_callback(forget)

    async def _respond(self, answer: Result | Failure) -> None:
        with contextlib.suppress(PeerError):
            await self._transport.respond(answer)

    def _answer(self, request: Request) -> Result | Failure:
        params = request.params
        match request.method:
            case "workspace/configuration":
                settings = self.installed.server.settings
                values = [_find_section(settings, item.get("section")) for item in as_objects(params.get("items"))]
                return Result(id=request.id, result=msgspec.Raw(msgspec.json.encode(values)))
            case "client/registerCapability" | "client/unregisterCapability":
                self._register(params)
                return Result(id=request.id, result=_NULL)
            case "workspace/workspaceFolders":
                folders = [{"uri": path_to_uri(self.root), "name": self.root.name or "/"}]
                return Result(id=request.id, result=msgspec.Raw(msgspec.json.encode(folders)))
            case "workspace/applyEdit":
                refusal = {"applied": False, "failureReason": "the client changes files itself"}
                return Result(id=request.id, result=msgspec.Raw(msgspec.json.encode(refusal)))
            case "window/showDocument":
                return Result(id=request.id, result=msgspec.Raw(b'{"success":false}'))
            case "workspace/diagnostic/refresh":
                self._expirations += 1
                self.documents.expire_diagnostics()
                return Result(id=request.id, result=_NULL)
            case "window/workDoneProgress/create" | "window/showMessageRequest":
                return Result(id=request.id, result=_NULL)
            case _:
                error = ErrorBody(METHOD_NOT_FOUND, f"{one_line(request.method, 100)} is not supported")
                return Failure(id=request.id, error=error)

    def _register(self, params: Json) -> None:
        for each in as_objects(params.get("registrations")):
            id, method = each.get("id"), each.get("method")
            if isinstance(id, str) and isinstance(method, str) and len(self._registered) < MAX_REGISTRATIONS:
                self._registered[id] = (method, as_object(each.get("registerOptions")))
                self.documents.wake_waiting()
        for each in as_objects(params.get("unregisterations")):  # spelled so in the protocol
            if isinstance(id := each.get("id"), str):
                self._registered.pop(id, None)

    @property
    def watches_files(self) -> bool:
        return any(method == "workspace/didChangeWatchedFiles" for method, _ in self._registered.values())

    @property
    def save_options(self) -> SaveOptions:
        save: Any = as_object(self.capabilities.text_document_sync).get("save")
        for method, options in self._registered.values():
            if method == "textDocument/didSave":
                save = options
        is_wanted = save is True or isinstance(save, dict)
        return SaveOptions(is_wanted, as_object(save).get("includeText") is True)

    def _take_published(self, params: Json) -> None:
        try:
            published = msgspec.convert(params, PublishedDiagnostics)
        except (msgspec.ValidationError, TypeError):
            return
        path = uri_to_path(published.uri)
        document = self.documents.find(path) if path is not None else None
        if document is not None:
            found = convert_diagnostics(published.diagnostics[:MAX_DIAGNOSTICS])
            document.take_published(found, published.version, self._transport.received)

    def _take_progress(self, params: Json) -> None:
        token, kind = params.get("token"), as_object(params.get("value")).get("kind")
        if not isinstance(token, int | str):
            return
        if kind == "begin" and len(self._progress) < MAX_REGISTRATIONS:
            self._progress.add(token)
        elif kind == "end":
            self._progress.discard(token)
            self._idle.set()
            self._idle = asyncio.Event()
        else:
            return
        self._on_change()


def _find_section(settings: Any, section: Any) -> Any:
    """Return the settings of a section such as `python.analysis`; None if there are none."""
    if not isinstance(section, str) or not section:
        return settings
    value = settings
    for name in section.split("."):
        value = as_object(value).get(name)
    return value

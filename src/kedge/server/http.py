"""Routes, and the requests and responses of their handlers.

The router, the decoding of requests and the OpenAPI document are all derived from the routes in routes.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from kedge.config.configs import Configs
from kedge.engine.engine import Engine
from kedge.engine.turn import Turn
from kedge.engine.workspace_host import WorkspaceHost
from kedge.protocol.api import Offered, SessionContext
from kedge.protocol.errors import ShuttingDown
from kedge.protocol.requests import RESERVED_NAMES
from kedge.protocol.runs import Mode, RunKind, RunOptions
from kedge.server.errors import NoRoute, NotAllowed
from kedge.server.metrics import Metrics
from kedge.store.port import StoredContext

if TYPE_CHECKING:
    from kedge.agent.language_service import LanguageServices
    from kedge.agent.logins import Logins
    from kedge.agent.mcp_access import McpAccess
    from kedge.skills.library import Library
    from kedge.tools.process.command import WorkspaceJobs
    from kedge.tools.search.file_index import FileIndex


S = TypeVar("S")


class Response(NamedTuple):
    """A response whose body is a struct to be encoded as JSON, or bytes."""

    body: object
    status: int = 200
    headers: Mapping[str, str] = {}
    media_type: str = "application/json"


class StreamResponse(NamedTuple):
    """A response of unknown length, sent chunk by chunk."""

    chunks: AsyncGenerator[bytes]
    media_type: str = "text/event-stream; charset=utf-8"
    while_open: AbstractContextManager[object] = nullcontext()  # entered while the response is sent


class Request:
    """A decoded request: the parameters of its path, and its query and body as structs."""

    def __init__(
        self,
        context: Context,
        path: Mapping[str, str],
        headers: Mapping[str, str],
        query: object,
        body: object,
        disconnected: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self.context = context
        self.engine = context.engine
        self.headers = headers
        self.path = path
        self._query = query
        self._body = body
        self._disconnected = disconnected

    @property
    def workspace_id(self) -> str:
        return self.path["workspace_id"]

    @property
    def session_id(self) -> str:
        return self.path["session_id"]

    @property
    def directory(self) -> Path:
        """The directory of the request's workspace; raises `NotFound` if there is no such workspace."""
        return Path(self.engine.require_workspace(self.workspace_id).path)

    def query(self, type: type[S]) -> S:
        assert isinstance(self._query, type)
        return self._query

    def body(self, type: type[S]) -> S:
        assert isinstance(self._body, type)
        return self._body

    @property
    def client(self) -> str:
        """The name that the client gave itself, as stored with the answers to permission requests and questions."""
        name = self.headers.get("kedge-client", "")[:100]
        return "unknown" if name in RESERVED_NAMES else name or "unknown"

    async def run_while_connected(self, work: Coroutine[Any, Any, S]) -> S:
        """Return the result of `work`. Raise `ShuttingDown` when the client disconnects or the server stops first."""
        working, disconnected = asyncio.ensure_future(work), asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait({working, disconnected, self.context.stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ShuttingDown
            return working.result()
        finally:
            working.cancel()
            disconnected.cancel()


Handler = Callable[[Request], Coroutine[Any, Any, Response | StreamResponse]]


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    answer: Any = None  # the type of the response's body
    status: int = 200
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    media_type: str = "application/json"
    errors: tuple[int, ...] = ()  # beside those that any request can get

    @property
    def name(self) -> str:
        """The operation id in the OpenAPI document."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").removesuffix(".")

    @property
    def tag(self) -> str:
        """The group of operations in the OpenAPI document."""
        return self.handler.__module__.rpartition(".")[2]


class Found(NamedTuple):
    route: Route
    parameters: dict[str, str]
    # A path can match two routes: `prompts/move` is also the prompt named "move". This is the error if there is none.
    if_not_found: NotAllowed | None


class Router:
    """Finds the route of a path. A segment in braces matches any segment that is not empty."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_length: dict[int, list[tuple[list[str], dict[str, Route]]]] = {}
        for route in routes:
            segments = route.path.split("/")
            same_length = self._by_length.setdefault(len(segments), [])
            methods = next((methods for known, methods in same_length if known == segments), None)
            if methods is None:
                same_length.append((segments, {route.method: route}))
            else:
                methods[route.method] = route

    def find(self, method: str, path: str) -> Found:
        """Raise `NoRoute` or `NotAllowed`. Routes that come first in the table win."""
        given = path.split("/")
        not_allowed: NotAllowed | None = None
        for segments, methods in self._by_length.get(len(given), []):
            parameters = _match(segments, given)
            if parameters is None:
                continue
            if route := methods.get("GET" if method == "HEAD" else method):
                return Found(route, parameters, not_allowed)
            if not_allowed is None:
                not_allowed = NotAllowed(method, sorted([*methods, "HEAD"] if "GET" in methods else methods))
        raise not_allowed or NoRoute(path)


def _match(segments: list[str], given: list[str]) -> dict[str, str] | None:
    parameters: dict[str, str] = {}
    for segment, value in zip(segments, given, strict=True):
        if segment.startswith("{") and value:
            parameters[segment[1:-1]] = value
        elif segment != value:
            return None
    return parameters


class Agent(Protocol):
    """The agent that executes runs. Implemented by `kedge.agent.agent.Agent`, and by scripted agents in tests."""

    @property
    def turns(self) -> Mapping[RunKind, Turn]: ...
    @property
    def jobs(self) -> WorkspaceJobs: ...
    async def default_model(self, directory: Path, env: Mapping[str, str] | None = None) -> str | None: ...
    async def models(self, directory: Path, env: Mapping[str, str] | None = None) -> Offered: ...
    async def check_model(self, model: str, directory: Path) -> None: ...
    async def check_mode(
        self, mode: Mode, options: RunOptions, directory: Path, env: Mapping[str, str] | None
    ) -> None: ...
    async def library(self, directory: Path, env: Mapping[str, str] | None = None) -> Library: ...
    async def context(
        self, stored: StoredContext, model: str | None, directory: Path, env: Mapping[str, str] | None = None
    ) -> SessionContext: ...
    async def logins(self) -> Logins: ...
    async def languages(self) -> LanguageServices: ...
    async def mcp(self) -> McpAccess: ...
    async def config_changed(self, workspace_id: str, directory: Path, host: WorkspaceHost) -> None: ...
    async def workspace_deleted(self, workspace_id: str) -> None: ...
    async def session_deleted(self, session_id: str) -> None: ...
    async def warm_up(self) -> None: ...
    async def close(self) -> None: ...


class Context(NamedTuple):
    engine: Engine
    agent: Agent
    metrics: Metrics
    openapi: Callable[[], bytes]
    stop: Callable[[], None]
    configs: Configs
    names: FileIndex
    stopped: asyncio.Future[None]  # done when no run makes progress any more, so that no request waits for one

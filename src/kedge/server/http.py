"""What a route is: one row that says how it is called, what it answers, and who does it.

The router, the checks of what comes in and the OpenAPI document are all made from the same rows (routes.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from kedge.protocol.errors import ShuttingDown

if TYPE_CHECKING:
    from kedge.server.context import Context

S = TypeVar("S")


class Reply(NamedTuple):
    """An answer: a struct to be encoded, or bytes that are encoded already."""

    body: object
    status: int = 200
    headers: Mapping[str, str] = {}
    media_type: str = "application/json"


class Stream(NamedTuple):
    """An answer without an end: bytes as they come."""

    chunks: AsyncGenerator[bytes]
    while_open: AbstractContextManager[object] = nullcontext()  # entered while it is sent
    media_type: str = "text/event-stream; charset=utf-8"


class Call:
    """One request, decoded: the words of its path, its query and its body as structs."""

    def __init__(
        self,
        context: Context,
        path: Mapping[str, str],
        headers: Mapping[str, str],
        query: object,
        body: object,
        gone: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self.context = context
        self.engine = context.engine
        self.headers = headers
        self._path = path
        self._query = query
        self._body = body
        self._gone = gone

    def __getitem__(self, name: str) -> str:
        return self._path[name]

    def query(self, type: type[S]) -> S:
        assert isinstance(self._query, type)
        return self._query

    def body(self, type: type[S]) -> S:
        assert isinstance(self._body, type)
        return self._body

    @property
    def client(self) -> str:
        """Who says so: the name that the client gave itself."""
        return self.headers.get("kedge-client", "")[:100] or "unknown"

    async def while_wanted(self, work: Coroutine[Any, Any, S]) -> S:
        """Wait for `work` until the client gives up or the server leaves: neither waits for a run that goes on."""
        working, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait({working, gone, self.context.over}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ShuttingDown
            return working.result()
        finally:
            working.cancel()
            gone.cancel()


Handler = Callable[[Call], Coroutine[Any, Any, Reply | Stream]]


class Operation(NamedTuple):
    method: str
    path: str
    summary: str
    handler: Handler
    answer: Any = None  # the type of the answer's body
    status: int = 200
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    media_type: str = "application/json"
    errors: tuple[int, ...] = ()  # beside those that any request can get

    @property
    def name(self) -> str:
        return self.handler.__name__

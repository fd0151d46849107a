"""The transport of an MCP server: how requests reach it and answers come back.

A transport knows JSON-RPC and its own wire, and nothing of tools. `Client` chooses era and version over it. The stdio
transport and the HTTP transport implement the same protocol, and pass the same tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from kedge.jsonrpc.messages import Failure, Listener, Notification, Request, Result
from kedge.mcp.messages import ToolInfo


class Transport(Protocol):
    @property
    def probe_timeout_s(self) -> float: ...  # how long silence means "not modern" at the first request

    async def open(self, listener: Listener) -> None:
        """Connect. Raises `CannotConnect` or `LoginRequired`. If it is canceled, nothing is left behind."""

    async def request(self, request: Request) -> msgspec.Raw:
        """Send a request and return its result.

        Raises `RpcError` for a JSON-RPC error, `HttpRefused` for an HTTP error status without one, `Disconnected` if
        the connection ended before the answer, `CannotConnect` if the request could not be sent, `InvalidAnswer`,
        `LoginRequired`. There is no timeout here. When it is canceled, the server is told: by
        `notifications/cancelled`, or by closing the stream of the request.
        """
        ...

    async def notify(self, notification: Notification) -> None: ...

    async def respond(self, response: Result | Failure) -> None:
        """Answer a request of the server (legacy era)."""

    def use_version(self, version: str) -> None:
        """Called when the version was chosen, and before each attempt to choose one."""

    def filter_tools(self, tools: Sequence[ToolInfo]) -> list[ToolInfo]:
        """Return the tools that can be called. HTTP remembers which parameters are also sent as headers."""
        ...

    async def close(self) -> None:
        """End the connection, and the server's process if there is one. Bounded in time."""

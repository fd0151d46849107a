"""MCP over the standard streams of a process: one JSON-RPC message a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kedge.jsonrpc.messages import Notification, Request
from kedge.jsonrpc.stdio import Command, RecordProcess, StdioConnection
from kedge.mcp.messages import ToolInfo

PROBE_S = 10.0


class LineFraming:
    """One message a line."""

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def unread_bytes(self) -> int:
        return len(self._pending)

    def feed(self, data: bytes) -> Iterator[bytes]:
        *lines, rest = data.split(b"\n")
        for line in lines:
            message = bytes(self._pending) + line if self._pending else line
            self._pending.clear()
            yield message
        self._pending += rest

    def wrap(self, message: bytes) -> bytes:
        return message + b"\n"


class StdioTransport(StdioConnection):
    """Implements `kedge.mcp.port.Transport`."""

    probe_timeout_s = PROBE_S
    never_canceled = frozenset({"initialize", "server/discover"})

    def __init__(self, command: Command, record_process: RecordProcess) -> None:
        super().__init__(command, record_process, LineFraming())

    def cancel_notification(self, request: Request) -> Notification:
        params = {"requestId": request.id, "reason": "canceled by the client"}
        return Notification(method="notifications/cancelled", params=params)

    def use_version(self, version: str) -> None:
        """Nothing to do: all of it is in the messages."""

    def filter_tools(self, tools: Sequence[ToolInfo]) -> list[ToolInfo]:
        return list(tools)

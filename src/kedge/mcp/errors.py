"""What can go wrong with an MCP server.

McpError
├── CannotConnect      the server could not be started or reached: the request was not sent
├── Disconnected       the connection ended: a request in flight may have had effects
├── TimedOut           no answer in time: the request was canceled, and may have had effects
├── InvalidAnswer      an answer that breaks the protocol
├── HttpRefused        an HTTP error status without a JSON-RPC error in its body
├── LoginRequired      the server wants an authorization that only a person can give
├── LoginFailed        a login did not succeed
└── RpcError           a JSON-RPC error
"""

from __future__ import annotations

from typing import Any

METHOD_NOT_FOUND = -32601
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
# Only servers of the modern era use these codes.
MODERN_CODES = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})


class McpError(Exception):
    """`text` is one line for people, without secrets."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class CannotConnect(McpError):
    pass


class Disconnected(McpError):
    pass


class TimedOut(McpError):
    pass


class InvalidAnswer(McpError):
    pass


class HttpRefused(McpError):
    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class LoginRequired(McpError):
    pass


class LoginFailed(McpError):
    pass


class RpcError(McpError):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

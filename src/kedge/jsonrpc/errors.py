"""What can go wrong with a server that speaks JSON-RPC.

PeerError
├── CannotConnect      the server could not be started or reached: the request was not sent
│   └── Ended          the connection had ended before
├── Disconnected       the connection ended: a request in flight may have had effects
├── TimedOut           no answer in time: the request was canceled, and may have had effects
├── InvalidAnswer      an answer that breaks the protocol
└── RpcError           a JSON-RPC error
"""

from __future__ import annotations

from typing import Any

METHOD_NOT_FOUND = -32601


class PeerError(Exception):
    """`text` is one line for people, without secrets."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class CannotConnect(PeerError):
    pass


class Ended(CannotConnect):
    pass


class Disconnected(PeerError):
    pass


class TimedOut(PeerError):
    pass


class InvalidAnswer(PeerError):
    pass


class RpcError(PeerError):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

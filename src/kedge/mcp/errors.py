"""What can go wrong with an MCP server, beside the errors of JSON-RPC.

PeerError
├── …                  those of `kedge.jsonrpc.errors`
├── HttpRefused        an HTTP error status without a JSON-RPC error in its body
├── LoginRequired      the server wants an authorization that only a person can give
└── LoginFailed        a login did not succeed
"""

from __future__ import annotations

from kedge.jsonrpc.errors import PeerError

HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
# Only servers of the modern era use these codes.
MODERN_CODES = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})


class HttpRefused(PeerError):
    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class LoginRequired(PeerError):
    pass


class LoginFailed(PeerError):
    pass

"""An MCP server that needs a login, with its authorization server, in one process. Tests make it misbehave."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import urlsafe_b64encode
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.mcp.raw_server import DISCOVERED, Got, RawServer, document, head, result


class OAuthServer(RawServer):
    """Issues access tokens `access-N` and refresh tokens `refresh-N`, each of which works once."""

    def __init__(self) -> None:
        super().__init__(self._route)
        self.clients: list[dict[str, Any]] = []
        self.forms: list[dict[str, str]] = []  # of the token endpoint
        self.revoked: list[str] = []
        self.valid_access: set[str] = set()
        self.lifetime_s: int | None = None
        self.issued = 0
        self.metadata: dict[str, Any] = {}  # overrides that of the authorization server
        self.resource: dict[str, Any] = {}  # overrides that of the resource
        self.challenge = ""
        self.token_answer: bytes | None = None
        self.token_gate: asyncio.Event | None = None
        self.must_deny = False
        self._codes: dict[str, dict[str, str]] = {}
        self._refresh = ""

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/mcp")

    async def _route(self, got: Got, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(got.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match parts.path:
            case "/.well-known/oauth-protected-resource/mcp":
                writer.write(document({"resource": self.url, "authorization_servers": [self.origin], **self.resource}))
            case "/.well-known/oauth-authorization-server":
                writer.write(document(self._describe()))
            case "/register":
                self.clients.append(got.message)
                writer.write(document({"client_id": f"client-{len(self.clients)}", **got.message}, "201 Created"))
            case "/authorize":
                writer.write(head("302 Found", Location=self.authorize(query), Content_Length="0"))
            case "/token":
                if self.token_gate is not None:
                    await self.token_gate.wait()
                writer.write(self.token_answer or self._issue(got))
            case "/revoke":
                self.revoked.append(parse_qs(got.body.decode())["token"][0])
                writer.write(document({}))
            case "/mcp":
                writer.write(self._serve_mcp(got))
            case _:
                writer.write(document({}, "404 Not Found"))

    def _describe(self) -> dict[str, Any]:
        return {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "revocation_endpoint": f"{self.origin}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            **self.metadata,
        }

    def authorize(self, query: dict[str, str]) -> str:
        code = f"code-{len(self._codes) + 1}"
        self._codes[code] = query
        answer = {"error": "access_denied"} if self.must_deny else {"code": code}
        return f"{query['redirect_uri']}?{urlencode({**answer, 'state': query['state'], 'iss': self.origin})}"

    def _issue(self, got: Got) -> bytes:
        form = {name: values[0] for name, values in parse_qs(got.body.decode()).items()}
        self.forms.append(form)
        if form["grant_type"] == "refresh_token":
            is_valid = form["refresh_token"] == self._refresh
        else:
            asked = self._codes.pop(form["code"], {})
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            is_valid = urlsafe_b64encode(digest).decode().rstrip("=") == asked.get("code_challenge")
            is_valid = is_valid and form["redirect_uri"] == asked.get("redirect_uri")
        if not is_valid or form["resource"] != self.url:
            return document({"error": "invalid_grant", "error_description": "used already"}, "400 Bad Request")
        self.issued += 1
        self.valid_access.add(f"access-{self.issued}")
        self._refresh = f"refresh-{self.issued}"
        answer: dict[str, Any] = {"access_token": f"access-{self.issued}", "token_type": "Bearer"}
        if self.lifetime_s is not None:
            answer["expires_in"] = self.lifetime_s
        return document({**answer, "refresh_token": self._refresh})

    def _serve_mcp(self, got: Got) -> bytes:
        token = got.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.valid_access:
            challenge = f'Bearer realm="x", scope="mcp:basic"{self.challenge}'
            return document({"error": "invalid_token"}, "401 Unauthorized", WWW_Authenticate=challenge)
        if got.message["method"] == "server/discover":
            return document(result(got, DISCOVERED))
        return document(result(got, {"resultType": "complete", "tools": [], "content": []}))

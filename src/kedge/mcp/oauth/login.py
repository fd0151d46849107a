"""A login to an MCP server: discovery, registration of a client, the browser's answer, and the token.

`start` returns when there is an address to open in a browser; `wait` returns when the token is stored. A login that
ends early changes nothing but a client's registration, which the next login uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from base64 import urlsafe_b64encode
from urllib.parse import urlencode, urlsplit

import msgspec

from kedge.config.schema import McpOAuthConfig
from kedge.mcp.errors import LoginFailed
from kedge.mcp.oauth.callback import Answer, CallbackListener, parse_answer
from kedge.mcp.oauth.metadata import (
    OFFLINE,
    Challenge,
    ResourceMetadata,
    ServerMetadata,
    canonical_resource,
    check_resource,
    check_server,
    choose_scopes,
    default_server,
    list_issuer_urls,
    list_resource_urls,
)
from kedge.mcp.oauth.tokens import Grant, ServerTokens, printable, read_error, request_token
from kedge.mcp.oauth.web import LoginWeb

LOGIN_S = 600.0  # for a person in a browser
_METHODS = ("none", "client_secret_basic", "client_secret_post")  # the preferred one first
_DONE = "You are logged in. You can close this window."


class _Registration(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None

    def __repr__(self) -> str:
        return "_Registration()"


class Login:
    """One login. `close` in any case."""

    def __init__(self, tokens: ServerTokens, config: McpOAuthConfig) -> None:
        """`config` has its references expanded."""
        self.url = ""  # for the browser
        self._tokens = tokens
        self._config = config
        self._web = LoginWeb(tokens.url)
        self._listener = CallbackListener(self._take)
        self._state = secrets.token_urlsafe(32)
        self._verifier = secrets.token_urlsafe(48)
        self._server: ServerMetadata | None = None
        self._grant: Grant | None = None
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Find out how to log in, and set `url`. Raises `LoginFailed` or `CannotConnect`."""
        challenge = self._tokens.challenge
        resource, server = await self._discover(challenge)
        self._server = server
        asked_resource = check_resource(resource.resource, self._tokens.url)
        scopes = choose_scopes(self._config.scopes, challenge, resource, server)
        grant = await self._find_client(server)
        self._grant = msgspec.structs.replace(
            grant,
            asked_resource=asked_resource,
            token_endpoint=server.token_endpoint,
            revocation_endpoint=server.revocation_endpoint,
            scopes=scopes,
        )
        digest = hashlib.sha256(self._verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": grant.client_id,
            "redirect_uri": grant.redirect_uri,
            "state": self._state,
            "code_challenge": urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
            "resource": asked_resource,
        }
        if scopes:
            query["scope"] = " ".join(scopes)
        if OFFLINE in scopes:
            query["prompt"] = "consent"  # OpenID Connect asks for it
        endpoint = self._web.check_url(server.authorization_endpoint, "logins")
        self.url = f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    async def wait(self) -> None:
        """Wait for the browser, and store the token. Raises `LoginFailed` or `CannotConnect`."""
        assert self._grant is not None
        try:
            async with asyncio.timeout(LOGIN_S):
                answer = await asyncio.shield(self._answer)
        except TimeoutError:
            raise LoginFailed(f"nobody has logged in within {LOGIN_S / 60:.0f} minutes") from None
        if "error" in answer:
            text = " ".join(filter(None, [answer["error"], answer.get("error_description", "")]))
            raise LoginFailed(f"the login was refused: {printable(text)}")
        if not answer.get("code"):
            raise LoginFailed("the browser's answer has no code")
        fields = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": self._grant.redirect_uri,
            "code_verifier": self._verifier,
        }
        await self._tokens.save(await request_token(self._web, self._grant, fields))

    def answer(self, url: str) -> bool:
        """Take the address at which a browser ended that cannot reach this machine. Returns whether it belongs here."""
        return self._take(parse_answer(url)) is not None

    async def close(self) -> None:
        self._answer.cancel()
        await self._listener.close()
        self._web.close()

    def _take(self, answer: Answer) -> str | None:
        if not secrets.compare_digest(answer.get("state", "").encode(), self._state.encode()):
            return None
        if self._answer.done():
            return _DONE
        if (problem := self._find_wrong_issuer(answer.get("iss"))) is not None:
            answer = {"error": problem}  # what else a wrong issuer says is not shown
        self._answer.set_result(answer)
        return "The login was refused. You can close this window." if "error" in answer else _DONE

    def _find_wrong_issuer(self, iss: str | None) -> str | None:
        """Compare the issuer of an answer with the one that was asked (RFC 9207): plain text, nothing normalized."""
        assert self._server is not None
        if iss is None:
            is_promised = bool(self._server.authorization_response_iss_parameter_supported)
            return "the answer does not name its issuer" if is_promised else None
        return None if iss == self._server.issuer else "the answer is of another issuer"

    async def _discover(self, challenge: Challenge) -> tuple[ResourceMetadata, ServerMetadata]:
        resource = await self._find_resource(challenge)
        if resource is None:  # a server of 2025-03-26 is its own authorization server
            parts = urlsplit(canonical_resource(self._tokens.url))
            issuer = f"{parts.scheme}://{parts.netloc}"
            return ResourceMetadata(), await self._find_server(issuer) or default_server(issuer)
        if not resource.authorization_servers:
            raise LoginFailed("the server names no authorization server")
        check_resource(resource.resource, self._tokens.url)  # before anything else is asked
        issuer = resource.authorization_servers[0]
        if (server := await self._find_server(issuer)) is None:
            raise LoginFailed(f"the authorization server {printable(issuer)} publishes nothing that Kedge understands")
        return resource, server

    async def _find_resource(self, challenge: Challenge) -> ResourceMetadata | None:
        what = "its metadata"
        if challenge.resource_metadata is not None:
            found = await self._web.get(challenge.resource_metadata, ResourceMetadata, what)
            if found is None:
                raise LoginFailed("the server has no metadata where it says")
            return found
        for url in list_resource_urls(self._tokens.url):
            if (found := await self._web.get(url, ResourceMetadata, what)) is not None:
                return found
        return None

    async def _find_server(self, issuer: str) -> ServerMetadata | None:
        self._web.check_url(issuer, "its authorization server")
        for url in list_issuer_urls(issuer):
            found = await self._web.get(url, ServerMetadata, "its authorization server")
            if found is not None:
                check_server(found, issuer)
                return found
        return None

    async def _find_client(self, server: ServerMetadata) -> Grant:
        """Return the client to log in with: configured, described by a document, known from before, or registered."""
        configured = self._config.client_id
        grant = Grant(
            resource=self._tokens.resource,
            issuer=server.issuer,
            token_endpoint=self._web.check_url(server.token_endpoint, "tokens"),
            client_id=configured or "",
            is_configured=configured is not None,
        )
        known = await self._tokens.get_grant()
        is_document = configured is not None and configured.startswith("https://")
        if configured is not None and (not is_document or server.client_id_metadata_document_supported):
            if known is not None and known.is_configured and known.issuer != server.issuer and not is_document:
                raise LoginFailed(
                    "the server names another authorization server than the one that the configured client_id is of;"
                    " if that is right, log out first"
                )
            secret = self._config.client_secret
            return msgspec.structs.replace(
                grant,
                client_secret=secret,
                auth_method=_choose_method(server, has_secret=secret is not None),
                redirect_uri=await self._listen(self._config.callback_port or 0),
            )
        if known is not None and known.issuer == server.issuer and known.redirect_uri and not known.is_configured:
            port = urlsplit(known.redirect_uri).port or 0
            with contextlib.suppress(OSError):  # the port is taken
                await self._listener.open(port)
                return msgspec.structs.replace(known, access_token="", refresh_token=None, refresh_at=None)
        if server.registration_endpoint is None:
            raise LoginFailed("the server registers no clients by itself: set mcp.NAME.oauth.client_id to one of yours")
        return await self._register(grant, server, server.registration_endpoint)

    async def _register(self, grant: Grant, server: ServerMetadata, endpoint: str) -> Grant:
        redirect_uri = await self._listen(self._config.callback_port or 0)
        document = {
            "client_name": "Kedge",
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "application_type": "native",
            "token_endpoint_auth_method": _choose_method(server, has_secret=None),
        }
        status, body = await self._web.post_json(endpoint, document, "registrations")
        if status not in (200, 201):
            raise LoginFailed(f"the authorization server registers no client (status {status}){read_error(body)[1]}")
        try:
            client = msgspec.json.decode(body, type=_Registration)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise LoginFailed("the authorization server's answer to the registration has no client id") from None
        method = client.token_endpoint_auth_method
        if method not in _METHODS:
            method = _choose_method(server, has_secret=client.client_secret is not None)
        grant = msgspec.structs.replace(
            grant,
            client_id=client.client_id,
            client_secret=client.client_secret,
            auth_method=method,
            redirect_uri=redirect_uri,
            is_configured=False,
        )
        if not await self._has_tokens():
            await self._tokens.save(grant)  # a login that is interrupted does not register again
        return grant

    async def _has_tokens(self) -> bool:
        known = await self._tokens.get_grant()
        return known is not None and bool(known.access_token)

    async def _listen(self, port: int) -> str:
        try:
            return await self._listener.open(port)
        except OSError as error:
            raise LoginFailed(f"port {port} of this machine cannot be used: {error.strerror}") from error


def _choose_method(server: ServerMetadata, *, has_secret: bool | None) -> str:
    """Return how the client proves itself at the token endpoint. None: it may get a secret, or not."""
    supported = server.token_endpoint_auth_methods_supported
    if has_secret is False:
        return "none"
    if supported is None:
        return "client_secret_basic" if has_secret else "none"
    usable = _METHODS if has_secret is None else _METHODS[1:]
    return next((method for method in usable if method in supported), usable[0])

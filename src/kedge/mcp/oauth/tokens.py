"""Tokens of MCP servers: stored, sent, refreshed and forgotten.

They are kept where API keys are, by server (resource) and by the authorization server that issued them (issuer). A
token is sent to its resource only, a refresh token to the token endpoint of its issuer only. Nothing here is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from base64 import b64encode
from typing import Protocol
from urllib.parse import quote

import msgspec

from kedge.jsonrpc.errors import CannotConnect, PeerError
from kedge.mcp.errors import LoginFailed, LoginRequired
from kedge.mcp.oauth.metadata import Challenge, canonical_resource, join_scopes, parse_challenge, split_scopes
from kedge.mcp.oauth.web import LoginWeb
from kedge.protocol.errors import KedgeError

log = logging.getLogger(__name__)

REFRESH_EARLY_S = 30.0  # before a token expires, but not in the first half of its life
_DEAD_GRANTS = frozenset({"invalid_grant", "invalid_client", "unauthorized_client", "invalid_scope"})


class SecretStore(Protocol):
    """Secrets by name, in the file or keyring of the API keys. Its methods raise `KedgeError`."""

    async def list_names(self) -> list[str]: ...
    async def read(self, name: str) -> str | None: ...
    async def write(self, name: str, secret: str | None) -> None:
        """Store a secret, or remove it (None)."""


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client of an authorization server, and its tokens if a person has logged in."""

    resource: str
    issuer: str
    token_endpoint: str
    client_id: str
    client_secret: str | None = None
    auth_method: str = "none"  # of the client at the token endpoint
    redirect_uri: str = ""  # of a registered client
    is_configured: bool = False  # the client id is from the configuration
    asked_resource: str = ""  # the identifier that the server publishes
    revocation_endpoint: str | None = None
    access_token: str = ""
    refresh_token: str | None = None
    refresh_at: float | None = None  # shortly before the access token expires
    scopes: tuple[str, ...] = ()  # that were asked for
    saved_at: float = 0.0

    def __repr__(self) -> str:
        return f"Grant({self.resource}, {self.issuer})"

    @property
    def name(self) -> str:
        return f"{self.resource} {self.issuer}"


class _TokenAnswer(msgspec.Struct):
    access_token: str
    token_type: str = "Bearer"
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None

    def __repr__(self) -> str:
        return "_TokenAnswer()"


class _ErrorAnswer(msgspec.Struct):
    error: str = ""
    error_description: str = ""


class ServerTokens:
    """Implements `kedge.mcp.http.Authorization` for one server, for all its connections."""

    def __init__(self, url: str, store: SecretStore) -> None:
        self.url = url
        self.resource = canonical_resource(url)
        self.challenge = Challenge()  # the last one, which the next login answers
        self._store = store
        self._grant: Grant | None = None
        self._is_loaded = False
        self._lock = asyncio.Lock()

    async def get_header(self) -> str | None:
        grant = await self.get_grant()
        if grant is None or not grant.access_token:
            return None
        if grant.refresh_at is not None and grant.refresh_at < time.time():
            grant = await self._refresh(grant.access_token)
        return f"Bearer {grant.access_token}"

    async def renew(self, status: int, challenge: str, used: str | None) -> None:
        self.challenge = parse_challenge(challenge)
        grant = await self.get_grant()
        if status == 403:  # the token is valid: another one needs more scopes
            wanted = join_scopes(() if grant is None else grant.scopes, self.challenge.scopes)
            self.challenge = msgspec.structs.replace(self.challenge, scopes=wanted)
            more = " ".join(self.challenge.scopes)[:200]
            raise LoginRequired(f"the server wants more rights ({more}); log in again")
        if grant is None or not grant.access_token:
            raise LoginRequired("the server needs a login")
        if used == f"Bearer {grant.access_token}":
            await self._refresh(grant.access_token)

    async def get_grant(self) -> Grant | None:
        """Return the newest stored grant for this server. Raises `CannotConnect` if the store cannot be read."""
        if not self._is_loaded:
            async with self._lock:
                if not self._is_loaded:
                    try:
                        found = await list_grants(self._store, self.resource)
                    except KedgeError as error:
                        raise CannotConnect(f"its login cannot be read: {error.message}") from error
                    self._grant = max(found, key=lambda grant: grant.saved_at, default=None)
                    self._is_loaded = True
        return self._grant

    async def save(self, grant: Grant) -> None:
        """Store a grant, in place of those of other authorization servers once it has a token.

        It is used even if `LoginFailed` is raised, because it cannot be stored.
        """
        grant = msgspec.structs.replace(grant, saved_at=time.time())
        self._grant, self._is_loaded = grant, True
        try:
            await self._store.write(grant.name, msgspec.json.encode(grant).decode())
            if grant.access_token:
                self.challenge = Challenge()
                for other in await list_grants(self._store, self.resource):
                    if other.issuer != grant.issuer:
                        await self._store.write(other.name, None)
        except KedgeError as error:
            raise LoginFailed(f"the login cannot be stored: {error.message}") from error

    async def forget(self) -> bool:
        """Remove what is stored for this server, and revoke its tokens if the issuer can. Returns False without any."""
        found = await list_grants(self._store, self.resource)
        for grant in found:
            await self._store.write(grant.name, None)
        self._grant, self._is_loaded = None, True
        for grant in found:
            await self._revoke(grant)
        return any(grant.access_token for grant in found)

    async def _refresh(self, used: str) -> Grant:
        """Replace an access token, once for all who noticed that it expired. Raises `LoginRequired`."""
        async with self._lock:
            grant = self._grant
            if grant is None or not grant.access_token:
                raise LoginRequired("the server needs a login")
            if grant.access_token != used:
                return grant
            if grant.refresh_token is None:
                await self._drop_tokens(grant)
                raise LoginRequired("the login has expired")
            fields = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token}
            web = LoginWeb(self.url)
            try:
                grant = await request_token(web, grant, fields)
            except LoginFailed as error:
                await self._drop_tokens(grant)
                raise LoginRequired(f"the login has expired ({error.text})") from None
            finally:
                web.close()
            try:
                await self.save(grant)
            except LoginFailed as error:  # the old token may be dead already
                log.warning("%s: %s", grant.resource, error.text)
            return grant

    async def _drop_tokens(self, grant: Grant) -> None:
        """Keep the client's registration for the next login."""
        self._grant = msgspec.structs.replace(grant, access_token="", refresh_token=None, refresh_at=None)
        with contextlib.suppress(KedgeError):  # they are of no use
            await self._store.write(grant.name, msgspec.json.encode(self._grant).decode())

    async def _revoke(self, grant: Grant) -> None:
        token = grant.refresh_token or grant.access_token
        if not token or grant.revocation_endpoint is None:
            return
        web = LoginWeb(self.url)
        try:
            with contextlib.suppress(PeerError):  # they are gone here in any case
                fields, headers = authenticate(grant, {"token": token})
                await web.post_form(grant.revocation_endpoint, fields, headers, "logouts")
        finally:
            web.close()


async def list_grants(store: SecretStore, resource: str) -> list[Grant]:
    """Return what is stored for a server. What cannot be decoded counts as absent."""
    grants: list[Grant] = []
    for name in await store.list_names():
        if name.startswith(f"{resource} ") and (text := await store.read(name)) is not None:
            with contextlib.suppress(msgspec.MsgspecError):
                grants.append(msgspec.json.decode(text, type=Grant))
    return grants


def authenticate(grant: Grant, fields: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the form and the headers of a request of this client to its authorization server."""
    if grant.client_secret is not None and grant.auth_method == "client_secret_basic":
        pair = f"{quote(grant.client_id, safe='')}:{quote(grant.client_secret, safe='')}"
        return fields, {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
    fields = {**fields, "client_id": grant.client_id}
    if grant.client_secret is not None and grant.auth_method == "client_secret_post":
        fields["client_secret"] = grant.client_secret
    return fields, {}


async def request_token(web: LoginWeb, grant: Grant, fields: dict[str, str]) -> Grant:
    """Return the grant with new tokens. Raises `LoginFailed` if they are refused, else `CannotConnect`."""
    form, headers = authenticate(grant, {**fields, "resource": grant.asked_resource or grant.resource})
    status, body = await web.post_form(grant.token_endpoint, form, headers, "tokens")
    if status != 200:
        error, text = read_error(body)
        if status >= 500 or status == 429 or (fields["grant_type"] == "refresh_token" and error not in _DEAD_GRANTS):
            raise CannotConnect(f"the authorization server answered with status {status}{text}")
        raise LoginFailed(f"the authorization server refuses to issue a token{text}")
    try:
        answer = msgspec.json.decode(body, type=_TokenAnswer)
        lifetime_s = None if answer.expires_in is None else float(answer.expires_in)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        # No `from`: the decoder's message may quote a token.
        raise LoginFailed("the authorization server's answer has no token") from None
    token = answer.access_token
    if answer.token_type.lower() != "bearer" or not token or not (token.isascii() and token.isprintable()):
        raise LoginFailed("the authorization server issued a token that cannot be used")
    return msgspec.structs.replace(
        grant,
        access_token=token,
        refresh_token=answer.refresh_token or grant.refresh_token,
        refresh_at=None if lifetime_s is None else time.time() + max(lifetime_s - REFRESH_EARLY_S, lifetime_s / 2),
        scopes=join_scopes(grant.scopes, split_scopes(answer.scope or "")),
    )


def read_error(body: bytes) -> tuple[str, str]:
    """Return the code of an OAuth error, and a text for people that begins with ": "; empty if there is none."""
    try:
        answer = msgspec.json.decode(body, type=_ErrorAnswer)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return "", ""
    text = " ".join(filter(None, [answer.error, answer.error_description and f"({answer.error_description})"]))
    return answer.error, f": {printable(text)}" if text else ""


def printable(text: str) -> str:
    """Return a text of a server as one short line."""
    return "".join(char if char.isprintable() else " " for char in text[:200])

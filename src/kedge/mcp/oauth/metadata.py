"""What servers publish for logins, and the addresses where they do. Pure.

An MCP server names its authorization servers (RFC 9728); each of those describes itself (RFC 8414, or OpenID Connect
Discovery). Neither is trusted: a resource or an issuer that is not the expected one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

import msgspec

from kedge.mcp.errors import LoginFailed

RESOURCE_PATH = "/.well-known/oauth-protected-resource"
SERVER_PATH = "/.well-known/oauth-authorization-server"
OPENID_PATH = "/.well-known/openid-configuration"
OFFLINE = "offline_access"  # the scope with which many servers issue refresh tokens
MAX_SCOPES = 100
_PARAMETER = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s,"]+))')
_SCOPE = re.compile(r"[!#-\[\]-~]+")


class Challenge(msgspec.Struct, frozen=True):
    """What a 401 or 403 asks for, in `WWW-Authenticate`."""

    resource_metadata: str | None = None
    scopes: tuple[str, ...] = ()
    error: str = ""


class ResourceMetadata(msgspec.Struct, frozen=True):
    resource: str | None = None
    authorization_servers: list[str] = []
    scopes_supported: list[str] | None = None


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    client_id_metadata_document_supported: bool | None = False
    authorization_response_iss_parameter_supported: bool | None = False


def parse_challenge(header: str) -> Challenge:
    """Parse the Bearer challenge of a `WWW-Authenticate` header; what is missing or malformed is left out."""
    start = header.lower().find("bearer")
    found: dict[str, str] = {}
    for name, quoted, plain in _PARAMETER.findall(header[start:] if start >= 0 else ""):
        found.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or plain)
    return Challenge(found.get("resource_metadata"), split_scopes(found.get("scope", "")), found.get("error", ""))


def split_scopes(text: str) -> tuple[str, ...]:
    return tuple(scope for scope in text.split()[:MAX_SCOPES] if _SCOPE.fullmatch(scope))


def join_scopes(*scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the union, in order."""
    return tuple(dict.fromkeys(scope for some in scopes for scope in some))


def choose_scopes(
    configured: tuple[str, ...], challenge: Challenge, resource: ResourceMetadata, server: ServerMetadata
) -> tuple[str, ...]:
    """Return the scopes to ask for; none means that the server decides."""
    if challenge.error == "insufficient_scope":
        return join_scopes(configured, challenge.scopes)
    scopes = configured or challenge.scopes or split_scopes(" ".join(resource.scopes_supported or []))
    if scopes and not configured and OFFLINE in (server.scopes_supported or []):
        scopes = join_scopes(scopes, [OFFLINE])
    return scopes


def canonical_resource(url: str) -> str:
    """Return the resource identifier of an MCP server (RFC 8707): without fragment, query and trailing slash."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return SplitResult(parts.scheme.lower(), host, parts.path.rstrip("/"), "", "").geturl()


def check_resource(published: str | None, url: str) -> str:
    """Return the identifier to ask a token for. Raises `LoginFailed` if the metadata is about another server."""
    own = canonical_resource(url)
    if published is None:
        return own
    theirs, ours = urlsplit(canonical_resource(published)), urlsplit(own)
    is_same_origin = (theirs.scheme, theirs.netloc) == (ours.scheme, ours.netloc)
    if not is_same_origin or not (ours.path + "/").startswith(theirs.path + "/"):
        raise LoginFailed(f"{ours.netloc} publishes the login of another server ({theirs.netloc[:100]})")
    return published


def list_resource_urls(url: str) -> list[str]:
    """Return where an MCP server may publish its metadata if it does not say."""
    parts = urlsplit(canonical_resource(url))
    root = f"{parts.scheme}://{parts.netloc}{RESOURCE_PATH}"
    return [root + parts.path, root] if parts.path else [root]


def list_issuer_urls(issuer: str) -> list[str]:
    """Return where an authorization server may publish its metadata, the preferred address first."""
    parts = urlsplit(issuer)
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    if not path:
        return [root + SERVER_PATH, root + OPENID_PATH]
    return [root + SERVER_PATH + path, root + OPENID_PATH + path, root + path + OPENID_PATH]


def default_server(origin: str) -> ServerMetadata:
    """Return the endpoints of a server of 2025-03-26 that publishes nothing."""
    return ServerMetadata(
        issuer=origin,
        authorization_endpoint=f"{origin}/authorize",
        token_endpoint=f"{origin}/token",
        registration_endpoint=f"{origin}/register",
        code_challenge_methods_supported=["S256"],
    )


def check_server(server: ServerMetadata, issuer: str) -> None:
    """Raises `LoginFailed` for metadata that may not be used."""
    if server.issuer != issuer:
        raise LoginFailed(f"the authorization server {issuer[:200]} describes itself as another one")
    if "S256" not in (server.code_challenge_methods_supported or []):
        raise LoginFailed(f"the authorization server {issuer[:200]} does not protect logins with PKCE (S256)")

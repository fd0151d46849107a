"""Authentication over TCP (P16): a bearer token, and checks of `Host` and `Origin` that keep web pages out."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets

from kedge.protocol import proof
from kedge.protocol.address import AddressError, TcpAddress, read_token
from kedge.protocol.api import Proof, ProofQuery
from kedge.protocol.errors import KedgeError
from kedge.protocol.proof import MIN_TOKEN_CHARS, format_address
from kedge.server.app import decode_query, send_error, send_response
from kedge.server.errors import Forbidden, Unauthorized
from kedge.server.exchange import App, Exchange
from kedge.server.http import Response

_HOST = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-f:.]*:[0-9a-f:.]*)\]|(?P<name>[^\s\[\]:@/]+))(?::(?P<port>[0-9]{0,5}))?", re.ASCII
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def make_token(path: str) -> str:
    """Return the token in a file that only its owner can read; create the file on first use. Raises `AddressError`."""
    if token := read_token(path):
        found = os.stat(path)
        if found.st_mode & 0o077 or found.st_uid != os.getuid():
            raise AddressError(
                f"The token in {path} can be read by other users. Run chmod 600 on it, or delete it to get a new one."
            )
        return check_token(token)
    token = secrets.token_urlsafe(32)
    unfinished = f"{path}.{secrets.token_hex(4)}"
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{token}\n")
        os.replace(unfinished, path)  # atomic: a client may be waiting for the file
    except OSError as error:
        raise AddressError(
            f"Cannot write a token to {path} ({error.strerror}). Choose another --token-file."
        ) from error
    return token


def check_token(token: str) -> str:
    """Return a user-chosen token; raise `AddressError` if it could be guessed."""
    if len(token) < MIN_TOKEN_CHARS or not token.isascii():
        raise AddressError(
            f"The token is too short, or not plain ASCII. Use {MIN_TOKEN_CHARS} random characters or more, "
            "for example from: openssl rand -hex 32"
        )
    return token


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AuthMiddleware:
    """Wraps the application on a TCP socket: only authenticated requests reach it."""

    def __init__(self, app: App, token: str, bound: TcpAddress, extra_hosts: tuple[str, ...] = ()) -> None:
        self._app = app
        self._token = token
        self._names = {name.lower() for name in (*LOOPBACK_NAMES, bound.host)}
        self._forwarded: set[str] = set()  # addresses of proxies that forward to this server
        for given in extra_hosts:
            name, port = _split_host(given.lower()) or (given.lower(), "")
            self._names.add(name)
            if port:
                self._forwarded.add(format_address((name, port)))
        self._is_remote = not is_loopback(bound.host)

    async def __call__(self, exchange: Exchange) -> None:
        try:
            self._check_host(exchange.headers)
            if exchange.path == proof.PATH and exchange.method == "GET":
                await send_response(Response(self._prove(exchange)), exchange)
                return
            self._check_token(exchange.headers)
        except KedgeError as error:
            await send_error(error, exchange)
        else:
            exchange.connection.mark_authenticated()
            await self._app(exchange)

    def _check_host(self, headers: list[tuple[bytes, bytes]]) -> None:
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._is_known(hosts[0]):
            raise Forbidden(
                "forbidden_host", "The Host header is not a known name of this server. Add the name with --allow-host."
            )
        for name, value in headers:
            if name == b"origin" and value.decode("latin-1").lower() != f"http://{hosts[0].lower()}":
                raise Forbidden("forbidden_origin", "Requests from other web pages are refused.")

    def _check_token(self, headers: list[tuple[bytes, bytes]]) -> None:
        given = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token.encode()):
            raise Unauthorized

    def _prove(self, exchange: Exchange) -> Proof:
        """Return a proof for one of our own addresses: a server at another address cannot present it as its own."""
        query = decode_query(ProofQuery, exchange.query)
        own = format_address(exchange.connection.server)
        address = query.address if query.address in self._forwarded else own
        return Proof(proof.compute_proof(self._token, query.nonce, address), address)

    def _is_known(self, host: str) -> bool:
        name = host_name(host)
        # A server that other machines can reach is also addressed by IP, which DNS rebinding cannot forge.
        return name in self._names or (self._is_remote and name is not None and _is_address(name))


def host_name(host: str) -> str | None:
    """Return the name in a `Host` header without its port; None if it is malformed."""
    split = _split_host(host.lower())
    return split[0] if split else None


def _split_host(host: str) -> tuple[str, str] | None:
    """Return name and port of a `Host` header, the port as digits or empty; None if it is malformed."""
    if _is_ipv6(host):
        return host, ""  # lacks the brackets that the standard demands, but is unambiguous
    found = _HOST.fullmatch(host)
    return (found["name"] or found["ipv6"], found["port"] or "") if found else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_ipv6(host: str) -> bool:
    return ":" in host and "%" not in host and _is_address(host)

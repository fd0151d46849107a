"""P16 for TCP: a bearer token, always; and no web page gets in, because `Host` and `Origin` are checked too."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets

from kedge.protocol.address import AddressError, TcpAddress, read_token
from kedge.protocol.errors import KedgeError
from kedge.server.app import App, Receive, Scope, Send, send_error
from kedge.server.errors import Forbidden, Unauthorized

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def make_token(path: str) -> str:
    """The token of a file that only its owner can read; made on first use."""
    if token := read_token(path):
        found = os.stat(path)
        if found.st_mode & 0o077 or found.st_uid != os.getuid():
            raise AddressError(f"the token in {path} can be read by others; chmod 600 it, or remove it for a new one")
        return token
    token = secrets.token_urlsafe(32)
    unfinished = f"{path}.{secrets.token_hex(4)}"
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{token}\n")
        os.replace(unfinished, path)  # whole or not at all: a client may be waiting for it
    except OSError as error:
        raise AddressError(f"cannot write a token to {path} ({error.strerror}); name another --token-file") from error
    return token


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Stands before the application on a TCP socket."""

    def __init__(self, app: App, token: str, bound: TcpAddress, extra_hosts: tuple[str, ...] = ()) -> None:
        self._app = app
        self._token = token.encode()
        self._names = {name.lower() for name in (*LOOPBACK_NAMES, bound.host, *extra_hosts)}
        self._is_remote = not is_loopback(bound.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except KedgeError as error:
            await send_error(error, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._is_known(hosts[0]):
            raise Forbidden("forbidden_host", "this server does not answer to that Host")
        for name, value in headers:
            if name == b"origin" and value.decode("latin-1").lower() != f"http://{hosts[0].lower()}":
                raise Forbidden("forbidden_origin", "requests from other web pages are refused")
        given = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            raise Unauthorized

    def _is_known(self, host: str) -> bool:
        name = _without_port(host).lower()
        # Bound to the outside, the server is reached by address too: a page that rebinds a name cannot do that.
        return name in self._names or (self._is_remote and _is_address(name))


def _without_port(host: str) -> str:
    if host.startswith("["):
        name, bracket, _ = host[1:].partition("]")
        return name if bracket else host
    return host.partition(":")[0] if host.count(":") == 1 else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

"""The way out to a provider: by which proxy, and whose certificates are believed. Pure; the network is transport.py's.

The variables are those of the shell that sent the prompt. Where it has none of a kind, the server's own count.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

NO_PROXY = "NO_PROXY"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", NO_PROXY)
_PORTS = {"http": 80, "https": 443}


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """What is empty is left to the server's environment."""

    is_direct: bool = False  # by no proxy
    proxy: str = ""
    ca_file: str = ""  # these certificates are believed, and no others: as OpenSSL has it
    ca_dir: str = ""
    extra_ca_file: str = ""  # these are believed too

    def __repr__(self) -> str:
        return (
            "Way(direct)" if self.is_direct else "Way(by a proxy)" if self.proxy else "Way()"
        )  # its URL may hold a password


ANY_WAY = Way()


def way_to(url: str, env: Mapping[str, str], ca_file: str | None = None) -> Way:
    """How the run with this environment reaches that address; `ca_file` is configured for it."""
    ca = Way(
        ca_file=_variable(env, "SSL_CERT_FILE"), ca_dir=_variable(env, "SSL_CERT_DIR"), extra_ca_file=ca_file or ""
    )
    if is_loopback(url):
        return msgspec.structs.replace(ca, is_direct=True)
    if not any(_variable(env, name) for name in PROXIES):
        return ca
    proxy = proxy_for(url, env)
    return msgspec.structs.replace(ca, is_direct=not proxy, proxy=proxy)


def proxy_for(url: str, env: Mapping[str, str]) -> str:
    """The proxy that the variables name for an address; empty: none."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or _PORTS.get(parts.scheme, 0)
    if any(_is_excepted(entry.strip().lower(), host, port) for entry in _variable(env, NO_PROXY).split(",")):
        return ""
    proxy = _variable(env, f"{parts.scheme.upper()}_PROXY") or _variable(env, "ALL_PROXY")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def is_loopback(url: str) -> bool:
    """No proxy leads to this machine. Its servers say that they listen on 0.0.0.0, which people copy."""
    host = (urlsplit(url).hostname or "").lower()
    if (address := _address(host)) is not None:
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")


def _variable(env: Mapping[str, str], name: str) -> str:
    """In small letters too, which win, as with curl."""
    return env.get(name.lower(), "").strip() or env.get(name, "").strip()


def _is_excepted(entry: str, host: str, port: int) -> bool:
    """An entry is a name, which stands for those below it too, an address, a network, or all; with a port or not."""
    if entry in ("", "*"):
        return entry == "*"
    address = _address(host)
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdecimal() and (":" not in name or name.endswith("]")):
        if int(wanted) != port:
            return False
        entry = name
    entry = entry.strip("[]")
    if address is not None:
        return _address(entry) == address
    entry = entry.removeprefix("*").removeprefix(".")
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None

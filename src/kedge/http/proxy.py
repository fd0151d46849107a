"""Proxy and certificates for connections to a provider, from the environment of the shell that sent the prompt.

If that shell sets none, those of the server's own environment apply. Pure: transport.py makes the connections.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

NO_PROXY = "NO_PROXY"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", NO_PROXY)
_PORTS = {"http": 80, "https": 443}


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Empty fields are left to the server's environment."""

    is_direct: bool = False  # without a proxy
    proxy: str = ""
    ca_file: str = ""  # trust only these certificates, as OpenSSL does
    ca_dir: str = ""
    extra_ca_file: str = ""  # trust these in addition

    def __repr__(self) -> str:
        # The URL may contain a password.
        return f"ConnectionOptions({'direct' if self.is_direct else 'proxy' if self.proxy else ''})"


DEFAULT_CONNECTION = ConnectionOptions()


def choose_connection(url: str, env: Mapping[str, str], ca_file: str | None = None) -> ConnectionOptions:
    """Return the options for a URL and a run's environment; `ca_file` is the configured one."""
    ca = ConnectionOptions(
        ca_file=_variable(env, "SSL_CERT_FILE"), ca_dir=_variable(env, "SSL_CERT_DIR"), extra_ca_file=ca_file or ""
    )
    if is_loopback(url):
        return msgspec.structs.replace(ca, is_direct=True)
    if not any(_variable(env, name) for name in PROXIES):
        return ca
    proxy = find_proxy(url, env)
    return msgspec.structs.replace(ca, is_direct=not proxy, proxy=proxy)


def find_proxy(url: str, env: Mapping[str, str]) -> str:
    """Return the proxy that the variables set for a URL, or an empty string."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or _PORTS.get(parts.scheme, 0)
    if any(_matches_entry(entry.strip().lower(), host, port) for entry in _variable(env, NO_PROXY).split(",")):
        return ""
    proxy = _variable(env, f"{parts.scheme.upper()}_PROXY") or _variable(env, "ALL_PROXY")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def is_loopback(url: str) -> bool:
    """True for this machine, which no proxy reaches. 0.0.0.0 counts: model servers print it, and people copy it."""
    host = (urlsplit(url).hostname or "").lower()
    if (address := _parse_address(host)) is not None:
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")


def _variable(env: Mapping[str, str], name: str) -> str:
    """The lower-case name takes precedence, as in curl."""
    return env.get(name.lower(), "").strip() or env.get(name, "").strip()


def _matches_entry(entry: str, host: str, port: int) -> bool:
    """Match a NO_PROXY entry: a domain (with subdomains), an address, a network or `*`, optionally with a port."""
    if entry in ("", "*"):
        return entry == "*"
    address = _parse_address(host)
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
        return _parse_address(entry) == address
    entry = entry.removeprefix("*").removeprefix(".")
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None

"""HTTP connections to MCP servers, with the proxy and the certificates of Kedge's own environment."""

from __future__ import annotations

import os

from kedge.http.client import HttpClient
from kedge.http.connection import Connector, Origin
from kedge.http.proxy import find_proxy, is_loopback

CONNECT_S = 15.0


def make_http_client() -> HttpClient:
    return HttpClient(Connector(find_proxy_for).open, connect_s=CONNECT_S, stall_s=CONNECT_S)


def find_proxy_for(origin: Origin) -> str:
    """Return the URL of the proxy for a server, an empty string without one."""
    url = f"{origin.scheme}://{origin.netloc}"
    return "" if is_loopback(url) else find_proxy(url, os.environ)

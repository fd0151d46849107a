"""Parts of logins: a store of secrets in memory, and a browser without a person."""

from __future__ import annotations

from urllib.parse import urljoin

from kedge.mcp.connections import make_http_client

MAX_PAGES = 10


class MemoryStore:
    """Implements `kedge.mcp.oauth.tokens.SecretStore`."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}

    async def list_names(self) -> list[str]:
        return list(self.secrets)

    async def read(self, name: str) -> str | None:
        return self.secrets.get(name)

    async def write(self, name: str, secret: str | None) -> None:
        if secret is None:
            self.secrets.pop(name, None)
        else:
            self.secrets[name] = secret


async def play_browser(url: str) -> tuple[int, str]:
    """Open an address and follow its redirects, as the browser of a person who agrees. Return status and page."""
    http = make_http_client()
    try:
        for _ in range(MAX_PAGES):
            async with http.send("GET", url, {"Accept": "text/html"}) as response:
                page = (await response.read()).decode()
                if "location" not in response.headers:
                    return response.status, page
                url = urljoin(url, response.headers["location"])
    finally:
        http.close()
    raise AssertionError("redirected without end")

"""All logins of a Kedge server: the tokens of each MCP server, and the logins that wait for a browser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kedge.config.schema import McpOAuthConfig
from kedge.mcp.errors import LoginFailed
from kedge.mcp.oauth.login import Login
from kedge.mcp.oauth.metadata import canonical_resource
from kedge.mcp.oauth.tokens import SecretStore, ServerTokens


class _Pending:
    def __init__(self, login: Login) -> None:
        self.login = login
        self.end: asyncio.Task[None]  # raises `PeerError` if the login failed


class Logins:
    def __init__(self, store: SecretStore, on_change: Callable[[str], None] = lambda _: None) -> None:
        """`on_change` is called with the resource of a server after a login or a logout."""
        self._store = store
        self._on_change = on_change
        self._tokens: dict[str, ServerTokens] = {}
        self._pending: dict[str, _Pending] = {}

    def get_tokens(self, url: str) -> ServerTokens:
        """Return the tokens of the server with this address, which all connections to it share."""
        resource = canonical_resource(url)
        if resource not in self._tokens:
            self._tokens[resource] = ServerTokens(url, self._store)
        return self._tokens[resource]

    async def begin(self, url: str, config: McpOAuthConfig) -> str:
        """Begin a login, in place of an earlier one; return the address for the browser. Raises `PeerError`.

        `config` has its references expanded.
        """
        tokens = self.get_tokens(url)
        await self._cancel(tokens.resource)
        login = Login(tokens, config)
        try:
            await login.start()
        except BaseException:
            await login.close()
            raise
        pending = _Pending(login)
        pending.end = asyncio.create_task(self._finish(tokens.resource, login))
        pending.end.add_done_callback(_retrieve)
        self._pending[tokens.resource] = pending
        return login.url

    def is_pending(self, url: str) -> bool:
        """Whether a login was begun since the server started."""
        return canonical_resource(url) in self._pending

    async def wait(self, url: str, timeout_s: float) -> bool:
        """Wait for the end of a login; return False if it has not come yet. Raises `PeerError` if it failed."""
        pending = self._pending[canonical_resource(url)]
        done, _ = await asyncio.wait([pending.end], timeout=timeout_s)
        if not done:
            return False
        if pending.end.cancelled():
            raise LoginFailed("another login was begun")
        pending.end.result()
        return True

    def answer(self, url: str, redirected_to: str) -> bool:
        """Take the address at which a browser ended; return whether it belongs to the login of this server."""
        pending = self._pending.get(canonical_resource(url))
        return pending is not None and pending.login.answer(redirected_to)

    async def log_out(self, url: str) -> bool:
        """Forget the tokens of a server; return False if there were none."""
        tokens = self.get_tokens(url)
        await self._cancel(tokens.resource)
        had_tokens = await tokens.forget()
        self._on_change(tokens.resource)
        return had_tokens

    async def close(self) -> None:
        for resource in list(self._pending):
            await self._cancel(resource)

    async def _finish(self, resource: str, login: Login) -> None:
        try:
            await login.wait()
        finally:
            await login.close()
        self._on_change(resource)

    async def _cancel(self, resource: str) -> None:
        pending = self._pending.pop(resource, None)
        if pending is not None:
            pending.end.cancel()
            await asyncio.wait([pending.end])
            await pending.login.close()  # also if it was canceled before it began to wait


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take the error of a login that nobody waits for, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()

"""The key of one turn: looked up again when somebody logged in and when it was refused; where a person may be there, a
new login is waited for, which is told, bounded and cancellable (P8)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from kedge.config.schema import Config
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.errors import ConfigError, ModelError
from kedge.models.keys.credentials import Credentials
from kedge.models.provider_registry import find_provider
from kedge.models.selection.selector import ModelSelector
from kedge.models.values import Endpoint
from kedge.protocol.events import AgentEvent


class TurnKeys:
    """`kedge.agent.retry.Keys` of one turn."""

    def __init__(
        self,
        ctx: TurnContext,
        selector: ModelSelector,
        credentials: Credentials,
        env: Mapping[str, str],
        config: Config,
    ) -> None:
        self._ctx = ctx
        self._selector = selector
        self._credentials = credentials
        self._env = env
        self._config = config
        self._refused: set[str] = set()
        # What came before the keys that we know were looked up; a login that comes later is news.
        self._logins = credentials.all_logins()

    async def current(self, endpoint: Endpoint) -> Endpoint:
        """Before a step: the endpoint with the key of a login that came since."""
        if self._credentials.logins(endpoint.provider) == self._known(endpoint.provider):
            return endpoint
        self._seen_all(endpoint.provider)
        try:
            return await self._selector.refresh_key(endpoint, self._env, self._config, self._refused)
        except ConfigError:  # what the turn works with is good until a provider says otherwise
            return endpoint

    async def renewed(self, refused: Endpoint) -> Endpoint | None:
        self._seen_all(refused.provider)
        renewed = await self._selector.renew_key(refused, self._env, self._config, self._refused)
        return self._remember(refused, renewed)

    async def after_login(self, refused: Endpoint, error: ModelError) -> Endpoint | None:
        limit_s = self._config.credentials.wait_s
        if self._ctx.run.permissions != "ask" or not limit_s or find_provider(refused.provider, self._config) is None:
            return None
        count = self._known(refused.provider)
        await self._ctx.append_event(_asking(refused.provider, error, limit_s))
        key: str | None = None
        async with self._ctx.lend_slot():
            try:
                async with asyncio.timeout(limit_s):
                    key = await self._credentials.login_after(refused.provider, count)
            except TimeoutError:
                pass
        if key is None:
            raise TurnFailed(f"{error.text}; nobody logged in within {limit_s:g} s", error.code) from error
        self._seen_all(refused.provider)
        return self._remember(refused, msgspec.structs.replace(refused, api_key=key))

    def _known(self, provider_id: str) -> int:
        return self._logins.get(provider_id, 0)

    def _seen_all(self, provider_id: str) -> None:
        self._logins[provider_id] = self._credentials.logins(provider_id)

    def _remember(self, refused: Endpoint, renewed: Endpoint | None) -> Endpoint | None:
        if refused.api_key:
            self._refused.add(refused.api_key)
        if renewed is not None and renewed.api_key:  # whoever gave it anew says that it is good now
            self._refused.discard(renewed.api_key)
        return renewed


def _asking(provider_id: str, error: ModelError, limit_s: float) -> AgentEvent:
    return AgentEvent(
        type="re_authenticate",
        run_id="",
        session_id="",
        error=error.text,
        code=error.code,
        provider_id=provider_id,
        message=f"the run goes on after a new login: kedge login {provider_id}",
        details={"wait_s": limit_s},
    )

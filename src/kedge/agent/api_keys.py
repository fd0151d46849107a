"""The API keys of one turn: looked up again after a login and after a rejection.

A run that can ask a person waits for a new login: announced by an event, limited in time, and cancellable (P8).
"""

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


class TurnApiKeys:
    """Implements `kedge.agent.retry.ApiKeys` for one turn."""

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
        self._rejected: set[str] = set()
        self._logins = credentials.count_all_logins()  # by provider: the number of logins that the known keys include

    async def refresh(self, endpoint: Endpoint) -> Endpoint:
        if self._credentials.count_logins(endpoint.provider) == self._count_known(endpoint.provider):
            return endpoint
        self._mark_known(endpoint.provider)
        try:
            return await self._selector.refresh_key(endpoint, self._env, self._config, self._rejected)
        except ConfigError:  # the key in use is good until a provider rejects it
            return endpoint

    async def renew(self, rejected: Endpoint) -> Endpoint | None:
        self._mark_known(rejected.provider)
        renewed = await self._selector.renew_key(rejected, self._env, self._config, self._rejected)
        return self._remember(rejected, renewed)

    async def wait_for_login(self, rejected: Endpoint, error: ModelError) -> Endpoint | None:
        limit_s = self._config.credentials.wait_s
        if self._ctx.run.permissions != "ask" or not limit_s or find_provider(rejected.provider, self._config) is None:
            return None
        count = self._count_known(rejected.provider)
        await self._ctx.append_event(_login_request(rejected.provider, error, limit_s))
        key: str | None = None
        async with self._ctx.lend_slot():
            try:
                async with asyncio.timeout(limit_s):
                    key = await self._credentials.wait_for_login(rejected.provider, count)
            except TimeoutError:
                pass
        if key is None:
            raise TurnFailed(f"{error.text}; nobody logged in within {limit_s:g} s", error.code) from error
        self._mark_known(rejected.provider)
        return self._remember(rejected, msgspec.structs.replace(rejected, api_key=key))

    def _count_known(self, provider_id: str) -> int:
        return self._logins.get(provider_id, 0)

    def _mark_known(self, provider_id: str) -> None:
        self._logins[provider_id] = self._credentials.count_logins(provider_id)

    def _remember(self, rejected: Endpoint, renewed: Endpoint | None) -> Endpoint | None:
        if rejected.api_key:
            self._rejected.add(rejected.api_key)
        if renewed is not None and renewed.api_key:  # a person entered it again, so it may be good now
            self._rejected.discard(renewed.api_key)
        return renewed


def _login_request(provider_id: str, error: ModelError, limit_s: float) -> AgentEvent:
    return AgentEvent(
        type="re_authenticate",
        run_id="",
        session_id="",
        error=error.text,
        code=error.code,
        provider_id=provider_id,
        message=f"Log in to continue the run: kedge login {provider_id}",
        details={"wait_s": limit_s},
    )

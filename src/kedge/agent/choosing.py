"""Which model a turn works with: chosen, named by its server where nobody did, and told where somebody may wonder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kedge.agent.deps import Parts
from kedge.agent.retry import Attempts, Keys
from kedge.config.schema import Config
from kedge.engine.turn import TurnContext
from kedge.models.choose import Chosen, Local
from kedge.models.effort import why_not_passed_on
from kedge.models.errors import ModelError
from kedge.models.values import Endpoint
from kedge.protocol.events import AgentEvent


class Choosing:
    """For one turn, in its environment and with its configuration."""

    def __init__(self, parts: Parts, ctx: TurnContext, env: Mapping[str, str], config: Config) -> None:
        self._parts = parts
        self._ctx = ctx
        self._env = env
        self._config = config

    async def large(self, keys: Keys, *, is_first: bool) -> Chosen:
        """The model that does the work. `is_first`: of its session, where it is said why it is this one."""
        chooser, models = self._parts.chooser, self._parts.models
        attempts = Attempts(self._ctx, self._parts.retry, keys)
        chosen: Chosen | None = None
        while True:
            try:
                chosen = chosen or await chooser.large(self._ctx.model, self._env, self._config, self._local())
                endpoint = await models.named(chosen.endpoint)
                if is_first and chosen.is_found:
                    await self._tell(chosen.why, {"model": endpoint.name, "is_detail": True})
                return msgspec.structs.replace(chosen, endpoint=endpoint)
            except ModelError as error:
                if chosen is None:
                    await attempts.failed(error)
                else:  # a server that was asked for its models may refuse a key like any other
                    endpoint = await attempts.again(error, chosen.endpoint)
                    chosen = msgspec.structs.replace(chosen, endpoint=endpoint)

    async def small(self, large: Chosen) -> Endpoint | None:
        """The model that writes titles beside the large one; None: there is none that should."""
        chosen = await self._parts.chooser.small(large, self._env, self._config)
        return None if chosen is None else await self._parts.models.named(chosen.endpoint)

    async def tell_of_effort(self, endpoint: Endpoint, *, has_tools: bool) -> None:
        """Whoever asked for an effort hears where it comes to nothing; a sub-agent has that of its parent, who did."""
        wanted = self._ctx.effort
        if wanted is None or self._ctx.run.kind != "prompt":
            return
        if (why := why_not_passed_on(endpoint, wanted, has_tools=has_tools)) is not None:
            await self._tell(why, {"effort": wanted, "model": endpoint.name})

    def _local(self) -> Local:
        """What this machine has. Whoever gets it without having named it is told what it is, and why."""
        find = self._parts.local(self._ctx.directory, self._env, self._tell)

        async def found(name: str, /) -> Chosen:
            chosen = await find(name)
            if not name:
                await self._tell(chosen.why, {"model": chosen.endpoint.name})
            return chosen

        return found

    async def _tell(self, message: str, details: dict[str, Any]) -> None:
        await self._ctx.tell(AgentEvent(type="notice", run_id="", session_id="", message=message, details=details))

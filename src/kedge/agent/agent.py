"""The agent, as the server sees it: who works on which kind of run, and with which model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import date, datetime

from kedge.agent.retry import Retry
from kedge.agent.turn import PromptTurn
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import Turn, TurnContext
from kedge.models.client import Models
from kedge.models.errors import ConfigError
from kedge.models.resolve import resolve
from kedge.protocol.runs import RunKind


class Agent:
    """`environ` serves runs that came without an environment of their own."""

    def __init__(
        self,
        models: Models | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        retry: Retry | None = None,
        today: Callable[[], date] = lambda: datetime.now().astimezone().date(),
    ) -> None:
        self._models = models or Models()
        self._environ = environ
        prompt = PromptTurn(self._models, environ=environ, retry=retry or Retry(), today=today)
        self.turns: Mapping[RunKind, Turn] = {"prompt": prompt, "summarize": summarize}

    def default_model(self) -> str | None:
        """The model of a run that names none, as `provider/name`; without the name where the provider decides."""
        try:
            return resolve(None, self._environ).name
        except ConfigError:
            return None

    async def warm_up(self) -> None:
        """Load what the first run would have to wait for."""
        await self._models.warm_up()

    async def close(self) -> None:
        await self._models.close()


async def summarize(ctx: TurnContext) -> None:
    """An empty session has nothing to summarise; any other cannot be summarised yet."""
    if await ctx.history():
        raise TurnFailed(f"this server cannot do runs of kind {ctx.run.kind!r} yet", "unsupported")

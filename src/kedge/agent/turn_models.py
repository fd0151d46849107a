"""The models of one turn, and the effort that they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kedge.agent.deps import AgentDeps
from kedge.agent.retry import ApiKeys, Attempts
from kedge.config.schema import Config, Effort
from kedge.engine.turn import TurnContext
from kedge.models.errors import ModelError
from kedge.models.selection.selector import Selection
from kedge.models.values import Endpoint
from kedge.protocol.events import AgentEvent


class TurnModels:
    def __init__(self, deps: AgentDeps, ctx: TurnContext, env: Mapping[str, str], config: Config) -> None:
        self._deps = deps
        self._ctx = ctx
        self._env = env
        self._config = config

    async def select_large(self, keys: ApiKeys, *, is_first: bool) -> Selection:
        """Select the model that does the work, with retries and waiting for a login as for a step.

        Emits a notice of the reason if nobody named the model: in the session's first run (`is_first`), and in each run
        that got a model of this machine because nothing is set up.
        """
        attempts = Attempts(self._ctx, self._deps.retry, keys)
        selection: Selection | None = None
        while True:
            try:
                selection = selection or await self._select()
                endpoint = await self._deps.models.resolve_model(selection.endpoint)
                selection = msgspec.structs.replace(selection, endpoint=endpoint)
                if is_first and selection.origin == "default":
                    await self._notify(selection.description, {"model": endpoint.name, "is_detail": True})
                return selection
            except ModelError as error:
                if selection is None:
                    await attempts.wait(error)
                else:  # a server that is asked for its models may reject a key as well
                    endpoint = await attempts.prepare_next(error, selection.endpoint)
                    selection = msgspec.structs.replace(selection, endpoint=endpoint)

    async def select_small(self, large: Selection) -> Endpoint | None:
        """Return the model that writes titles, or None if no model should."""
        small = await self._deps.selector.select_small(large, self._env, self._config)
        return None if small is None else await self._deps.models.resolve_model(small.endpoint)

    async def report_ignored_effort(self, endpoint: Endpoint, *, has_tools: bool) -> None:
        """Emit a notice if the requested effort is ignored. Not for sub-agents: their parent had the notice."""
        effort = self._ctx.effort
        if effort is None or self._ctx.run.kind != "prompt":
            return
        if (reason := explain_ignored_effort(endpoint, effort, has_tools=has_tools)) is not None:
            await self._notify(reason, {"effort": effort, "model": endpoint.name})

    async def _select(self) -> Selection:
        ctx = self._ctx
        selection = await self._deps.selector.select(
            ctx.model, self._env, self._config, directory=ctx.directory, report=self._notify
        )
        if selection.origin == "machine":
            await self._notify(selection.description, {"model": selection.endpoint.name})
        return selection

    async def _notify(self, message: str, details: dict[str, Any]) -> None:
        await self._ctx.append_event(
            AgentEvent(type="notice", run_id="", session_id="", message=message, details=details)
        )


def choose_effort(endpoint: Endpoint, config: Config, effort: Effort | None = None) -> Effort | None:
    """Return the effort of the run, of the model's settings, or the general one; None if the model takes none."""
    provider = config.providers.get(endpoint.provider)
    settings = provider and provider.models.get(endpoint.model)
    effort = effort or (settings and settings.reasoning_effort) or config.reasoning_effort
    return effort if endpoint.info.reasoning else None


def explain_ignored_effort(endpoint: Endpoint, effort: Effort, *, has_tools: bool) -> str | None:
    """Return a line for people if the model is not asked for the effort; None if it is."""
    if not endpoint.info.reasoning:
        setting = f'reasoning_effort in [providers.{endpoint.provider}.models."{endpoint.model}"]'
        return f"Effort {effort} is ignored: {endpoint.name} is not known to support it. If it does, set {setting}"
    if has_tools and endpoint.wire == "chat" and endpoint.info.effort_with_tools != "any":
        return f"Effort {effort} is ignored: {endpoint.name} takes none together with tools over Chat Completions"
    return None

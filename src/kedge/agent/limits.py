"""How far a run may go: steps and money. Checked before each step, so that a script's exit code is true."""

from __future__ import annotations

from kedge.config.schema import Config
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.values import Endpoint
from kedge.protocol.formats import dollars


class Limits:
    """Raises where a limit could never hold: a script that counts on it must not find out by the bill."""

    def __init__(self, ctx: TurnContext, config: Config, endpoint: Endpoint) -> None:
        self._ctx = ctx
        self._max_steps = int(ctx.options.max_steps or 0) or config.agent.max_steps
        self._max_cost = ctx.options.max_cost or config.agent.max_cost
        self._steps: int | None = None
        if self._max_cost is not None and endpoint.info.input_price is None and not endpoint.is_local:
            raise TurnFailed(
                f"the price of {endpoint.name} is not known, so a limit on its cost cannot hold; set input_price and"
                f' output_price in [providers.{endpoint.provider}.models."{endpoint.model}"], or use --max-steps',
                "bad_config",
            )

    async def check(self) -> None:
        """Before a step: raises where there may be no further one."""
        if self._steps is None:  # what an earlier attempt of this run has done counts (P13)
            self._steps = await self._ctx.steps()
        if self._steps >= self._max_steps:
            raise TurnFailed(
                f"stopped after {_steps(self._steps)}, which is the limit (--max-steps, agent.max_steps);"
                " what was done so far stays, and the session can be continued",
                "max_steps",
            )
        if self._max_cost is not None and (cost := (await self._ctx.usage()).cost) >= self._max_cost:
            raise TurnFailed(
                f"stopped at a cost of {dollars(cost)}; the limit is {dollars(self._max_cost)}"
                " (--max-cost, agent.max_cost); what was done so far stays, and the session can be continued",
                "max_cost",
            )
        self._steps += 1


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"

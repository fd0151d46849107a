"""How far a run may go: steps and money. Checked before each step, so that a script's exit code is true."""

from __future__ import annotations

from collections.abc import Sequence

from kedge.config.schema import Config
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.protocol.messages import Message


class Limits:
    def __init__(self, ctx: TurnContext, config: Config) -> None:
        self._ctx = ctx
        self._max_steps = int(ctx.options.max_steps or 0) or config.agent.max_steps
        self._max_cost = ctx.options.max_cost or config.agent.max_cost
        self._steps: int | None = None

    async def check(self, history: Sequence[Message]) -> None:
        """Before a step: raises where there may be no further one."""
        if self._steps is None:  # what an earlier attempt of this run has done counts (P13)
            ours = [message for message in history if message.run_id == self._ctx.run.run_id]
            self._steps = sum(message.role == "assistant" and not message.summary for message in ours)
        if self._steps >= self._max_steps:
            raise TurnFailed(
                f"stopped after {_steps(self._steps)}, which is the limit (--max-steps, agent.max_steps);"
                " what was done so far stays, and the session can be continued",
                "max_steps",
            )
        if self._max_cost is not None and (cost := (await self._ctx.usage()).cost) >= self._max_cost:
            raise TurnFailed(
                f"stopped at a cost of ${cost:.4f}; the limit is ${self._max_cost:g} (--max-cost, agent.max_cost);"
                " what was done so far stays, and the session can be continued",
                "max_cost",
            )
        self._steps += 1


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"

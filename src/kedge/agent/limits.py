"""The limits on a run's steps, and on the cost of a run, a session and a day, checked before each step.

At the limit of a session or a day an attended run asks whether to go on, and others fail. The question is a stored
permission request, so that it is asked once and its answer survives a restart (P14).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator
from typing import Literal
from weakref import WeakValueDictionary

from kedge.config.schema import Config
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.values import Endpoint
from kedge.protocol.text_safety import dollars

SPENDING = "spending"  # the tool of the permission requests

CostCode = Literal["max_cost_session", "max_cost_day"]
_NAMES: dict[CostCode, str] = {"max_cost_session": "this session", "max_cost_day": "today's runs"}


AUTO_NEEDS_MAX_COST = (
    "Mode auto needs a limit on the cost of a run: set one with `kedge config set agent.max_cost 5`, or --max-cost 5"
)


class CostQuestions:
    """Lets one run of a session ask at a time: the others may find their question answered."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, CostCode], asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def take_turn(self, ctx: TurnContext, session_id: str, code: CostCode) -> AsyncGenerator[None]:
        lock = self._locks.setdefault((session_id, code), asyncio.Lock())
        is_held = False
        try:
            async with ctx.lend_slot():
                is_held = await lock.acquire()
            yield
        finally:
            if is_held:
                lock.release()


class RunLimits:
    def __init__(self, ctx: TurnContext, config: Config, questions: CostQuestions) -> None:
        self._ctx = ctx
        self._max_steps = int(ctx.options.max_steps or 0) or config.agent.max_steps
        self.max_cost: float | None = None
        self.read_max_cost(config)
        self._max_costs: dict[CostCode, float | None] = {
            "max_cost_session": config.agent.max_cost_session,
            "max_cost_day": config.agent.max_cost_day,
        }
        self._questions = questions
        self._steps: int | None = None

    def read_max_cost(self, config: Config) -> None:
        self.max_cost = self._ctx.options.max_cost or config.agent.max_cost

    def require_max_cost(self) -> None:
        """Raise `TurnFailed` if a run in mode `auto` may cost any amount."""
        if self.max_cost is None:
            raise TurnFailed(AUTO_NEEDS_MAX_COST, "max_cost_required")

    def check_price(self, endpoint: Endpoint) -> None:
        """Raise `TurnFailed` for a cost limit on a model of unknown price: it could never take effect."""
        has_limit = self.max_cost is not None or any(self._max_costs.values())
        if has_limit and endpoint.info.input_price is None and not endpoint.is_local:
            raise TurnFailed(
                f"The price of {endpoint.name} is unknown, so its cost cannot be limited. Set input_price and"
                f' output_price in [providers.{endpoint.provider}.models."{endpoint.model}"], or use --max-steps',
                "bad_config",
            )

    async def check(self) -> None:
        """Count a step; raise `TurnFailed` if the run may not take it."""
        if self._steps is None:  # steps of earlier attempts of this run count (P13)
            self._steps = await self._ctx.steps()
        if self._steps >= self._max_steps:
            raise TurnFailed(
                f"Stopped after {self._steps} step{'s' if self._steps != 1 else ''}, the limit of --max-steps or"
                " agent.max_steps. The work so far is kept, and you can continue the session.",
                "max_steps",
            )
        if self.max_cost is not None and (cost := (await self._ctx.usage()).cost) >= self.max_cost:
            raise TurnFailed(
                f"Stopped at a cost of {dollars(cost)}; the limit is {dollars(self.max_cost)}"
                " (--max-cost, agent.max_cost). The work so far is kept, and you can continue the session.",
                "max_cost",
            )
        for code, limit in self._max_costs.items():
            if limit is not None:
                await self._check_total(code, limit)
        self._steps += 1

    def recount(self) -> None:
        """Forget the last step: it was not taken."""
        self._steps = None

    async def _check_total(self, code: CostCode, limit: float) -> None:
        if await self._find_excess(code, limit) is None:
            return
        session_id = (await self._ctx.session_cost()).session_id
        async with self._questions.take_turn(self._ctx, session_id, code):
            excess = await self._find_excess(code, limit)
            if excess is not None and not (self._ctx.run.permissions == "ask" and await self._ask(code, limit, excess)):
                raise TurnFailed(
                    f"Stopped: {_NAMES[code]} cost {dollars(excess)}; the limit is {dollars(limit)}"
                    f" (agent.{code}). The work so far is kept; with a higher limit you can continue.",
                    code,
                )

    async def _find_excess(self, code: CostCode, limit: float) -> float | None:
        """Return the cost if it reached the limit, and what people allowed beyond it; None if not."""
        if code == "max_cost_session":
            cost, allowed = (await self._ctx.session_cost()).cost, 0.0
        else:
            today = await self._ctx.day_cost()
            cost, allowed = today.cost, today.allowed
        if cost < max(limit, allowed):
            return None
        for grant in await self._ctx.cost_grants(SPENDING):
            if grant.request.action != code:
                continue
            if grant.answer.action == "allow_session":
                return None
            if code == "max_cost_session":
                allowed = max(allowed, grant.request.params["until"])
        return None if cost < allowed else cost

    async def _ask(self, code: CostCode, limit: float, cost: float) -> bool:
        """Ask for another such amount. The same question is asked after a restart, so it does not name the cost."""
        day = (await self._ctx.day_cost()).day
        reached = math.floor(cost / limit + 1e-9) * limit
        until = reached + limit
        amounts = f"Once: up to {dollars(until)}. For this session: no limit"
        answer = await self._ctx.ask_permission(
            "",
            code,
            tool=SPENDING,
            action=code,
            description=f"Spend more than {dollars(reached)}, up to {dollars(until)} (agent.{code})",
            params={
                "limit": limit,
                "until": until,
                **({"day": day} if code == "max_cost_day" else {}),
                "notes": [f"{_NAMES[code]} cost {dollars(cost)}. {amounts}"],
            },
        )
        if answer.action == "allow" and code == "max_cost_day":
            await self._ctx.allow_day_cost(day, until)
        return answer.action in ("allow", "allow_session")

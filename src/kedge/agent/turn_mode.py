"""The mode of a turn: that of its run, which people can switch while it works.

Mode `auto` needs a limit on cost, a sandbox that can enforce it, and a workspace whose changes can be undone. Without a
limit the run fails; without one of the others the turn works as in mode `ask`, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from kedge.agent.limits import RunLimits
from kedge.agent.tool_context import TurnScope
from kedge.config.schema import Config
from kedge.engine.turn import TurnContext
from kedge.protocol.runs import Mode
from kedge.tools.permissions.judge import Judge
from kedge.tools.sandbox.policy import SandboxUnavailable


class TurnMode:
    """`follow` applies the current mode of the run to the judge and the scope of the turn's calls.

    `load_config` reads the configuration as it is now: a limit on cost may be newer than the turn.
    """

    def __init__(
        self,
        ctx: TurnContext,
        scope: TurnScope,
        judge: Judge,
        limits: RunLimits,
        load_config: Callable[[], Awaitable[Config]],
    ) -> None:
        self._ctx = ctx
        self._scope = scope
        self._judge = judge
        self._limits = limits
        self._load_config = load_config
        self._chosen: Mode | None = None
        self._is_applied = False
        self._lock = asyncio.Lock()  # calls that run in parallel follow one after the other

    @property
    def mode(self) -> Mode:
        """The mode in which calls are judged."""
        return self._judge.mode

    async def follow(self) -> Mode:
        """Apply the mode that the run has now, and return the mode in which calls are judged.

        Raises `TurnFailed` for mode `auto` without a limit on cost.
        """
        async with self._lock:
            chosen = await self._ctx.mode()
            if not self._is_applied or chosen != self._chosen:
                await self._apply(chosen)
            elif (
                self._judge.mode == "auto" and await self._ctx.is_unwatched() and (why := await self._find_unwatched())
            ):
                await self._work_as_ask(why)
            return self._judge.mode

    async def _apply(self, chosen: Mode | None) -> None:
        self._judge.choose_mode(chosen)
        self._update_scope()
        if self._judge.mode == "auto":
            if self._limits.max_cost is None:
                self._limits.read_max_cost(await self._load_config())
            self._limits.require_max_cost()
            if why := await asyncio.to_thread(self._find_sandbox_problem) or await self._find_unwatched():
                await self._work_as_ask(why)
        self._chosen, self._is_applied = chosen, True

    def _update_scope(self) -> None:
        scope, is_planning = self._scope, self._judge.mode == "plan"
        scope.is_hidden = self._judge.is_hidden
        scope.sandbox = msgspec.structs.replace(scope.sandbox, is_planning=is_planning)

    async def _work_as_ask(self, why: str) -> None:
        self._judge.mode = "ask"
        if self._ctx.run.parent_run_id is None:  # a sub-agent's parent has said it
            message = f"Mode auto works like ask here: {why}"
            await self._ctx.append_event("notice", message=message, details={"mode": "ask"})

    def _find_sandbox_problem(self) -> str:
        try:
            self._scope.sandbox.prepare_contained()
        except SandboxUnavailable as error:
            return f"commands cannot be kept in a sandbox ({error.why})"
        return ""

    async def _find_unwatched(self) -> str:
        why = await self._ctx.find_unwatched_reason(self._scope.env, self._scope.config.files.max_bytes)
        return f"what commands change could not be undone ({why})" if why else ""

"""The agent behind a door: it is imported and made when the first run needs it, or when the server has nothing to do.

A server that starts because somebody waits for it is ready before half of its code is loaded.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kedge.engine.turn import Turn, TurnContext
from kedge.protocol.models import Offered
from kedge.protocol.runs import RunKind

if TYPE_CHECKING:
    from kedge.agent.agent import Agent
    from kedge.agent.logins import Logins
    from kedge.tools.process.jobs import AllJobs

_KINDS: tuple[RunKind, ...] = ("prompt", "agent", "summarize", "shell")


class AgentOnDemand:
    def __init__(self, make: Callable[[], Agent]) -> None:
        self.turns: Mapping[RunKind, Turn] = {kind: partial(self._turn, kind) for kind in _KINDS}
        self._make = make
        self._agent: Agent | None = None
        self._one_by_one = threading.Lock()

    @property
    def jobs(self) -> AllJobs:
        return self._made().jobs

    async def default_model(self, directory: Path, env: Mapping[str, str] | None = None) -> str | None:
        return await (await self._ready()).default_model(directory, env)

    async def models(self, directory: Path, env: Mapping[str, str] | None = None) -> Offered:
        return await (await self._ready()).models(directory, env)

    async def check_model(self, model: str, directory: Path) -> None:
        await (await self._ready()).check_model(model, directory)

    async def logins(self) -> Logins:
        return await (await self._ready()).logins()

    async def session_deleted(self, session_id: str) -> None:
        await (await self._ready()).session_deleted(session_id)

    async def warm_up(self) -> None:
        await (await self._ready()).warm_up()

    async def close(self) -> None:
        if self._agent is not None:
            await self._agent.close()

    async def _turn(self, kind: RunKind, ctx: TurnContext) -> None:
        await (await self._ready()).turns[kind](ctx)

    async def _ready(self) -> Agent:
        return self._agent or await asyncio.to_thread(self._made)

    def _made(self) -> Agent:
        with self._one_by_one:
            if self._agent is None:
                self._agent = self._make()
            return self._agent

"""An agent that is imported and created on first use, or when the server is idle, so that the server starts sooner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kedge.engine.turn import Turn, TurnContext
from kedge.protocol.api import Offered, SessionContext
from kedge.protocol.runs import Mode, RunKind, RunOptions

if TYPE_CHECKING:
    from kedge.agent.agent import Agent
    from kedge.agent.language_service import LanguageServices
    from kedge.agent.logins import Logins
    from kedge.agent.mcp_access import McpAccess
    from kedge.engine.workspace_host import WorkspaceHost
    from kedge.skills.library import Library
    from kedge.store.port import StoredContext
    from kedge.tools.process.command import WorkspaceJobs

_KINDS: tuple[RunKind, ...] = ("prompt", "agent", "summarize", "shell")


class LazyAgent:
    """Has the methods of `Agent`; creates it with `create` when one of them is called."""

    def __init__(self, create: Callable[[], Agent]) -> None:
        self.turns: Mapping[RunKind, Turn] = {kind: partial(self._run_turn, kind) for kind in _KINDS}
        self._create = create
        self._agent: Agent | None = None
        self._lock = threading.Lock()

    @property
    def jobs(self) -> WorkspaceJobs:
        return self._get_agent().jobs

    async def default_model(self, directory: Path, env: Mapping[str, str] | None = None) -> str | None:
        return await (await self._load()).default_model(directory, env)

    async def models(self, directory: Path, env: Mapping[str, str] | None = None) -> Offered:
        return await (await self._load()).models(directory, env)

    async def check_model(self, model: str, directory: Path) -> None:
        await (await self._load()).check_model(model, directory)

    async def check_mode(self, mode: Mode, options: RunOptions, directory: Path, env: Mapping[str, str] | None) -> None:
        await (await self._load()).check_mode(mode, options, directory, env)

    async def library(self, directory: Path, env: Mapping[str, str] | None = None) -> Library:
        return await (await self._load()).library(directory, env)

    async def context(
        self, stored: StoredContext, model: str | None, directory: Path, env: Mapping[str, str] | None = None
    ) -> SessionContext:
        return await (await self._load()).context(stored, model, directory, env)

    async def logins(self) -> Logins:
        return await (await self._load()).logins()

    async def languages(self) -> LanguageServices:
        return await (await self._load()).languages()

    async def mcp(self) -> McpAccess:
        return await (await self._load()).mcp()

    async def config_changed(self, workspace_id: str, directory: Path, host: WorkspaceHost) -> None:
        if self._agent is not None:
            await self._agent.config_changed(workspace_id, directory, host)

    async def workspace_deleted(self, workspace_id: str) -> None:
        if self._agent is not None:
            await self._agent.workspace_deleted(workspace_id)

    async def session_deleted(self, session_id: str) -> None:
        await (await self._load()).session_deleted(session_id)

    async def warm_up(self) -> None:
        await (await self._load()).warm_up()

    async def close(self) -> None:
        if self._agent is not None:
            await self._agent.close()

    async def _run_turn(self, kind: RunKind, ctx: TurnContext) -> None:
        await (await self._load()).turns[kind](ctx)

    async def _load(self) -> Agent:
        return self._agent or await asyncio.to_thread(self._get_agent)

    def _get_agent(self) -> Agent:
        with self._lock:
            if self._agent is None:
                self._agent = self._create()
            return self._agent

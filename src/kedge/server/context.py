"""The services that handlers use, and the agent as the server sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kedge.config.configs import Configs
from kedge.engine.engine import Engine
from kedge.engine.turn import Turn
from kedge.protocol.models import Offered
from kedge.protocol.runs import RunKind
from kedge.server.metrics import Metrics

if TYPE_CHECKING:
    from kedge.agent.logins import Logins
    from kedge.tools.process.jobs import WorkspaceJobs
    from kedge.tools.search.file_index import FileIndex


class Agent(Protocol):
    """The agent that executes runs. Implemented by `kedge.agent.agent.Agent`, and by scripted agents in tests."""

    @property
    def turns(self) -> Mapping[RunKind, Turn]: ...
    @property
    def jobs(self) -> WorkspaceJobs: ...
    async def default_model(self, directory: Path, env: Mapping[str, str] | None = None) -> str | None: ...
    async def models(self, directory: Path, env: Mapping[str, str] | None = None) -> Offered: ...
    async def check_model(self, model: str, directory: Path) -> None: ...
    async def logins(self) -> Logins: ...
    async def session_deleted(self, session_id: str) -> None: ...
    async def warm_up(self) -> None: ...
    async def close(self) -> None: ...


class Context(NamedTuple):
    engine: Engine
    agent: Agent
    metrics: Metrics
    openapi: Callable[[], bytes]
    stop: Callable[[], None]
    configs: Configs
    names: FileIndex
    stopped: asyncio.Future[None]  # done when no run makes progress any more, so that no request waits for one

"""`kedge serve` with a scripted agent: the whole server, the real command line, and no model.

usage: python -m tests.server.scripted [ARGUMENT of kedge serve ...]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from kedge.cli.main import main
from kedge.engine.scripted import ScriptedTurn
from kedge.engine.turn import Turn
from kedge.protocol.api import Offered, SessionContext
from kedge.protocol.runs import Mode, RunKind, RunOptions
from kedge.tools.process.command import WorkspaceJobs

if TYPE_CHECKING:
    from kedge.agent.language_service import LanguageServices
    from kedge.agent.logins import Logins
    from kedge.agent.mcp_access import McpAccess
    from kedge.engine.workspace_host import WorkspaceHost
    from kedge.mcp.port import Transport
    from kedge.skills.library import Library
    from kedge.store.port import StoredContext


class ScriptedAgent:
    """Does what prompts say; `kedge.engine.scripted` lists the commands."""

    def __init__(self, data_dir: Path | None = None, **_: object) -> None:  # what the real one is given
        turn = ScriptedTurn()
        # A person's commands are not run: some tests send whatever comes to their minds.
        self.turns: dict[RunKind, Turn] = {"prompt": turn, "agent": turn, "summarize": turn, "shell": turn}
        self.jobs = WorkspaceJobs()
        self._data_dir = data_dir

    async def default_model(self, directory: Path, env: Mapping[str, str] | None = None) -> str | None:
        return "scripted/any"

    async def models(self, directory: Path, env: Mapping[str, str] | None = None) -> Offered:
        return Offered(model="scripted/any", small_model=None, why="it is", catalog_date="2026-11-15", providers=[])

    async def check_model(self, model: str, directory: Path) -> None:
        pass

    async def check_mode(self, mode: Mode, options: RunOptions, directory: Path, env: Mapping[str, str] | None) -> None:
        pass

    async def library(self, directory: Path, env: Mapping[str, str] | None = None) -> Library:
        from kedge.skills.library import Library

        return Library()

    async def context(
        self, stored: StoredContext, model: str | None, directory: Path, env: Mapping[str, str] | None = None
    ) -> SessionContext:
        return SessionContext(
            model=model,
            context_window=None,
            used_tokens=0,
            free_tokens=None,
            summarize_at_tokens=None,
            estimated=True,
            parts=[],
        )

    async def logins(self) -> Logins:
        from kedge.agent.logins import Logins  # most tests need none of this
        from kedge.config.schema import Config
        from kedge.models.client import ModelClient
        from kedge.models.keys.credentials import CREDENTIALS_FILE, Credentials

        file = None if self._data_dir is None else self._data_dir / CREDENTIALS_FILE
        return Logins(Credentials(file), ModelClient(), {}, lambda _directory, _env: Config())

    async def languages(self) -> LanguageServices:
        from kedge.agent.language_service import LanguageServices
        from kedge.config.schema import Config

        return LanguageServices(lambda _directory, _env: Config(), {})

    async def mcp(self) -> McpAccess:
        from kedge.agent.mcp_access import McpAccess
        from kedge.agent.mcp_service import McpService
        from kedge.config.schema import Config
        from kedge.models.keys.secrets import McpSecrets

        data_dir = self._data_dir or Path("/nowhere")
        secrets = McpSecrets(data_dir / "credentials.json")

        def configure(_directory: Path, _env: object) -> Config:
            return Config()

        def refuse(_: object) -> Transport:
            raise AssertionError("no MCP server is configured")

        return McpAccess(McpService(configure, {}, refuse, data_dir), configure, {}, secrets)

    async def config_changed(self, workspace_id: str, directory: Path, host: WorkspaceHost) -> None:
        pass

    async def workspace_deleted(self, workspace_id: str) -> None:
        pass

    async def session_deleted(self, session_id: str) -> None:
        pass

    async def warm_up(self) -> None:
        pass

    async def close(self) -> None:
        pass


if __name__ == "__main__":
    with mock.patch("kedge.agent.agent.Agent", ScriptedAgent):
        sys.exit(main(["serve", *sys.argv[1:]]))

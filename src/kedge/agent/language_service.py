"""The language servers of all workspaces, as the agent and the server's routes use them.

Nothing of `kedge.lsp` is imported before a run could use a server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kedge.config.errors import BadConfig
from kedge.config.schema import Config, Configure
from kedge.config.trust import is_trusted
from kedge.engine.turn import TurnContext
from kedge.engine.workspace_host import WorkspaceHost
from kedge.files.environment import drop_invalid_variables
from kedge.files.listing import list_file_types
from kedge.protocol.errors import KedgeError, NotFound
from kedge.protocol.lsp import LspServers

if TYPE_CHECKING:
    from kedge.lsp.workspace import WorkspaceLanguages

# They give access to Kedge's server, or are about its own process.
_HIDDEN_VARIABLES = frozenset({"KEDGE_TOKEN", "KEDGE_FAILPOINT"})


class LanguageServices:
    """The environment of servers, and the configuration that names them, are those of Kedge's server."""

    def __init__(self, configure: Configure, environ: Mapping[str, str]) -> None:
        self._configure = configure
        self._environ = {
            name: value for name, value in drop_invalid_variables(environ).items() if name not in _HIDDEN_VARIABLES
        }
        self._workspaces: dict[str, WorkspaceLanguages] = {}

    async def find_installed(self, directory: Path, run_config: Config) -> bool:
        """Whether there is a server for a type of file in the workspace. Starts none."""
        config = await self._read_run_config(directory, run_config)
        return config.agent.language_servers and await asyncio.to_thread(self._find_installed, directory, config)

    async def open(self, ctx: TurnContext, run_config: Config) -> WorkspaceLanguages | None:
        """Return the servers of a run's workspace; None if they are switched off. Starts none."""
        config = await self._read_run_config(ctx.directory, run_config)
        if not config.agent.language_servers:
            return None
        return await self._open(ctx.workspace_id, ctx.directory, ctx.host, config)

    async def describe(self, workspace_id: str) -> LspServers:
        """Return the servers that were started, with their state. Starts none."""
        workspace = self._workspaces.get(workspace_id)
        return LspServers([]) if workspace is None else workspace.describe()

    async def restart(self, name: str, workspace_id: str) -> LspServers:
        """Start the servers of a name again. Raises `NotFound`."""
        workspace = self._workspaces.get(workspace_id)
        if workspace is None or not await workspace.servers.restart(name):
            raise NotFound("lsp_server", name)
        return workspace.describe()

    async def config_changed(self, workspace_id: str, directory: Path) -> None:
        """End the servers that the configuration does not name any more, or names differently."""
        if (workspace := self._workspaces.get(workspace_id)) is not None:
            with contextlib.suppress(KedgeError):  # an invalid file changes nothing until it is right again
                config = await self._read_config(directory)
                await workspace.servers.configure(config, is_trusted=self._is_trusted(directory, config))

    async def close_workspace(self, workspace_id: str) -> None:
        if (workspace := self._workspaces.pop(workspace_id, None)) is not None:
            await workspace.close()

    async def close(self) -> None:
        await asyncio.gather(*(self.close_workspace(workspace_id) for workspace_id in list(self._workspaces)))

    async def _open(
        self, workspace_id: str, directory: Path, host: WorkspaceHost, config: Config
    ) -> WorkspaceLanguages:
        workspace = self._workspaces.get(workspace_id)
        if workspace is None:
            from kedge.lsp.workspace import WorkspaceLanguages

            workspace = self._workspaces[workspace_id] = WorkspaceLanguages(directory, self._environ, host)
        await workspace.servers.configure(config, is_trusted=self._is_trusted(directory, config))
        return workspace

    async def _read_run_config(self, directory: Path, run_config: Config) -> Config:
        """Return the configuration; that of the run if it refers to variables that only the run's caller has."""
        try:
            return await self._read_config(directory)
        except BadConfig:
            return run_config

    async def _read_config(self, directory: Path) -> Config:
        return await asyncio.to_thread(self._configure, directory, self._environ)

    def _is_trusted(self, directory: Path, config: Config) -> bool:
        return is_trusted(directory, config.trusted, Path(self._environ.get("HOME") or Path.home()))

    def _find_installed(self, directory: Path, config: Config) -> bool:
        if not (types := list_file_types(directory)):
            return False
        from kedge.lsp.known_servers import find_server, list_servers

        trusted = self._is_trusted(directory, config)
        return any(
            not types.isdisjoint(server.languages)
            and (trusted or not server.runs_project_code)
            and find_server(server, [directory], self._environ, is_trusted=trusted) is not None
            for server in list_servers(config)
        )

"""The MCP servers of all workspaces, as the agent and the server's routes use them.

Nothing of `kedge.mcp` is imported before a workspace has a server configured.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedge.config.errors import BadConfig
from kedge.config.schema import Configure, McpServerConfig
from kedge.engine.turn import TurnContext
from kedge.engine.workspace_host import WorkspaceHost
from kedge.protocol.errors import Invalid, KedgeError, NotFound
from kedge.protocol.mcp import McpServers

if TYPE_CHECKING:
    from kedge.agent.mcp_tools import SessionTools
    from kedge.mcp.port import Transport
    from kedge.mcp.servers import McpServer, WorkspaceServers

TOOL_LISTS = "mcp-tools"  # in the data directory
CANCEL_S = 10.0  # to tell a server that its task is abandoned


class McpService:
    def __init__(
        self,
        configure: Configure,
        environ: Mapping[str, str],
        make_http_transport: Callable[[McpServerConfig], Transport],
        data_dir: Path,
    ) -> None:
        """The environment of servers, and the configuration that names them, are those of Kedge's server."""
        self._configure = configure
        self._environ = environ
        self._make_http_transport = make_http_transport
        self._data_dir = data_dir
        self._workspaces: dict[str, WorkspaceServers] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open_session(
        self, ctx: TurnContext, configs: Mapping[str, McpServerConfig], *, window: int | None, percent: float
    ) -> SessionTools | None:
        """Start the workspace's servers and return the session's tools; None if no server is configured.

        `configs`: those of the run's own configuration, which are used if the server's own cannot be read: it may refer
        to variables that only the run's caller has.
        """
        if not configs and ctx.workspace_id not in self._workspaces:
            return None
        try:
            servers = await self.get_servers(ctx.workspace_id, ctx.directory, ctx.host)
        except BadConfig:
            servers = await self._apply(configs, ctx.workspace_id, ctx.directory, ctx.host)
        servers.start()
        from kedge.agent.mcp_tools import SessionTools

        return await SessionTools.load(
            ctx, servers, window=window, percent=percent, cancel_later=self._cancel_task_later
        )

    async def get_servers(self, workspace_id: str, directory: Path, host: WorkspaceHost) -> WorkspaceServers:
        """Return the servers of a workspace, as the configuration names them now. Starts none."""
        return await self._apply(await self._read_config(directory), workspace_id, directory, host)

    async def _apply(
        self, configs: Mapping[str, McpServerConfig], workspace_id: str, directory: Path, host: WorkspaceHost
    ) -> WorkspaceServers:
        servers = self._workspaces.get(workspace_id)
        if servers is None:
            from kedge.mcp.servers import WorkspaceServers
            from kedge.mcp.tool_lists import ToolLists

            lists = ToolLists(self._data_dir / TOOL_LISTS)
            servers = WorkspaceServers(directory, self._environ, host, self._make_http_transport, lists)
            servers = self._workspaces.setdefault(workspace_id, servers)
        servers.host = host
        await servers.apply(configs)
        return servers

    async def describe(self, directory: Path, host: WorkspaceHost) -> McpServers:
        """Return the servers that the configuration names, with their state. Starts none."""
        known = self._workspaces.get(host.workspace_id)
        try:
            configs = await self._read_config(directory)
        except BadConfig:
            if known is None:
                raise
            return known.describe()
        if known is None and not configs:
            return McpServers([])
        return (await self.get_servers(host.workspace_id, directory, host)).describe()

    async def restart(self, name: str, directory: Path, host: WorkspaceHost) -> McpServers:
        """End a server and connect again. Raises `NotFound` or `Invalid`."""
        servers = await self.get_servers(host.workspace_id, directory, host)
        if name not in servers.servers:
            raise NotFound("mcp_server", name)
        if not servers.servers[name].config.enabled:
            raise Invalid("mcp_disabled", f"the MCP server {name} is disabled; set mcp.{name}.enabled to true first")
        await servers.restart(name)
        return servers.describe()

    def restart_where(self, is_meant: Callable[[McpServer], bool]) -> None:
        """Connect again to the servers for which `is_meant` is true, in the background."""
        for servers in self._workspaces.values():
            for name, server in servers.servers.items():
                if is_meant(server):
                    self._keep(asyncio.create_task(servers.restart(name)))

    async def config_changed(self, workspace_id: str, directory: Path, host: WorkspaceHost) -> None:
        """End the servers that the configuration does not name any more, or names differently."""
        if workspace_id in self._workspaces:
            with contextlib.suppress(KedgeError):  # an invalid file changes nothing until it is right again
                await self.get_servers(workspace_id, directory, host)

    async def close_workspace(self, workspace_id: str) -> None:
        if (servers := self._workspaces.pop(workspace_id, None)) is not None:
            await servers.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(self.close_workspace(workspace_id) for workspace_id in list(self._workspaces)))

    async def _read_config(self, directory: Path) -> Mapping[str, McpServerConfig]:
        return (await asyncio.to_thread(self._configure, directory, self._environ)).mcp

    def _cancel_task_later(self, server: McpServer, task_id: str) -> None:
        """Tell a server that nobody waits for its task any more, in the background."""

        async def cancel() -> None:
            from kedge.jsonrpc.errors import PeerError

            with contextlib.suppress(PeerError, TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    with server.call() as client:
                        await client.cancel_task(task_id)

        self._keep(asyncio.create_task(cancel()))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

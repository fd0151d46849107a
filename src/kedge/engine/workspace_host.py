"""What services of a workspace that outlive runs, such as MCP servers, need of the engine."""

from __future__ import annotations

from kedge.engine.processes.registry import ProcessRegistry, WorkspaceProcess
from kedge.feed.feed import Feed
from kedge.protocol.lsp import LspEvent
from kedge.protocol.mcp import McpEvent


class WorkspaceHost:
    def __init__(self, processes: ProcessRegistry, feed: Feed) -> None:
        self.workspace_id = feed.workspace_id
        self._processes = processes
        self._feed = feed

    async def record_process(self, pid: int) -> WorkspaceProcess:
        """Record the group that `pid` leads: it ends with the workspace or the server, or by the next server."""
        return await self._processes.record_for_workspace(self.workspace_id, pid)

    def publish(self, event: McpEvent | LspEvent) -> None:
        """Tell the clients that follow the workspace. It is not stored."""
        if not self._feed.is_closed:
            self._feed.publish_live("mcp_event" if isinstance(event, McpEvent) else "lsp_event", event)

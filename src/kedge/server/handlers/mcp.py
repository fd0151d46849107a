"""MCP servers of a workspace."""

from __future__ import annotations

from kedge.server.http import Request, Response


async def list_mcp_servers(request: Request) -> Response:
    """List the configured MCP servers with their state and tools; starts none."""
    service = await request.context.agent.mcp()
    return Response(await service.describe(request.directory, request.engine.host_of(request.workspace_id)))


async def restart_mcp_server(request: Request) -> Response:
    """End an MCP server and connect again."""
    service = await request.context.agent.mcp()
    host = request.engine.host_of(request.workspace_id)
    return Response(await service.restart(request.path["name"], request.directory, host))

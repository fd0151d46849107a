"""Language servers of a workspace."""

from __future__ import annotations

from kedge.server.http import Request, Response


async def list_language_servers(request: Request) -> Response:
    """List the language servers that were started, with state and number of errors; starts none."""
    request.engine.require_workspace(request.workspace_id)
    service = await request.context.agent.languages()
    return Response(await service.describe(request.workspace_id))


async def restart_language_server(request: Request) -> Response:
    """End the language servers of a name and start them again."""
    request.engine.require_workspace(request.workspace_id)
    service = await request.context.agent.languages()
    return Response(await service.restart(request.path["name"], request.workspace_id))

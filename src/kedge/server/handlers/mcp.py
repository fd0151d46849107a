"""MCP servers of a workspace: their state, logins, tests, prompts and resources."""

from __future__ import annotations

from pathlib import Path

from kedge.engine.workspace_host import WorkspaceHost
from kedge.protocol.mcp_requests import McpLoginAnswerBody, McpLoginQuery, McpPromptBody, McpResourceBody
from kedge.server.http import Request, Response


async def list_mcp_servers(request: Request) -> Response:
    """List the configured MCP servers with their state and tools; starts none."""
    access = await request.context.agent.mcp()
    return Response(await access.service.describe(*_place(request)))


async def start_mcp_servers(request: Request) -> Response:
    """Start the configured MCP servers in the background."""
    access = await request.context.agent.mcp()
    return Response(await access.start(*_place(request)))


async def restart_mcp_server(request: Request) -> Response:
    """End an MCP server and connect again."""
    access = await request.context.agent.mcp()
    return Response(await access.service.restart(request.path["name"], *_place(request)))


async def test_mcp_server(request: Request) -> Response:
    """Connect to an MCP server anew, and list what it offers."""
    access = await request.context.agent.mcp()
    return Response(await request.run_while_connected(access.test(request.path["name"], *_place(request))))


async def log_in_to_mcp_server(request: Request) -> Response:
    """Begin a login to an MCP server, for a browser to complete."""
    access = await request.context.agent.mcp()
    return Response(await access.log_in(request.path["name"], *_place(request)))


async def get_mcp_login(request: Request) -> Response:
    """Get the state of a login, or wait for its end."""
    access, wait_s = await request.context.agent.mcp(), request.query(McpLoginQuery).wait
    waiting = access.wait_for_login(request.path["name"], *_place(request), wait_s)
    return Response(await request.run_while_connected(waiting))


async def answer_mcp_login(request: Request) -> Response:
    """Complete a login with the address at which the browser ended."""
    access, body = await request.context.agent.mcp(), request.body(McpLoginAnswerBody)
    return Response(await access.answer_login(request.path["name"], *_place(request), body.url))


async def log_out_of_mcp_server(request: Request) -> Response:
    """Forget and revoke the login to an MCP server."""
    access = await request.context.agent.mcp()
    return Response(await access.log_out(request.path["name"], *_place(request)))


async def list_mcp_prompts(request: Request) -> Response:
    """List the prompts of the MCP servers that are ready."""
    access = await request.context.agent.mcp()
    return Response(await access.list_prompts(*_place(request)))


async def get_mcp_prompt(request: Request) -> Response:
    """Get a prompt of an MCP server with its arguments filled in."""
    access, body = await request.context.agent.mcp(), request.body(McpPromptBody)
    return Response(await access.get_prompt(request.path["name"], *_place(request), body.name, body.arguments))


async def list_mcp_resources(request: Request) -> Response:
    """List the resources of the MCP servers that are ready."""
    access = await request.context.agent.mcp()
    return Response(await access.list_resources(*_place(request)))


async def read_mcp_resource(request: Request) -> Response:
    """Read a resource of an MCP server."""
    access, body = await request.context.agent.mcp(), request.body(McpResourceBody)
    return Response(await access.read_resource(request.path["name"], *_place(request), body.uri))


def _place(request: Request) -> tuple[Path, WorkspaceHost]:
    return request.directory, request.engine.host_of(request.workspace_id)

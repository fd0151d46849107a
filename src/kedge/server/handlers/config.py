"""A workspace's configuration, its models, and providers' API keys (which hold for all workspaces)."""

from __future__ import annotations

from pathlib import Path

from kedge.protocol.api import (
    ConfigModelBody,
    ConfigRemoveBody,
    ConfigSetBody,
    CredentialsQuery,
    Deleted,
    LoginBody,
)
from kedge.protocol.environment import decode_environment
from kedge.protocol.validation import check_depth, check_model, check_text
from kedge.server.http import Request, Response


async def get_config(request: Request) -> Response:
    """Get the configuration and the source of each value."""
    from kedge.config.show import describe_config  # reads the schema, which would slow the server's start

    config = await request.context.configs.load(request.workspace_id, str(request.directory))
    return Response(describe_config(config))


async def set_config(request: Request) -> Response:
    """Set a config key in the user's or the workspace's file."""
    body, directory = request.body(ConfigSetBody), str(request.directory)
    check_depth(body.value, "values")
    await request.context.configs.set(request.workspace_id, directory, body.scope, body.key, body.value)
    return await get_config(request)


async def remove_config(request: Request) -> Response:
    """Remove a config key."""
    body, directory = request.body(ConfigRemoveBody), str(request.directory)
    await request.context.configs.remove(request.workspace_id, directory, body.scope, body.key)
    return await get_config(request)


async def set_model(request: Request) -> Response:
    """Set the default model."""
    body, directory = request.body(ConfigModelBody), str(request.directory)
    check_text(body.model, "model")
    check_model(body.model)
    key = "small_model" if body.small else "model"
    await request.context.configs.set(request.workspace_id, directory, body.scope, key, body.model)
    return await get_config(request)


async def list_models(request: Request) -> Response:
    """List models that can be used, and why others cannot."""
    return Response(await request.context.agent.models(request.directory, decode_environment(request.headers)))


async def log_in(request: Request) -> Response:
    """Check and store a provider's API key."""
    body = request.body(LoginBody)
    directory = _directory(request, body.workspace_id)
    return Response(await (await request.context.agent.logins()).log_in(body, directory))


async def list_credentials(request: Request) -> Response:
    """Sources of API keys, with their last four characters."""
    directory = _directory(request, request.query(CredentialsQuery).workspace_id)
    logins = await request.context.agent.logins()
    return Response(await logins.list_credentials(directory, decode_environment(request.headers)))


async def log_out(request: Request) -> Response:
    """Delete a stored API key."""
    await (await request.context.agent.logins()).log_out(request.path["provider_id"])
    return Response(Deleted(deleted=True))


def _directory(request: Request, workspace_id: str | None) -> Path:
    """Return the directory whose configuration applies; without a workspace the root, which has only the user's."""
    return Path("/" if workspace_id is None else request.engine.require_workspace(workspace_id).path)

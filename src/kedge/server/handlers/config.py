"""The configuration of a workspace: shown with where it comes from and without secrets, and changed."""

from __future__ import annotations

from pathlib import Path

from kedge.protocol.api import ConfigModelBody, ConfigRemoveBody, ConfigSetBody, CredentialsQuery, Deleted, LoginBody
from kedge.protocol.bounds import check_depth, check_model, check_text
from kedge.protocol.environment import environment_of
from kedge.server.http import Call, Reply


async def get_config(call: Call) -> Reply:
    from kedge.config.show import describe_config  # reads the schema: too slow for the server's start

    directory = call.engine.feed(call["workspace_id"]).path
    return Reply(describe_config(await call.context.configs.load(call["workspace_id"], directory)))


async def set_config(call: Call) -> Reply:
    body, directory = call.body(ConfigSetBody), call.engine.feed(call["workspace_id"]).path
    check_depth(body.value, "values")
    await call.context.configs.set(call["workspace_id"], directory, body.scope, body.key, body.value)
    return await get_config(call)


async def remove_config(call: Call) -> Reply:
    body, directory = call.body(ConfigRemoveBody), call.engine.feed(call["workspace_id"]).path
    await call.context.configs.remove(call["workspace_id"], directory, body.scope, body.key)
    return await get_config(call)


async def set_model(call: Call) -> Reply:
    body, directory = call.body(ConfigModelBody), call.engine.feed(call["workspace_id"]).path
    check_text(body.model, "model")
    check_model(body.model)
    key = "small_model" if body.small else "model"
    await call.context.configs.set(call["workspace_id"], directory, body.scope, key, body.model)
    return await get_config(call)


async def log_in(call: Call) -> Reply:
    body = call.body(LoginBody)
    directory = _directory(call, body.workspace_id)
    return Reply(await (await call.context.agent.logins()).log_in(body, directory))


async def list_credentials(call: Call) -> Reply:
    directory = _directory(call, call.query(CredentialsQuery).workspace_id)
    return Reply(await (await call.context.agent.logins()).listed(directory, environment_of(call.headers)))


async def log_out(call: Call) -> Reply:
    await (await call.context.agent.logins()).log_out(call["provider_id"])
    return Reply(Deleted(deleted=True))


def _directory(call: Call, workspace_id: str | None) -> Path:
    """Whose configuration counts; at the root it is the user's own and no workspace's."""
    if workspace_id is None:
        return Path("/")
    return Path(call.engine.feed(workspace_id).path)


async def list_models(call: Call) -> Reply:
    directory = Path(call.engine.feed(call["workspace_id"]).path)
    return Reply(await call.context.agent.models(directory, environment_of(call.headers)))

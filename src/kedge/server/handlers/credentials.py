"""Keys of providers: stored when they are right, listed by their ends, forgotten. They hold in all workspaces."""

from __future__ import annotations

from pathlib import Path

from kedge.protocol.api import CredentialsQuery, Deleted, LoginBody
from kedge.protocol.environment import environment_of
from kedge.server.operations import Call, Reply


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

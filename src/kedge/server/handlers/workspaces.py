"""Workspaces: their events, files, user commands, configuration, models; and API keys, which hold for all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from kedge.protocol.api import (
    ConfigModelBody,
    ConfigRemoveBody,
    ConfigSetBody,
    CredentialsQuery,
    Deleted,
    EventsQuery,
    Files,
    FilesQuery,
    LogAnswer,
    LoginBody,
    LogQuery,
    UserCommands,
    WorkspaceBody,
    Workspaces,
)
from kedge.protocol.environment import decode_environment
from kedge.protocol.errors import Invalid
from kedge.protocol.validation import check_depth, check_model, check_text
from kedge.server.http import Request, Response, StreamResponse


async def list_workspaces(request: Request) -> Response:
    return Response(Workspaces([state.workspace for state in await request.engine.store.workspaces()]))


async def open_workspace(request: Request) -> Response:
    path = Path(request.body(WorkspaceBody).path)
    if not path.is_absolute() or "\0" in str(path):
        raise Invalid("invalid_request", "path must be the absolute path of a directory on the server's machine.")
    return Response(await request.engine.open_workspace(path))


async def get_workspace(request: Request) -> Response:
    return Response(request.engine.require_workspace(request.workspace_id))


async def delete_workspace(request: Request) -> Response:
    await request.engine.delete_workspace(request.workspace_id)
    request.context.configs.forget(request.workspace_id)
    return Response(Deleted(deleted=True))


async def stream_events(request: Request) -> StreamResponse:
    query = request.query(EventsQuery)
    after = query.after
    last = request.headers.get("last-event-id", "").strip()
    if last:
        if not last.isdecimal() or len(last) > 18:
            raise Invalid("invalid_request", "Last-Event-ID must be the id of an event: a whole number.")
        after = int(last)
    workspace_id, directory = request.workspace_id, str(request.directory)
    chunks = request.engine.subscribe(workspace_id, after=after, log_id=query.log_id, session_id=query.session_id)
    # While a client follows the workspace, changes of its configuration are published at once.
    return StreamResponse(chunks, while_open=request.context.configs.watch(workspace_id, directory))


async def find_files(request: Request) -> Response:
    query = request.query(FilesQuery)
    found = await request.run_while_connected(request.context.names.find(request.directory, query.q, query.limit))
    return Response(Files(found.names, found.is_cut))


async def list_commands(request: Request) -> Response:
    from kedge.agent.context_files import list_user_commands

    return Response(UserCommands(await asyncio.to_thread(list_user_commands, request.directory)))


async def read_log(request: Request) -> Response:
    query = request.query(LogQuery)
    page = await request.engine.store.read_log(request.workspace_id, query.after, query.limit)
    envelopes = [msgspec.Raw(event.frame.partition(b"data: ")[2].rstrip()) for event in page.events]
    return Response(LogAnswer(envelopes, page.head, page.log_id))


async def get_config(request: Request) -> Response:
    from kedge.config.show import describe_config  # reads the schema, which would slow the server's start

    config = await request.context.configs.load(request.workspace_id, str(request.directory))
    return Response(describe_config(config))


async def set_config(request: Request) -> Response:
    body, directory = request.body(ConfigSetBody), str(request.directory)
    check_depth(body.value, "values")
    await request.context.configs.set(request.workspace_id, directory, body.scope, body.key, body.value)
    return await get_config(request)


async def remove_config(request: Request) -> Response:
    body, directory = request.body(ConfigRemoveBody), str(request.directory)
    await request.context.configs.remove(request.workspace_id, directory, body.scope, body.key)
    return await get_config(request)


async def set_model(request: Request) -> Response:
    body, directory = request.body(ConfigModelBody), str(request.directory)
    check_text(body.model, "model")
    check_model(body.model)
    key = "small_model" if body.small else "model"
    await request.context.configs.set(request.workspace_id, directory, body.scope, key, body.model)
    return await get_config(request)


async def list_models(request: Request) -> Response:
    return Response(await request.context.agent.models(request.directory, decode_environment(request.headers)))


async def log_in(request: Request) -> Response:
    body = request.body(LoginBody)
    directory = _directory(request, body.workspace_id)
    return Response(await (await request.context.agent.logins()).log_in(body, directory))


async def list_credentials(request: Request) -> Response:
    directory = _directory(request, request.query(CredentialsQuery).workspace_id)
    logins = await request.context.agent.logins()
    return Response(await logins.list_credentials(directory, decode_environment(request.headers)))


async def log_out(request: Request) -> Response:
    await (await request.context.agent.logins()).log_out(request.path["provider_id"])
    return Response(Deleted(deleted=True))


def _directory(request: Request, workspace_id: str | None) -> Path:
    """Return the directory whose configuration applies; without a workspace the root, which has only the user's."""
    return Path("/" if workspace_id is None else request.engine.require_workspace(workspace_id).path)

"""Workspaces, their events, files and user commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kedge.protocol.api import (
    Deleted,
    EventsQuery,
    Files,
    FilesQuery,
    LogAnswer,
    LogQuery,
    WorkspaceBody,
    Workspaces,
)
from kedge.protocol.environment import decode_environment
from kedge.protocol.errors import Invalid
from kedge.server.http import Request, Response, StreamResponse

if TYPE_CHECKING:
    from kedge.skills.library import Library


async def list_workspaces(request: Request) -> Response:
    """List workspaces."""
    return Response(Workspaces([state.workspace for state in await request.engine.store.workspaces()]))


async def open_workspace(request: Request) -> Response:
    """Open the workspace of a directory."""
    path = Path(request.body(WorkspaceBody).path)
    if not path.is_absolute() or "\0" in str(path):
        raise Invalid("invalid_request", "path must be the absolute path of a directory on the server's machine.")
    return Response(await request.engine.open_workspace(path))


async def get_workspace(request: Request) -> Response:
    """Get a workspace."""
    return Response(request.engine.require_workspace(request.workspace_id))


async def delete_workspace(request: Request) -> Response:
    """Delete a workspace; the files in its directory stay."""
    await request.engine.delete_workspace(request.workspace_id)
    await request.context.agent.workspace_deleted(request.workspace_id)
    request.context.configs.forget(request.workspace_id)
    return Response(Deleted(deleted=True))


async def stream_events(request: Request) -> StreamResponse:
    """Stream events (server-sent events) from a cursor on."""
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
    """Find files by part of their name."""
    query = request.query(FilesQuery)
    found = await request.run_while_connected(request.context.names.find(request.directory, query.q, query.limit))
    return Response(Files(found.names, found.is_cut))


async def list_commands(request: Request) -> Response:
    """List what a prompt can begin with as `/name`: custom commands and skills."""
    from kedge.skills.listing import list_commands

    return Response(list_commands(await _read_library(request)))


async def list_skills(request: Request) -> Response:
    """List skills and sub-agents, and the files that cannot be used."""
    from kedge.skills.listing import list_skills

    library, config = (
        await _read_library(request),
        await request.context.configs.load(
            request.workspace_id, str(request.directory), decode_environment(request.headers)
        ),
    )
    return Response(list_skills(library, config.config.agent.writers))


async def _read_library(request: Request) -> Library:
    library = await request.context.agent.library(request.directory, decode_environment(request.headers))
    request.engine.feed(request.workspace_id).publish_skills(library.state, library.home)
    return library


async def read_log(request: Request) -> Response:
    """Read a page of the event log."""
    query = request.query(LogQuery)
    page = await request.engine.store.read_log(request.workspace_id, query.after, query.limit)
    envelopes = [msgspec.Raw(event.frame.partition(b"data: ")[2].rstrip()) for event in page.events]
    return Response(LogAnswer(envelopes, page.head, page.log_id))


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

"""Workspaces and their story."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from kedge.protocol.api import (
    Deleted,
    EventsQuery,
    Files,
    FilesQuery,
    LogAnswer,
    LogQuery,
    UserCommands,
    WorkspaceBody,
    Workspaces,
)
from kedge.protocol.errors import Invalid
from kedge.server.http import Call, Reply, Stream


async def list_workspaces(call: Call) -> Reply:
    return Reply(Workspaces([state.workspace for state in await call.engine.store.workspaces()]))


async def open_workspace(call: Call) -> Reply:
    path = Path(call.body(WorkspaceBody).path)
    if not path.is_absolute() or "\0" in str(path):
        raise Invalid("invalid_request", "path must be the absolute path of a directory on the server's machine")
    return Reply(await call.engine.open_workspace(path))


async def get_workspace(call: Call) -> Reply:
    return Reply(call.engine.feed(call["workspace_id"]).workspace)


async def delete_workspace(call: Call) -> Reply:
    await call.engine.delete_workspace(call["workspace_id"])
    call.context.configs.forget(call["workspace_id"])
    return Reply(Deleted(deleted=True))


async def events(call: Call) -> Stream:
    query = call.query(EventsQuery)
    after = query.after
    last = call.headers.get("last-event-id", "").strip()
    if last:
        if not last.isdecimal() or len(last) > 18:
            raise Invalid("invalid_request", "Last-Event-ID must be the id of an event: a whole number")
        after = int(last)
    workspace_id = call["workspace_id"]
    chunks = call.engine.subscribe(workspace_id, after=after, log_id=query.log_id, session_id=query.session_id)
    # While a client follows the workspace, changes of its configuration are published at once.
    watch = call.context.configs.watch(workspace_id, call.engine.feed(workspace_id).path)
    return Stream(chunks, while_open=watch)


async def find_files(call: Call) -> Reply:
    query = call.query(FilesQuery)
    directory = Path(call.engine.feed(call["workspace_id"]).path)
    found = await call.while_wanted(call.context.names.find(directory, query.q, query.limit))
    return Reply(Files(found.names, found.is_cut))


async def list_commands(call: Call) -> Reply:
    from kedge.agent.user_commands import user_commands

    directory = Path(call.engine.feed(call["workspace_id"]).path)
    return Reply(UserCommands(await asyncio.to_thread(user_commands, directory)))


async def read_log(call: Call) -> Reply:
    query = call.query(LogQuery)
    page = await call.engine.store.read_log(call["workspace_id"], query.after, query.limit)
    envelopes = [msgspec.Raw(event.frame.partition(b"data: ")[2].rstrip()) for event in page.events]
    return Reply(LogAnswer(envelopes, page.head, page.log_id))

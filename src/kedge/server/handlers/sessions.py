"""Sessions, their messages and changed files; undo, redo and fork."""

from __future__ import annotations

import os

import msgspec

from kedge.protocol.api import (
    AllSessionsQuery,
    Deleted,
    ListedSessions,
    Messages,
    MessagesQuery,
    SessionBody,
    Sessions,
    SessionsQuery,
)
from kedge.protocol.environment import decode_environment
from kedge.protocol.files import ForkBody, RedoBody, SessionFilesQuery, UndoBody
from kedge.protocol.sessions import SessionChange
from kedge.protocol.validation import check_model, check_text
from kedge.server.http import Request, Response
from kedge.store.port import StoredContext


async def list_sessions(request: Request) -> Response:
    """List sessions."""
    request.engine.require_workspace(request.workspace_id)
    query = request.query(SessionsQuery)
    return Response(Sessions(await request.engine.store.sessions(request.workspace_id, query.q, query.limit)))


async def list_all_sessions(request: Request) -> Response:
    """List sessions of all directories, with their state and cost."""
    query = request.query(AllSessionsQuery)
    return Response(ListedSessions(await request.engine.store.all_sessions(query.q, query.limit)))


async def create_session(request: Request) -> Response:
    """Create a session."""
    return Response(await request.engine.create_session(request.workspace_id, request.body(SessionBody).title))


async def get_session(request: Request) -> Response:
    """Get a session."""
    return Response(await request.engine.store.session(request.workspace_id, request.session_id))


async def change_session(request: Request) -> Response:
    """Rename a session or set its model."""
    change, directory = request.body(SessionChange), request.directory
    if isinstance(change.model, str):  # refuse it now, not in the first run that would use it
        check_text(change.model, "model")
        check_model(change.model)
        await request.context.agent.check_model(change.model, directory)
    return Response(await request.engine.change_session(request.workspace_id, request.session_id, change))


async def delete_session(request: Request) -> Response:
    """Cancel a session's runs, then delete it."""
    await request.engine.delete_session(request.workspace_id, request.session_id)
    await request.context.agent.session_deleted(request.session_id)
    return Response(Deleted(deleted=True))


async def list_messages(request: Request) -> Response:
    """List messages, oldest first."""
    query = request.query(MessagesQuery)
    page = await request.engine.store.messages(request.workspace_id, request.session_id, query.after, query.limit)
    return Response(Messages(page.messages, page.as_of_seq))


async def list_session_files(request: Request) -> Response:
    """List the files that a session changed."""
    from kedge.engine.files import changed_files  # imports `difflib`, which would slow the server's start

    query, engine = request.query(SessionFilesQuery), request.engine
    workspace_id, session_id = request.workspace_id, request.session_id
    root = os.fsencode(request.directory)
    await engine.file_recorder.settle(workspace_id)
    files = await changed_files.list_changed_files(
        engine.store, engine.file_recorder.versions, root, workspace_id, session_id, query.run_id, diffs=query.diff
    )
    return Response(files)


async def get_session_context(request: Request) -> Response:
    """What fills the context window of a session."""
    store, workspace_id, session_id = request.engine.store, request.workspace_id, request.session_id
    session = await store.session(workspace_id, session_id)
    stored = StoredContext(
        history=await store.history(workspace_id, session_id),
        surroundings=await store.surroundings(session_id),
        tools=await store.tools(session_id),
        notes=await store.notes(session_id),
    )
    env = decode_environment(request.headers)
    return Response(await request.context.agent.context(stored, session.model, request.directory, env))


async def get_timeline(request: Request) -> Response:
    """List a session's prompts with what they changed, and its undos."""
    from kedge.engine.files.timeline import read_timeline  # imports `difflib`, which would slow the server's start

    workspace_id, engine, root = request.workspace_id, request.engine, os.fsencode(request.directory)
    await engine.file_recorder.settle(workspace_id)
    versions = engine.file_recorder.versions
    return Response(await read_timeline(engine.store, versions, root, workspace_id, request.session_id))


async def undo_session(request: Request) -> Response:
    """Restore files and conversation to before a message."""
    options = msgspec.structs.asdict(request.body(UndoBody))
    return Response(await request.engine.undos.undo(request.workspace_id, request.session_id, **options))


async def redo_session(request: Request) -> Response:
    """Redo the last undo."""
    dry_run = request.body(RedoBody).dry_run
    return Response(await request.engine.undos.redo(request.workspace_id, request.session_id, dry_run=dry_run))


async def fork_session(request: Request) -> Response:
    """Create a session that continues from a message."""
    options = msgspec.structs.asdict(request.body(ForkBody))
    return Response(await request.engine.undos.fork(request.workspace_id, request.session_id, **options))

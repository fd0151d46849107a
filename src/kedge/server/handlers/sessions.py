"""Sessions: listed, made, changed, deleted, read."""

from __future__ import annotations

import os
from pathlib import Path

from kedge.protocol.api import Deleted, Messages, MessagesQuery, SessionBody, Sessions, SessionsQuery
from kedge.protocol.bounds import check_model, check_text
from kedge.protocol.files import ForkBody, RedoBody, SessionFilesQuery, UndoBody
from kedge.protocol.sessions import SessionChange
from kedge.server.http import Call, Reply


async def list_sessions(call: Call) -> Reply:
    call.engine.feed(call["workspace_id"])
    query = call.query(SessionsQuery)
    return Reply(Sessions(await call.engine.store.sessions(call["workspace_id"], query.q, query.limit)))


async def create_session(call: Call) -> Reply:
    return Reply(await call.engine.create_session(call["workspace_id"], call.body(SessionBody).title))


async def get_session(call: Call) -> Reply:
    return Reply(await call.engine.store.session(call["workspace_id"], call["session_id"]))


async def change_session(call: Call) -> Reply:
    change, directory = call.body(SessionChange), Path(call.engine.feed(call["workspace_id"]).path)
    if isinstance(change.model, str):  # known now, and not in the first run that would use it
        check_text(change.model, "model")
        check_model(change.model)
        await call.context.agent.check_model(change.model, directory)
    return Reply(await call.engine.change_session(call["workspace_id"], call["session_id"], change))


async def delete_session(call: Call) -> Reply:
    await call.engine.delete_session(call["workspace_id"], call["session_id"])
    await call.context.agent.session_deleted(call["session_id"])
    return Reply(Deleted(deleted=True))


async def list_messages(call: Call) -> Reply:
    query = call.query(MessagesQuery)
    page = await call.engine.store.messages(call["workspace_id"], call["session_id"], query.after, query.limit)
    return Reply(Messages(page.messages, page.as_of_seq))


async def session_files(call: Call) -> Reply:
    from kedge.engine.files import changed_files  # brings `difflib` along, which a starting server should not wait for

    query, engine = call.query(SessionFilesQuery), call.engine
    workspace_id, session_id = call["workspace_id"], call["session_id"]
    root = os.fsencode(engine.feed(workspace_id).path)
    await engine.file_recorder.settle(workspace_id)
    files = await changed_files.session_files(
        engine.store, engine.file_recorder.versions, root, workspace_id, session_id, query.run_id, diffs=query.diff
    )
    return Reply(files)


async def undo_session(call: Call) -> Reply:
    body = call.body(UndoBody)
    done = call.engine.undos.undo(
        call["workspace_id"],
        call["session_id"],
        body.message_id,
        dry_run=body.dry_run,
        force=body.force,
        include_unsure=body.include_unsure,
    )
    return Reply(await done)


async def redo_session(call: Call) -> Reply:
    is_dry = call.body(RedoBody).dry_run
    return Reply(await call.engine.undos.redo(call["workspace_id"], call["session_id"], dry_run=is_dry))


async def fork_session(call: Call) -> Reply:
    body = call.body(ForkBody)
    done = call.engine.undos.fork(
        call["workspace_id"],
        call["session_id"],
        body.message_id,
        with_files=body.with_files,
        dry_run=body.dry_run,
        force=body.force,
        include_unsure=body.include_unsure,
    )
    return Reply(await done)

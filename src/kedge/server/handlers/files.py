"""What a session did to files, and the way back: undo, redo, fork."""

from __future__ import annotations

import os

from kedge.protocol.files import ForkBody, RedoBody, SessionFilesQuery, UndoBody
from kedge.server.operations import Call, Reply


async def session_files(call: Call) -> Reply:
    from kedge.engine import changed  # brings `difflib` along, which a starting server should not wait for

    query, engine = call.query(SessionFilesQuery), call.engine
    workspace_id, session_id = call["workspace_id"], call["session_id"]
    root = os.fsencode(engine.feed(workspace_id).path)
    await engine.keeper.settle(workspace_id)
    files = await changed.session_files(
        engine.store, engine.keeper.versions, root, workspace_id, session_id, query.run_id, diffs=query.diff
    )
    return Reply(files)


async def undo_session(call: Call) -> Reply:
    body = call.body(UndoBody)
    done = call.engine.rewinder.undo(
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
    return Reply(await call.engine.rewinder.redo(call["workspace_id"], call["session_id"], dry_run=is_dry))


async def fork_session(call: Call) -> Reply:
    body = call.body(ForkBody)
    done = call.engine.rewinder.fork(
        call["workspace_id"],
        call["session_id"],
        body.message_id,
        with_files=body.with_files,
        dry_run=body.dry_run,
        force=body.force,
        include_unsure=body.include_unsure,
    )
    return Reply(await done)

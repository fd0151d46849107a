"""Sessions: listed, made, changed, deleted, read."""

from __future__ import annotations

from pathlib import Path

from kedge.protocol.api import Deleted, Messages, MessagesQuery, SessionBody, Sessions, SessionsQuery
from kedge.protocol.bounds import check_model, check_text
from kedge.protocol.sessions import SessionChange
from kedge.server.operations import Call, Reply


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

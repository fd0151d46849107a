"""What is asked of people, and what they say (P14)."""

from __future__ import annotations

from kedge.protocol.api import AnswerBody, GrantBody, PendingPermissions, PendingQuestions, RequestBody
from kedge.protocol.requests import PermissionRequest, QuestionRequest, Skip
from kedge.server.http import Call, Reply


async def list_permissions(call: Call) -> Reply:
    call.engine.feed(call["workspace_id"])
    pending = await call.engine.store.pending(call["workspace_id"], "permission")
    return Reply(PendingPermissions([request for request in pending if isinstance(request, PermissionRequest)]))


async def grant_permission(call: Call) -> Reply:
    body = call.body(GrantBody)
    return Reply(await call.engine.answer_permission(call["workspace_id"], body.id, body.action, call.client))


async def get_skip(call: Call) -> Reply:
    return Reply(Skip(call.engine.feed(call["workspace_id"]).skips_permissions))


async def set_skip(call: Call) -> Reply:
    call.engine.feed(call["workspace_id"]).skips_permissions = call.body(Skip).skip
    return await get_skip(call)


async def list_questions(call: Call) -> Reply:
    call.engine.feed(call["workspace_id"])
    pending = await call.engine.store.pending(call["workspace_id"], "question")
    return Reply(PendingQuestions([request for request in pending if isinstance(request, QuestionRequest)]))


async def answer_question(call: Call) -> Reply:
    body = call.body(AnswerBody)
    return Reply(await call.engine.answer_question(call["workspace_id"], body.id, body.answers, call.client))


async def cancel_question(call: Call) -> Reply:
    return Reply(await call.engine.answer_question(call["workspace_id"], call.body(RequestBody).id, None, call.client))

"""Permission requests and questions to people, and their answers (P14)."""

from __future__ import annotations

from kedge.protocol.api import (
    AnswerBody,
    Deleted,
    GrantBody,
    PendingPermissions,
    PendingQuestions,
    RequestBody,
    SessionGrant,
    SessionGrants,
)
from kedge.protocol.errors import Invalid
from kedge.protocol.requests import PermissionRequest, QuestionRequest, Skip
from kedge.server.http import Request, Response


async def list_permissions(request: Request) -> Response:
    """List pending permission requests."""
    request.engine.require_workspace(request.workspace_id)
    pending = await request.engine.store.pending_requests(request.workspace_id, "permission")
    return Response(PendingPermissions([each for each in pending if isinstance(each, PermissionRequest)]))


async def grant_permission(request: Request) -> Response:
    """Answer a permission request; the first answer wins."""
    body, engine = request.body(GrantBody), request.engine

    async def write_rules(asked: PermissionRequest) -> None:
        from kedge.tools.permissions.policy import read_rules  # would slow the server's start

        if not (rules := read_rules(asked, "always_rules")):
            raise Invalid("no_rule", "no rule for this request is narrow enough; answer with allow or allow_session")
        await request.context.configs.allow_always(request.workspace_id, str(request.directory), rules)

    receipt = await engine.answer_permission(
        request.workspace_id, body.id, body.action, request.client, reason=body.reason, write_rules=write_rules
    )
    return Response(receipt)


async def list_grants(request: Request) -> Response:
    """List what was allowed for the rest of a session."""
    from kedge.tools.permissions.policy import read_rules  # would slow the server's start

    await request.engine.store.session(request.workspace_id, request.session_id)  # raises `NotFound`
    granted = await request.engine.store.grants(request.workspace_id, request.session_id)
    return Response(
        SessionGrants(
            [
                SessionGrant(id=each.id, tool=each.tool, description=each.description, rules=read_rules(each, "rules"))
                for each in granted
            ]
        )
    )


async def revoke_grant(request: Request) -> Response:
    """Revoke what was allowed for a session, from its next run on."""
    await request.engine.store.revoke_grant(request.workspace_id, request.session_id, request.path["grant_id"])
    return Response(Deleted(deleted=True))


async def get_skip(request: Request) -> Response:
    """Whether permission requests are skipped in this workspace."""
    return Response(Skip(request.engine.feed(request.workspace_id).skips_permissions))


async def set_skip(request: Request) -> Response:
    """Skip permission requests in this workspace (yolo mode), or stop skipping."""
    request.engine.feed(request.workspace_id).skips_permissions = request.body(Skip).skip
    return await get_skip(request)


async def list_questions(request: Request) -> Response:
    """List pending questions."""
    request.engine.require_workspace(request.workspace_id)
    pending = await request.engine.store.pending_requests(request.workspace_id, "question")
    return Response(PendingQuestions([each for each in pending if isinstance(each, QuestionRequest)]))


async def answer_question(request: Request) -> Response:
    """Answer a question; the first answer wins."""
    body, engine = request.body(AnswerBody), request.engine
    return Response(await engine.answer_question(request.workspace_id, body.id, body.answers, request.client))


async def cancel_question(request: Request) -> Response:
    """Decline a question."""
    request_id = request.body(RequestBody).id
    return Response(await request.engine.answer_question(request.workspace_id, request_id, None, request.client))

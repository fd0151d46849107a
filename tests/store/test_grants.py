"""What was allowed for a session is read back from the answers, also by the next server."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.protocol.errors import NotFound
from kedge.protocol.requests import PermissionAction, PermissionRequest
from tests.support.harness import Kedge
from tests.support.stores import Sqlite


async def answer(kedge: Kedge, session_id: str, script: str, action: PermissionAction, by: str = "tui") -> None:
    receipt = await kedge.send(session_id, script)
    request = await kedge.asked()
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, action, by)
    await kedge.end(receipt.run_id)


async def read_grants(kedge: Kedge, session_id: str) -> list[str]:
    grants: list[PermissionRequest] = await kedge.store.grants(kedge.workspace_id, session_id)
    return [request.tool for request in grants]


async def test_only_what_was_allowed_for_the_session_is_granted_and_it_survives_a_restart(tmp_path: Path) -> None:
    async with Kedge(Sqlite(), tmp_path) as kedge:
        session_id, other = await kedge.session(), await kedge.session()
        await answer(kedge, session_id, "ask first done", "allow_session")
        await answer(kedge, session_id, "ask second done", "allow")
        await answer(kedge, session_id, "ask third done", "deny", by="allow_session")
        await answer(kedge, session_id, "ask fourth done", "deny", by='","action":"allow_session"')
        await answer(kedge, other, "ask fifth done", "allow_session")
        assert await read_grants(kedge, session_id) == ["first"]
        await kedge.restart()
        assert await read_grants(kedge, session_id) == ["first"]
        assert await read_grants(kedge, other) == ["fifth"]
        assert await read_grants(kedge, "unknown") == []


async def test_a_grant_given_to_a_sub_agent_holds_for_the_session_that_showed_it_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    async with Kedge(Sqlite(), tmp_path) as kedge:
        session_id = await kedge.session()
        await answer(kedge, session_id, "ask own done", "allow_session")
        await answer(kedge, session_id, "delegate ask child done", "allow_session")
        (child,) = [each for each in await kedge.store.sessions(kedge.workspace_id) if each.id != session_id]
        assert await read_grants(kedge, session_id) == ["own", "child"]
        assert await read_grants(kedge, child.id) == ["own", "child"]


async def test_a_revoked_grant_is_gone_and_its_answer_stays(tmp_path: Path) -> None:
    async with Kedge(Sqlite(), tmp_path) as kedge:
        session_id, other = await kedge.session(), await kedge.session()
        await answer(kedge, session_id, "ask first done", "allow_session")
        await answer(kedge, session_id, "ask second done", "allow_session")
        first, second = await kedge.store.grants(kedge.workspace_id, session_id)
        with pytest.raises(NotFound):
            await kedge.store.revoke_grant(kedge.workspace_id, other, first.id)
        await kedge.store.revoke_grant(kedge.workspace_id, session_id, first.id)
        assert await read_grants(kedge, session_id) == ["second"]
        with pytest.raises(NotFound):
            await kedge.store.revoke_grant(kedge.workspace_id, session_id, first.id)
        late = await kedge.engine.answer_permission(kedge.workspace_id, first.id, "deny", "late")
        assert (late.resolved, late.action) == (False, "allow_session")
        await kedge.restart()
        assert await read_grants(kedge, session_id) == ["second"]
        assert second.tool == "second"

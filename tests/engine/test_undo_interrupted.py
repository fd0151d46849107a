"""An undo whose caller or whose server leaves in the middle of it: it comes to its end all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge import failpoints
from tests.engine.undo_helpers import do, said
from tests.support.file_turn import FileTurn
from tests.support.harness import Kedge
from tests.support.holding import LIMIT_S, hold_at


async def test_an_undo_goes_on_when_its_caller_leaves(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "a").write_text("one")
    (root / "b").write_text("one")
    turn.by_tool("edit", root / "a", b"two")
    turn.by_tool("edit", root / "b", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    begun, go = hold_at("undo.path")
    undoing = asyncio.create_task(kedge.engine.undos.undo(kedge.workspace_id, session))
    await begun.wait()
    undoing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await undoing
    go.set()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wait(kedge.engine.undos.running)
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("one", "one")
    assert await said(kedge, session) == []
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("two", "two")


class Died(Exception):
    """The server, here."""


async def test_the_next_server_finishes_all_undos_that_the_last_one_began(
    kedge: Kedge, turn: FileTurn, tmp_path: Path
) -> None:
    """In several workspaces: in one of them there is one at a time."""
    roots = {kedge.workspace_id: kedge.engine.root_of(kedge.workspace_id)}
    for name in ("second", "third"):
        (tmp_path / name).mkdir()
        roots[(await kedge.engine.open_workspace(tmp_path / name)).id] = tmp_path / name

    def die() -> None:
        raise Died

    first = kedge.workspace_id
    sessions: dict[str, str] = {}
    for workspace_id, root in roots.items():
        kedge.workspace_id = workspace_id
        (root / "a").write_text("one")
        turn.by_tool(f"edit in {root.name}", root / "a", b"two")
        sessions[workspace_id] = await kedge.session()
        await do(kedge, sessions[workspace_id], f"edit in {root.name}")
    kedge.workspace_id = first
    failpoints.arm("undo.begun", die)
    for workspace_id, session in sessions.items():
        with pytest.raises(Died):
            await kedge.engine.undos.undo(workspace_id, session)
    await kedge.crash()
    failpoints.disarm()
    assert [(root / "a").read_text() for root in roots.values()] == ["two"] * 3
    await kedge.start()
    assert [(root / "a").read_text() for root in roots.values()] == ["one"] * 3
    for workspace_id, session in sessions.items():
        assert (await kedge.store.messages(workspace_id, session)).messages == []

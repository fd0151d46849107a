"""Undo of files alone and of the conversation alone: the other half stays as it is, and redo takes each back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kedge.engine.files.timeline import read_timeline
from kedge.protocol.errors import Conflict
from kedge.protocol.files import FilesConflict, Timeline
from kedge.store.port import ProcessRecord
from tests.engine.undo_helpers import do, said
from tests.support.file_turn import FileTurn
from tests.support.harness import Kedge


async def timeline_of(kedge: Kedge, session: str, root: Path) -> Timeline:
    versions = kedge.engine.file_recorder.versions
    return await read_timeline(kedge.store, versions, os.fsencode(root), kedge.workspace_id, session)


async def three_prompts(kedge: Kedge, turn: FileTurn, root: Path) -> tuple[str, list[str]]:
    """Each writes a file of its own, and its number into `a`; returns the session and the ids of the prompts."""
    session = await kedge.session()
    for name in ("one", "two", "three"):
        turn.by_tool(name, root / "a", f"{name}\n".encode())
        turn.by_command(name, lambda name=name: (root / name).write_text("new\n"))
        await do(kedge, session, name)
    return session, [m.id for m in await kedge.messages(session) if m.role == "user"]


def files_in(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in root.iterdir() if path.is_file()}


async def test_an_undo_of_files_keeps_the_conversation_and_redo_brings_them_back(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    session, ids = await three_prompts(kedge, turn, root)
    after = files_in(root)
    undone = await kedge.engine.undos.undo(kedge.workspace_id, session, ids[1], restore="files")
    assert files_in(root) == {"a": "one\n", "one": "new\n"}
    assert [(f.path, f.status, f.added, f.removed) for f in undone.files] == [
        ("a", "modified", 1, 1),
        ("three", "deleted", 0, 1),
        ("two", "deleted", 0, 1),
    ]
    assert await said(kedge, session) == ["one", "two", "three"]
    assert undone.undone_from is None
    assert undone.rewritten > 0, "clients read the changed files again"
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert files_in(root) == after


async def test_an_undo_of_the_conversation_keeps_the_files_and_redo_brings_it_back(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    session, ids = await three_prompts(kedge, turn, root)
    after = files_in(root)
    undone = await kedge.engine.undos.undo(kedge.workspace_id, session, ids[1], restore="conversation")
    assert (undone.prompt, undone.files) == ("two", [])
    assert await said(kedge, session) == ["one"]
    assert files_in(root) == after
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert await said(kedge, session) == ["one", "two", "three"]
    assert files_in(root) == after


async def test_kinds_stack_and_redo_takes_the_last_one_back_first(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    session, ids = await three_prompts(kedge, turn, root)
    undos, workspace = kedge.engine.undos, kedge.workspace_id
    await undos.undo(workspace, session, ids[2], restore="conversation")
    await undos.undo(workspace, session, ids[1], restore="files")
    await undos.undo(workspace, session, ids[0])
    assert (files_in(root), await said(kedge, session)) == ({}, [])
    await undos.redo(workspace, session)
    assert (files_in(root)["a"], await said(kedge, session)) == ("one\n", ["one", "two"])
    await undos.redo(workspace, session)
    assert (files_in(root)["a"], await said(kedge, session)) == ("three\n", ["one", "two"])
    await undos.redo(workspace, session)
    assert await said(kedge, session) == ["one", "two", "three"]
    with pytest.raises(Conflict):
        await undos.redo(workspace, session)


async def test_files_that_outlived_their_conversation_go_with_an_earlier_undo(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    session, ids = await three_prompts(kedge, turn, root)
    await kedge.engine.undos.undo(kedge.workspace_id, session, ids[1], restore="conversation")
    turn.by_tool("four", root / "a", b"four\n")
    await do(kedge, session, "four")
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert files_in(root)["a"] == "three\n", "only what this prompt did"
    await kedge.engine.undos.undo(kedge.workspace_id, session, ids[0])
    assert files_in(root) == {}


async def test_an_undo_of_files_overwrites_nothing_of_a_person(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    session, ids = await three_prompts(kedge, turn, root)
    (root / "a").write_text("by hand\n")
    before = files_in(root)
    with pytest.raises(FilesConflict):
        await kedge.engine.undos.undo(kedge.workspace_id, session, ids[2], restore="files")
    assert files_in(root) == before
    done = await kedge.engine.undos.undo(kedge.workspace_id, session, ids[2], restore="conversation")
    assert (done.files, files_in(root)) == ([], before)


async def test_what_an_undo_of_files_left_as_unsure_can_be_included_later(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    session = await kedge.session()
    turn.by_command("serve", lambda: (root / "made").write_text("x\n"))
    end = await do(kedge, session, "serve")
    kedge.engine.processes.add_job(ProcessRecord(2**22 + 1, end.run_id), kedge.workspace_id, end.run_id)
    (root / "log").write_text("by the job or by a person\n")
    undos, workspace = kedge.engine.undos, kedge.workspace_id
    await undos.undo(workspace, session, restore="files")
    assert files_in(root) == {"log": "by the job or by a person\n"}
    found = await timeline_of(kedge, session, root)
    files = {file.path: file for call in found.turns[0].calls for file in call.files}
    assert (files["made"].undone, files["log"].undone, files["log"].unsure) == (True, False, "background_job")
    with pytest.raises(Conflict) as refused:
        await undos.undo(workspace, session, restore="files")
    assert refused.value.code == "nothing_to_undo"
    await undos.undo(workspace, session, restore="files", include_unsure=True)
    assert files_in(root) == {}
    await undos.redo(workspace, session)
    await undos.redo(workspace, session)
    assert files_in(root) == {"made": "x\n", "log": "by the job or by a person\n"}


async def test_the_timeline_says_what_going_back_changes_and_what_was_undone(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    session, ids = await three_prompts(kedge, turn, root)
    found = await timeline_of(kedge, session, root)
    assert [turn.prompt for turn in found.turns] == ["one", "two", "three"]
    assert [(t.back.files, t.back.added, t.back.removed) for t in found.turns] == [(4, 0, 4), (3, 1, 3), (2, 1, 2)]
    dry = await kedge.engine.undos.undo(kedge.workspace_id, session, ids[1], dry_run=True)
    assert len(dry.files) == found.turns[1].back.files
    assert sum(file.added or 0 for file in dry.files) == found.turns[1].back.added
    await kedge.engine.undos.undo(kedge.workspace_id, session, ids[2])
    await kedge.engine.undos.undo(kedge.workspace_id, session, ids[1], restore="files")
    found = await timeline_of(kedge, session, root)
    assert [turn.state for turn in found.turns] == ["current", "current", "undone"]
    assert [(undo.message_id, undo.restore, undo.state) for undo in found.undos] == [
        (ids[2], "both", "undone"),
        (ids[1], "files", "undone"),
    ]
    assert found.turns[1].back.files == 0
    assert all(file.undone for turn in found.turns[1:] for call in turn.calls for file in call.files)
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    await do(kedge, session, "go on")
    found = await timeline_of(kedge, session, root)
    assert [undo.state for undo in found.undos] == ["dropped", "redone"]
    assert [turn.state for turn in found.turns] == ["current", "current", "dropped", "current"]
    assert found.undos[0].seq > found.turns[2].seq
    assert found.turns[3].seq > found.undos[1].seq

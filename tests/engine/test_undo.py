"""Undo and redo: files and conversation go back together, somebody's work is never lost, and it can be taken back."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest

from kedge import failpoints
from kedge.engine.files.changed_files import list_changed_files
from kedge.engine.turn import TurnContext
from kedge.protocol.errors import Conflict, NotFound, SessionBusy
from kedge.protocol.files import FilesConflict
from kedge.protocol.messages import text_of
from tests.engine.undo_helpers import do, said
from tests.support.file_turn import FileTurn, tree_of
from tests.support.harness import Kedge


async def test_what_a_tool_changed_and_what_was_said_go_back_and_come_again(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    (root / "a.txt").write_text("one\n")
    before = tree_of(root)
    turn.by_tool("edit", root / "a.txt", b"two\n")
    turn.by_tool("edit", root / "new/deep/b.txt", b"new\n")
    session = await kedge.session()
    await do(kedge, session, "look")
    await do(kedge, session, "edit")
    after = tree_of(root)
    undone = await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert tree_of(root) == before
    assert undone.prompt == "edit"
    assert [(file.path, file.status) for file in undone.files] == [("a.txt", "modified"), ("new/deep/b.txt", "deleted")]
    assert await said(kedge, session) == ["look"]
    assert undone.undone_from is not None
    history = await kedge.store.history(kedge.workspace_id, session)
    assert [text_of(m.parts) for m in history if m.role == "user"] == ["look"], "nor does the model see it"
    redone = await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert tree_of(root) == after
    assert await said(kedge, session) == ["look", "edit"]
    assert redone.undone_from is None
    history = await kedge.store.history(kedge.workspace_id, session)
    assert [text_of(m.parts) for m in history if m.role == "user"] == ["look", "edit"]


async def test_what_somebody_changed_since_is_not_overwritten(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "a").write_text("one")
    (root / "b").write_text("one")
    turn.by_tool("edit", root / "a", b"two")
    turn.by_tool("edit", root / "b", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    (root / "a").write_text("by a person")
    dry = await kedge.engine.undos.undo(kedge.workspace_id, session, dry_run=True)
    assert [(file.path, file.obstacle) for file in dry.files] == [("a", "changed"), ("b", None)]
    assert dry.dry_run
    with pytest.raises(FilesConflict) as refused:
        await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert refused.value.files == dry.files
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("by a person", "two")
    assert await said(kedge, session) == ["edit"]
    await kedge.engine.undos.undo(kedge.workspace_id, session, force=True)
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("one", "one")
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("by a person", "two"), "what force took is back"


async def test_what_somebody_changed_in_between_is_not_overwritten_either(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    (root / "a").write_text("one")
    turn.by_tool("first", root / "a", b"two")
    turn.by_tool("second", root / "a", b"four")
    session = await kedge.session()
    await do(kedge, session, "first")
    (root / "a").write_text("three, by a person")
    await do(kedge, session, "second")
    first = (await kedge.messages(session))[0]
    with pytest.raises(FilesConflict):
        await kedge.engine.undos.undo(kedge.workspace_id, session, first.id)
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert (root / "a").read_text() == "three, by a person"


async def test_what_another_session_changed_since_is_somebodys_too(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    turn.by_tool("mine", root / "a", b"mine")
    turn.by_tool("theirs", root / "a", b"theirs")
    mine, theirs = await kedge.session(), await kedge.session()
    await do(kedge, mine, "mine")
    await do(kedge, theirs, "theirs")
    with pytest.raises(FilesConflict):
        await kedge.engine.undos.undo(kedge.workspace_id, mine)
    await kedge.engine.undos.undo(kedge.workspace_id, theirs)
    await kedge.engine.undos.undo(kedge.workspace_id, mine)
    assert not (root / "a").exists()


async def test_a_redo_does_not_overwrite_what_was_done_after_the_undo(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    turn.by_tool("edit", root / "a", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    (root / "a").write_text("by a person")
    with pytest.raises(FilesConflict):
        await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert (root / "a").read_text() == "by a person"
    (root / "a").unlink()
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert (root / "a").read_text() == "two"


async def test_a_new_prompt_drops_what_was_undone(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    turn.by_tool("edit", root / "a", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    await do(kedge, session, "another")
    assert (await kedge.store.session(kedge.workspace_id, session)).undone_from is None
    with pytest.raises(Conflict) as refused:
        await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert refused.value.code == "nothing_to_redo"
    assert await said(kedge, session) == ["another"]


async def test_undos_stack_and_are_redone_in_turn(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    for name in ("one", "two", "three"):
        turn.by_tool(name, root / "a", name.encode())
    session = await kedge.session()
    for name in ("one", "two", "three"):
        await do(kedge, session, name)
    for expected in ("two", "one"):
        await kedge.engine.undos.undo(kedge.workspace_id, session)
        assert (root / "a").read_text() == expected
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert not (root / "a").exists()
    with pytest.raises(Conflict) as nothing:
        await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert nothing.value.code == "nothing_to_undo"
    for expected in ("one", "two", "three"):
        await kedge.engine.undos.redo(kedge.workspace_id, session)
        assert (root / "a").read_text() == expected
    assert await said(kedge, session) == ["one", "two", "three"]


async def test_a_busy_session_is_not_undone(kedge: Kedge) -> None:
    session = await kedge.session()
    receipt = await kedge.send(session, "wait busy")
    await kedge.reached("busy")
    with pytest.raises(SessionBusy):
        await kedge.engine.undos.undo(kedge.workspace_id, session)
    await kedge.cancel(session)
    await kedge.end(receipt.run_id)


async def test_an_unknown_message_is_said_to_be_unknown(kedge: Kedge, turn: FileTurn) -> None:
    session = await kedge.session()
    await do(kedge, session, "hello")
    with pytest.raises(NotFound):
        await kedge.engine.undos.undo(kedge.workspace_id, session, "no-such-message")


async def test_a_version_that_went_is_said_to_be_gone(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "a").write_text("one")
    turn.by_tool("edit", root / "a", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    with kedge.engine.file_recorder.versions.blobs.transaction() as db:
        db.execute("DELETE FROM blobs")
    dry = await kedge.engine.undos.undo(kedge.workspace_id, session, dry_run=True)
    assert [(file.path, file.obstacle) for file in dry.files] == [("a", "not_kept")]


async def test_a_persons_file_in_the_place_of_a_directory_stays(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d/file").write_text("one")
    turn.by_command("work", lambda: shutil.rmtree(root / "d"))
    session = await kedge.session()
    await do(kedge, session, "work")
    (root / "d").write_text("a person's")
    dry = await kedge.engine.undos.undo(kedge.workspace_id, session, dry_run=True)
    assert [(file.path, file.obstacle) for file in dry.files] == [("d/file", "in_the_way")]


async def test_what_a_sub_agent_did_goes_with_the_prompt_of_its_parent(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    kedge.turns["agent"] = turn
    turn.by_tool("sub task", root / "by-sub-agent", b"x")

    async def delegating(ctx: TurnContext) -> None:
        await ctx.delegate("sub task")

    kedge.turns["prompt"] = delegating
    session = await kedge.session()
    end = await do(kedge, session, "delegate it")
    root_bytes = os.fsencode(root)
    for run_id in (None, end.run_id):
        found = await list_changed_files(
            kedge.store,
            kedge.engine.file_recorder.versions,
            root_bytes,
            kedge.workspace_id,
            session,
            run_id,
            diffs=True,
        )
        assert [(file.path, file.status, file.added) for file in found.files] == [("by-sub-agent", "created", 1)]
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert not (root / "by-sub-agent").exists()


async def test_over_the_bound_the_oldest_versions_go_and_an_undo_says_so(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    recorder = kedge.engine.file_recorder
    for name in ("old", "new"):
        (root / name).write_bytes(os.urandom(400_000))
        turn.by_tool(name, root / name, b"changed")
    sessions = {name: await kedge.session() for name in ("old", "new")}
    for name, session in sessions.items():
        await do(kedge, session, name)
    recorder.pruner.max_bytes = 600_000
    await recorder.pruner.prune()
    old = await kedge.engine.undos.undo(kedge.workspace_id, sessions["old"], dry_run=True)
    assert [(file.path, file.obstacle) for file in old.files] == [("old", "not_kept")]
    new = await kedge.engine.undos.undo(kedge.workspace_id, sessions["new"])
    assert [(file.path, file.obstacle) for file in new.files] == [("new", None)]


async def test_a_prompt_waits_for_nothing_but_is_refused_while_files_are_restored(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    turn.by_tool("edit", root / "a", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    refused: list[str] = []

    async def send() -> None:
        with pytest.raises(Conflict) as error:
            await kedge.send(session, "too early")
        refused.append(error.value.code)

    loop = asyncio.get_running_loop()
    failpoints.arm("undo.path", lambda: asyncio.run_coroutine_threadsafe(send(), loop).result(20))
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert refused == ["session_busy"]
    await do(kedge, session, "now")


async def test_a_server_that_stops_lets_an_undo_come_to_its_end(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "a").write_text("one")
    turn.by_tool("edit", root / "a", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    loop, begun, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def hold() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go.wait(30)

    failpoints.arm("undo.written", hold)
    undoing = asyncio.create_task(kedge.engine.undos.undo(kedge.workspace_id, session))
    await begun.wait()
    assert not kedge.engine.is_idle
    stopping = asyncio.create_task(kedge.shutdown(grace_s=20))
    await asyncio.sleep(0)  # it stops now
    assert kedge.engine.is_stopping
    go.set()
    assert (await undoing).prompt == "edit"
    await stopping
    failpoints.disarm()
    await kedge.start()
    assert (root / "a").read_text() == "one"
    assert await said(kedge, session) == []


async def test_a_directory_that_a_person_emptied_is_empty_again_after_a_redo(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    (root / "d").mkdir()
    (root / "d/file").write_text("one")
    turn.by_tool("edit", root / "d/file", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    (root / "d/file").unlink()
    now = tree_of(root)
    await kedge.engine.undos.undo(kedge.workspace_id, session, force=True)
    assert (root / "d/file").read_text() == "one"
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert tree_of(root) == now


async def test_a_link_that_took_the_place_of_a_directory_is_in_the_way_and_not_followed(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    (root / "d/deep").mkdir(parents=True)
    for name in ("d/deep/changed", "d/deep/removed", "other"):
        (root / name).write_text("one")
    elsewhere = root.parent / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep/changed").write_text("two")

    def command() -> None:
        for name in ("d/deep/changed", "other"):
            (root / name).write_text("two")
        (root / "d/deep/removed").unlink()

    turn.by_command("work", command)
    session = await kedge.session()
    await do(kedge, session, "work")
    shutil.rmtree(root / "d")
    (root / "d").symlink_to(elsewhere)
    with pytest.raises(FilesConflict) as refused:
        await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert [(file.path, file.obstacle) for file in refused.value.files] == [
        ("d/deep/changed", "in_the_way"),
        ("d/deep/removed", "in_the_way"),
        ("other", None),
    ]
    await kedge.engine.undos.undo(kedge.workspace_id, session, force=True)
    assert (root / "other").read_text() == "one"
    assert tree_of(elsewhere) == {
        "deep": ("directory", 0, b""),
        "deep/changed": ("file", (elsewhere / "deep/changed").stat().st_mode & 0o777, b"two"),
    }


async def test_a_directory_in_the_place_of_a_changed_file_stays_and_the_rest_goes_back(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    for name in ("a", "b"):
        (root / name).write_text("one")
        turn.by_tool("edit", root / name, b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    (root / "a").unlink()
    (root / "a/hollow").mkdir(parents=True)
    await kedge.engine.undos.undo(kedge.workspace_id, session, force=True)
    assert ((root / "a/hollow").is_dir(), (root / "b").read_text()) == (True, "one")

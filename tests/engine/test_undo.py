"""Undo and redo: files and conversation go back together, somebody's work is never lost, and it can be taken back."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from kedge import failpoints
from kedge.engine import keeping
from kedge.engine.changed import session_files
from kedge.engine.turn import TurnContext
from kedge.files.scanning import Difference
from kedge.protocol.errors import Conflict, NotFound, SessionBusy
from kedge.protocol.events import FileChange
from kedge.protocol.files import FilesConflict
from kedge.protocol.messages import text_of
from kedge.protocol.runs import RunEnd
from kedge.protocol.sessions import Session
from kedge.store.files_port import NewWork
from tests.support.file_turn import FileTurn, tree_of
from tests.support.harness import Kedge


@pytest.fixture
def turn(kedge: Kedge) -> FileTurn:
    turn = kedge.turns["prompt"] = FileTurn()
    return turn


@pytest.fixture
def root(kedge: Kedge) -> Path:
    return kedge.engine.root_of(kedge.workspace_id)


async def do(kedge: Kedge, session_id: str, prompt: str) -> RunEnd:
    end = await kedge.end((await kedge.send(session_id, prompt)).run_id)
    assert end.error is None
    return end


async def said(kedge: Kedge, session_id: str) -> list[str]:
    return [text_of(m.parts) for m in await kedge.messages(session_id) if m.role == "user"]


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
    undone = await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert tree_of(root) == before
    assert undone.prompt == "edit"
    assert [(file.path, file.status) for file in undone.files] == [("a.txt", "modified"), ("new/deep/b.txt", "deleted")]
    assert await said(kedge, session) == ["look"]
    assert undone.undone_from is not None
    history = await kedge.store.history(kedge.workspace_id, session)
    assert [text_of(m.parts) for m in history if m.role == "user"] == ["look"], "nor does the model see it"
    redone = await kedge.engine.rewinder.redo(kedge.workspace_id, session)
    assert tree_of(root) == after
    assert await said(kedge, session) == ["look", "edit"]
    assert redone.undone_from is None
    history = await kedge.store.history(kedge.workspace_id, session)
    assert [text_of(m.parts) for m in history if m.role == "user"] == ["look", "edit"]


async def test_whatever_a_command_does_is_seen_and_undone(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "kept").write_bytes(b"as it is")
    (root / "changed").write_bytes(b"before\n")
    (root / "removed").write_bytes(b"\x00binary\xff")
    (root / "moved").write_bytes(b"moved")
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "link").symlink_to("kept")
    (root / "full").mkdir()
    (root / "full/file").write_bytes(b"x")
    (root / "empty/inside").mkdir(parents=True)
    before = tree_of(root)

    def command() -> None:
        (root / "changed").write_bytes(b"after\n")
        (root / "removed").unlink()
        (root / "moved").rename(root / "there")
        (root / "run.sh").chmod(0o755)
        (root / "link").unlink()
        (root / "link").symlink_to("nowhere")
        shutil.rmtree(root / "full")
        (root / "full").write_bytes(b"now a file")
        (root / "empty/inside/file").write_bytes(b"")
        (root / "made/deep").mkdir(parents=True)
        Path(os.fsdecode(os.fsencode(root) + b"/made/caf\xe9")).write_bytes(b"no UTF-8")

    turn.by_command("work", command)
    session = await kedge.session()
    end = await do(kedge, session, "work")
    after = tree_of(root)
    told = [e.payload for e in kedge.watcher.log if isinstance(e.payload, FileChange)]
    assert {(each.path, each.added, each.removed) for each in told} >= {("changed", 1, 1), ("full", 1, 0)}
    assert {each.run_id for each in told} == {end.run_id}
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert tree_of(root) == before
    await kedge.engine.rewinder.redo(kedge.workspace_id, session)
    assert tree_of(root) == after


async def test_a_run_that_only_reads_looks_at_no_tree(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "a").write_text("a")
    await do(kedge, await kedge.session(), "look")
    assert not (kedge.data / "versions.db").exists()


async def test_what_somebody_changed_since_is_not_overwritten(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "a").write_text("one")
    (root / "b").write_text("one")
    turn.by_tool("edit", root / "a", b"two")
    turn.by_tool("edit", root / "b", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    (root / "a").write_text("by a person")
    dry = await kedge.engine.rewinder.undo(kedge.workspace_id, session, dry_run=True)
    assert [(file.path, file.obstacle) for file in dry.files] == [("a", "changed"), ("b", None)]
    assert dry.dry_run
    with pytest.raises(FilesConflict) as refused:
        await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert refused.value.files == dry.files
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("by a person", "two")
    assert await said(kedge, session) == ["edit"]
    await kedge.engine.rewinder.undo(kedge.workspace_id, session, force=True)
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("one", "one")
    await kedge.engine.rewinder.redo(kedge.workspace_id, session)
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
        await kedge.engine.rewinder.undo(kedge.workspace_id, session, first.id)
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert (root / "a").read_text() == "three, by a person"


async def test_what_another_session_changed_since_is_somebodys_too(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    turn.by_tool("mine", root / "a", b"mine")
    turn.by_tool("theirs", root / "a", b"theirs")
    mine, theirs = await kedge.session(), await kedge.session()
    await do(kedge, mine, "mine")
    await do(kedge, theirs, "theirs")
    with pytest.raises(FilesConflict):
        await kedge.engine.rewinder.undo(kedge.workspace_id, mine)
    await kedge.engine.rewinder.undo(kedge.workspace_id, theirs)
    await kedge.engine.rewinder.undo(kedge.workspace_id, mine)
    assert not (root / "a").exists()


async def test_a_redo_does_not_overwrite_what_was_done_after_the_undo(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    turn.by_tool("edit", root / "a", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    (root / "a").write_text("by a person")
    with pytest.raises(FilesConflict):
        await kedge.engine.rewinder.redo(kedge.workspace_id, session)
    assert (root / "a").read_text() == "by a person"
    (root / "a").unlink()
    await kedge.engine.rewinder.redo(kedge.workspace_id, session)
    assert (root / "a").read_text() == "two"


async def test_a_new_prompt_drops_what_was_undone(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    turn.by_tool("edit", root / "a", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    await do(kedge, session, "another")
    assert (await kedge.store.session(kedge.workspace_id, session)).undone_from is None
    with pytest.raises(Conflict) as refused:
        await kedge.engine.rewinder.redo(kedge.workspace_id, session)
    assert refused.value.code == "nothing_to_redo"
    assert await said(kedge, session) == ["another"]


async def test_undos_stack_and_are_redone_in_turn(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    for name in ("one", "two", "three"):
        turn.by_tool(name, root / "a", name.encode())
    session = await kedge.session()
    for name in ("one", "two", "three"):
        await do(kedge, session, name)
    for expected in ("two", "one"):
        await kedge.engine.rewinder.undo(kedge.workspace_id, session)
        assert (root / "a").read_text() == expected
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert not (root / "a").exists()
    with pytest.raises(Conflict) as nothing:
        await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert nothing.value.code == "nothing_to_undo"
    for expected in ("one", "two", "three"):
        await kedge.engine.rewinder.redo(kedge.workspace_id, session)
        assert (root / "a").read_text() == expected
    assert await said(kedge, session) == ["one", "two", "three"]


async def test_a_busy_session_is_not_undone(kedge: Kedge) -> None:
    session = await kedge.session()
    receipt = await kedge.send(session, "wait busy")
    await kedge.reached("busy")
    with pytest.raises(SessionBusy):
        await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    await kedge.cancel(session)
    await kedge.end(receipt.run_id)


async def test_an_unknown_message_is_said_to_be_unknown(kedge: Kedge, turn: FileTurn) -> None:
    session = await kedge.session()
    await do(kedge, session, "hello")
    with pytest.raises(NotFound):
        await kedge.engine.rewinder.undo(kedge.workspace_id, session, "no-such-message")


async def test_what_is_too_large_to_keep_is_said_and_left_alone(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.files.states.MAX_KEPT_BYTES", 100)
    (root / "small").write_bytes(b"small")
    (root / "large").write_bytes(b"x" * 101)

    def command() -> None:
        (root / "small").write_bytes(b"changed")
        (root / "large").write_bytes(b"y" * 102)

    turn.by_command("work", command)
    session = await kedge.session()
    await do(kedge, session, "work")
    with pytest.raises(FilesConflict) as refused:
        await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert [(file.path, file.obstacle) for file in refused.value.files] == [("large", "too_large"), ("small", None)]
    await kedge.engine.rewinder.undo(kedge.workspace_id, session, force=True)
    assert (root / "small").read_bytes() == b"small"
    assert (root / "large").read_bytes() == b"y" * 102


async def test_a_pipe_is_never_opened(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "file").write_text("file")

    def command() -> None:
        (root / "file").unlink()
        os.mkfifo(root / "file")

    turn.by_command("work", command)
    session = await kedge.session()
    await do(kedge, session, "work")
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert (root / "file").read_text() == "file"
    assert tree_of(root)["pipe"][0] == "special"


async def test_a_version_that_went_is_said_to_be_gone(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "a").write_text("one")
    turn.by_tool("edit", root / "a", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    with kedge.engine.keeper.versions.blobs.transaction() as db:
        db.execute("DELETE FROM blobs")
    dry = await kedge.engine.rewinder.undo(kedge.workspace_id, session, dry_run=True)
    assert [(file.path, file.obstacle) for file in dry.files] == [("a", "not_kept")]


async def test_a_persons_file_in_the_place_of_a_directory_stays(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d/file").write_text("one")
    turn.by_command("work", lambda: shutil.rmtree(root / "d"))
    session = await kedge.session()
    await do(kedge, session, "work")
    (root / "d").write_text("a person's")
    dry = await kedge.engine.rewinder.undo(kedge.workspace_id, session, dry_run=True)
    assert [(file.path, file.obstacle) for file in dry.files] == [("d/file", "in_the_way")]


async def test_what_git_ignores_is_left_alone_and_its_index_is_not_touched(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words]
        return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    (root / ".gitignore").write_text("ignored/\n")
    (root / "tracked").write_text("tracked\n")
    (root / "ignored").mkdir()
    (root / "ignored/cache").write_text("one")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    (root / "stashed").write_text("stash me")
    git("stash", "-u")
    (root / "staged").write_text("staged\n")
    git("add", "staged")
    (root / "tracked").write_text("changed by hand\n")
    facts = git("status", "--porcelain"), git("stash", "list"), git("log", "--oneline")
    index = (root / ".git/index").read_bytes()
    before = tree_of(root)

    def command() -> None:
        (root / "tracked").write_text("changed by a command\n")
        (root / "staged").unlink()
        (root / "untracked").write_text("new")
        (root / "ignored/cache").write_text("two")

    turn.by_command("work", command)
    session = await kedge.session()
    await do(kedge, session, "work")
    assert (root / ".git/index").read_bytes() == index
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert (root / ".git/index").read_bytes() == index
    assert tree_of(root) == {**before, "ignored/cache": ("file", 0o644, b"two")}
    assert (git("status", "--porcelain"), git("stash", "list"), git("log", "--oneline")) == facts


async def test_a_file_that_only_comes_into_sight_is_not_taken_for_a_new_one(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that stops ignoring a directory did not make what is in it."""
    monkeypatch.setattr("kedge.files.scanning.TICK_NS", 0)
    (root / ".gitignore").write_text("secret\n")
    (root / "secret").write_text("a person's")
    turn.by_command("work", lambda: (root / ".gitignore").write_text(""))
    session = await kedge.session()
    await do(kedge, session, "work")
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert (root / "secret").read_text() == "a person's"
    assert (root / ".gitignore").read_text() == "secret\n"


async def test_a_tree_that_is_too_large_is_said_to_be_unwatched(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.files.tracked.MAX_FILES", 1)
    for name in ("a", "b", "c"):
        (root / name).write_text("one")
    turn.by_command("work", lambda: (root / "a").write_text("two"))
    turn.by_tool("edit", root / "b", b"two")
    session = await kedge.session()
    await do(kedge, session, "work")
    await do(kedge, session, "edit")
    notices = [e.payload for e in kedge.watcher.log if e.type == "agent_event"]
    assert len(notices) == 1
    first = (await kedge.messages(session))[0]
    undone = await kedge.engine.rewinder.undo(kedge.workspace_id, session, first.id)
    assert len(undone.notes) == 1
    assert "over 1 files" in undone.notes[0]
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("two", "one")


async def test_after_a_crash_in_a_command_what_it_did_is_still_undone(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "a").write_text("one")
    turn.by_command("first", lambda: None)
    session = await kedge.session()
    await do(kedge, session, "first")
    run_id = (await kedge.send(session, "work")).run_id
    await kedge.end(run_id)
    work = await kedge.store.files.begin_work(kedge.workspace_id, run_id, NewWork())
    assert work
    (root / "a").write_text("two")  # and there it died
    await kedge.crash_and_start()
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert (root / "a").read_text() == "one"


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
        found = await session_files(
            kedge.store, kedge.engine.keeper.versions, root_bytes, kedge.workspace_id, session, run_id, diffs=True
        )
        assert [(file.path, file.status, file.added) for file in found.files] == [("by-sub-agent", "created", 1)]
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert not (root / "by-sub-agent").exists()


async def test_what_a_cancelled_command_did_is_told_before_the_end_and_undone(kedge: Kedge, root: Path) -> None:
    (root / "a").write_text("one")
    at_work = asyncio.Event()

    async def working(ctx: TurnContext) -> None:
        async with ctx.watching_files(os.environ, 2**30):
            (root / "a").write_text("two")
            at_work.set()
            await asyncio.Event().wait()

    kedge.turns["prompt"] = working
    session = await kedge.session()
    receipt = await kedge.send(session, "work")
    await at_work.wait()
    await kedge.cancel(session)
    assert (await kedge.end(receipt.run_id)).cancelled
    await kedge.engine.keeper.settle(kedge.workspace_id)
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert (root / "a").read_text() == "one"


async def test_what_a_person_does_between_two_runs_is_not_theirs(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "mine").write_text("one")
    turn.by_command("first", lambda: (root / "a").write_text("by the run"))
    turn.by_command("second", lambda: (root / "b").write_text("by the run"))
    session = await kedge.session()
    await do(kedge, session, "first")
    (root / "mine").write_text("two")
    await do(kedge, session, "second")
    first = (await kedge.messages(session))[0]
    undone = await kedge.engine.rewinder.undo(kedge.workspace_id, session, first.id)
    assert [file.path for file in undone.files] == ["a", "b"]
    assert (root / "mine").read_text() == "two"


async def test_over_the_bound_the_oldest_versions_go_and_an_undo_says_so(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    keeper = kedge.engine.keeper
    for name in ("old", "new"):
        (root / name).write_bytes(os.urandom(400_000))
        turn.by_tool(name, root / name, b"changed")
    sessions = {name: await kedge.session() for name in ("old", "new")}
    for name, session in sessions.items():
        await do(kedge, session, name)
    keeper.sweeper.max_bytes = 600_000
    await keeper.sweeper.sweep()
    old = await kedge.engine.rewinder.undo(kedge.workspace_id, sessions["old"], dry_run=True)
    assert [(file.path, file.obstacle) for file in old.files] == [("old", "not_kept")]
    new = await kedge.engine.rewinder.undo(kedge.workspace_id, sessions["new"])
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
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
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
    undoing = asyncio.create_task(kedge.engine.rewinder.undo(kedge.workspace_id, session))
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
    await kedge.engine.rewinder.undo(kedge.workspace_id, session, force=True)
    assert (root / "d/file").read_text() == "one"
    await kedge.engine.rewinder.redo(kedge.workspace_id, session)
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
        await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert [(file.path, file.obstacle) for file in refused.value.files] == [
        ("d/deep/changed", "in_the_way"),
        ("d/deep/removed", "in_the_way"),
        ("other", None),
    ]
    await kedge.engine.rewinder.undo(kedge.workspace_id, session, force=True)
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
    await kedge.engine.rewinder.undo(kedge.workspace_id, session, force=True)
    assert ((root / "a/hollow").is_dir(), (root / "b").read_text()) == (True, "one")


class SlowLooks:
    """Looks at a tree that wait, each for `go`, as on a file system that hangs."""

    def __init__(self, kedge: Kedge, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.begun = asyncio.Event()
        self._real = kedge.engine.keeper.versions.trees.look
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(kedge.engine.keeper.versions.trees, "look", self.look)

    def look(self, root: bytes, env: Mapping[str, str], max_bytes: int) -> list[Difference]:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.go.wait(30)
        return self._real(root, env, max_bytes)


async def test_what_a_command_did_is_undone_also_if_its_run_is_cancelled_during_the_look(
    kedge: Kedge, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("one")
    slowed: asyncio.Future[SlowLooks] = asyncio.get_running_loop().create_future()

    async def work(ctx: TurnContext) -> None:
        async with ctx.watching_files(os.environ, 2**30):
            (root / "a").write_text("two")
            slowed.set_result(SlowLooks(kedge, monkeypatch))

    kedge.turns["prompt"] = work
    monkeypatch.setattr(keeping, "RELEASE_S", 0.0)
    session = await kedge.session()
    run = await kedge.send(session, "work")
    looks = await slowed
    await looks.begun.wait()
    await kedge.engine.cancel_session(kedge.workspace_id, session)
    assert (await kedge.end(run.run_id)).cancelled, "the end waits for no look"
    looks.go.set()
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    assert (root / "a").read_text() == "one"


async def test_a_tree_that_hangs_is_given_up_and_holds_up_nobody(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "LOOK_S", 0.05)
    slow = SlowLooks(kedge, monkeypatch)
    turn.by_command("work", lambda: None)
    turn.by_tool("edit", root / "a", b"a")
    session = await kedge.session()
    for _ in range(20):  # more than the threads that everybody shares
        await do(kedge, session, "work")
    await do(kedge, session, "edit")
    told = await session_files(
        kedge.store, kedge.engine.keeper.versions, os.fsencode(root), kedge.workspace_id, session, None, diffs=False
    )
    assert [file.path for file in told.files] == ["a"]
    assert "takes over" in told.notes[0]
    slow.go.set()


async def test_what_an_undo_restores_is_not_the_work_of_a_command_beside_it(kedge: Kedge, root: Path) -> None:
    (root / "a").write_text("one")
    (root / "b").write_text("one")
    done, go = asyncio.Event(), asyncio.Event()

    async def work(ctx: TurnContext) -> None:
        async with ctx.watching_files(os.environ, 2**30):
            if ctx.run.prompt == "long":
                done.set()
                await go.wait()
            else:
                (root / "a").write_text("two")
                (root / "b").unlink()

    kedge.turns["prompt"] = work
    session, other = await kedge.session(), await kedge.session()
    await do(kedge, session, "work")
    long = await kedge.send(other, "long")
    await done.wait()
    await kedge.engine.rewinder.undo(kedge.workspace_id, session)
    go.set()
    await kedge.end(long.run_id)
    changed = await kedge.store.files.changes(kedge.workspace_id, other)
    assert [each.path for each in changed] == []


async def test_a_session_that_is_deleted_during_an_undo_is_said_to_be_gone(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn.by_tool("edit", root / "a", b"a")
    session = await kedge.session()
    await do(kedge, session, "edit")
    real = kedge.store.files.finish_undo

    async def finish(undo_id: int, plan: bytes) -> Session:
        await kedge.engine.delete_session(kedge.workspace_id, session)
        return await real(undo_id, plan)

    monkeypatch.setattr(kedge.store.files, "finish_undo", finish)
    with pytest.raises(NotFound):
        await kedge.engine.rewinder.undo(kedge.workspace_id, session)

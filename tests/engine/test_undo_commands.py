"""What commands do to files is seen, kept and undone, and nothing else is taken for theirs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from kedge.engine.files import change_log, recorder
from kedge.engine.files.changed_files import list_changed_files
from kedge.engine.turn import TurnContext
from kedge.files.scan import Difference
from kedge.protocol.events import FileChange
from kedge.protocol.files import FilesConflict
from kedge.store.port import NewWork
from tests.engine.undo_helpers import do
from tests.support.file_turn import FileTurn, tree_of
from tests.support.harness import Kedge


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
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert tree_of(root) == before
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert tree_of(root) == after


async def test_a_run_that_only_reads_looks_at_no_tree(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    (root / "a").write_text("a")
    await do(kedge, await kedge.session(), "look")
    assert not (kedge.data / "versions.db").exists()


async def test_a_pipe_is_never_opened(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "file").write_text("file")

    def command() -> None:
        (root / "file").unlink()
        os.mkfifo(root / "file")

    turn.by_command("work", command)
    session = await kedge.session()
    await do(kedge, session, "work")
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert (root / "file").read_text() == "file"
    assert tree_of(root)["pipe"][0] == "special"


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
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert (root / ".git/index").read_bytes() == index
    assert tree_of(root) == {**before, "ignored/cache": ("file", 0o644, b"two")}
    assert (git("status", "--porcelain"), git("stash", "list"), git("log", "--oneline")) == facts


async def test_a_file_that_only_comes_into_sight_is_not_taken_for_a_new_one(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that stops ignoring a directory did not make what is in it."""
    monkeypatch.setattr("kedge.files.scan.TICK_NS", 0)
    (root / ".gitignore").write_text("secret\n")
    (root / "secret").write_text("a person's")
    turn.by_command("work", lambda: (root / ".gitignore").write_text(""))
    session = await kedge.session()
    await do(kedge, session, "work")
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert (root / "secret").read_text() == "a person's"
    assert (root / ".gitignore").read_text() == "secret\n"


async def test_a_tree_that_is_too_large_is_said_to_be_unwatched(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.files.listing.MAX_FILES", 1)
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
    undone = await kedge.engine.undos.undo(kedge.workspace_id, session, first.id)
    assert len(undone.notes) == 1
    assert "over 1 files" in undone.notes[0]
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("two", "one")


async def test_what_is_too_large_to_keep_is_said_and_left_alone(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.files.states.MAX_STORED_BYTES", 100)
    (root / "small").write_bytes(b"small")
    (root / "large").write_bytes(b"x" * 101)

    def command() -> None:
        (root / "small").write_bytes(b"changed")
        (root / "large").write_bytes(b"y" * 102)

    turn.by_command("work", command)
    session = await kedge.session()
    await do(kedge, session, "work")
    with pytest.raises(FilesConflict) as refused:
        await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert [(file.path, file.obstacle) for file in refused.value.files] == [("large", "too_large"), ("small", None)]
    await kedge.engine.undos.undo(kedge.workspace_id, session, force=True)
    assert (root / "small").read_bytes() == b"small"
    assert (root / "large").read_bytes() == b"y" * 102


async def test_after_a_crash_in_a_command_what_changed_is_named_and_undone_if_asked_for(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    """Until the next server looks, the user may have changed files, too."""
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
    undone = await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert [(file.path, file.obstacle) for file in undone.files] == [("a", "interrupted")]
    assert (root / "a").read_text() == "two"
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    await kedge.engine.undos.undo(kedge.workspace_id, session, include_unsure=True)
    assert (root / "a").read_text() == "one"


async def test_what_a_cancelled_command_did_is_told_before_the_end_and_undone(kedge: Kedge, root: Path) -> None:
    (root / "a").write_text("one")
    at_work = asyncio.Event()

    async def working(ctx: TurnContext) -> None:
        async with ctx.watch_files(os.environ, 2**30):
            (root / "a").write_text("two")
            at_work.set()
            await asyncio.Event().wait()

    kedge.turns["prompt"] = working
    session = await kedge.session()
    receipt = await kedge.send(session, "work")
    await at_work.wait()
    await kedge.cancel(session)
    assert (await kedge.end(receipt.run_id)).cancelled
    await kedge.engine.file_recorder.settle(kedge.workspace_id)
    await kedge.engine.undos.undo(kedge.workspace_id, session)
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
    undone = await kedge.engine.undos.undo(kedge.workspace_id, session, first.id)
    assert [file.path for file in undone.files] == ["a", "b"]
    assert (root / "mine").read_text() == "two"


class SlowLooks:
    """Looks at a tree that wait, each for `go`, as on a file system that hangs."""

    def __init__(self, kedge: Kedge, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.begun = asyncio.Event()
        self._real = kedge.engine.file_recorder.versions.trees.scan
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(kedge.engine.file_recorder.versions.trees, "scan", self.scan)

    def scan(self, root: bytes, env: Mapping[str, str], max_bytes: int) -> list[Difference]:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.go.wait(30)
        return self._real(root, env, max_bytes)


async def test_what_a_command_did_is_undone_also_if_its_run_is_cancelled_during_the_look(
    kedge: Kedge, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("one")
    slowed: asyncio.Future[SlowLooks] = asyncio.get_running_loop().create_future()

    async def work(ctx: TurnContext) -> None:
        async with ctx.watch_files(os.environ, 2**30):
            (root / "a").write_text("two")
            slowed.set_result(SlowLooks(kedge, monkeypatch))

    kedge.turns["prompt"] = work
    monkeypatch.setattr(recorder, "RELEASE_S", 0.0)
    session = await kedge.session()
    run = await kedge.send(session, "work")
    looks = await slowed
    await looks.begun.wait()
    await kedge.engine.store.cancel_session(kedge.workspace_id, session)
    assert (await kedge.end(run.run_id)).cancelled, "the end waits for no look"
    looks.go.set()
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert (root / "a").read_text() == "one"


async def test_a_tree_that_hangs_is_given_up_and_holds_up_nobody(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "SCAN_S", 0.05)
    slow = SlowLooks(kedge, monkeypatch)
    turn.by_command("work", lambda: None)
    turn.by_tool("edit", root / "a", b"a")
    session = await kedge.session()
    for _ in range(20):  # more than the threads that everybody shares
        await do(kedge, session, "work")
    await do(kedge, session, "edit")
    told = await list_changed_files(
        kedge.store,
        kedge.engine.file_recorder.versions,
        os.fsencode(root),
        kedge.workspace_id,
        session,
        None,
        diffs=False,
    )
    assert [file.path for file in told.files] == ["a"]
    assert "takes over" in told.notes[0]
    slow.go.set()


async def test_what_an_undo_restores_is_not_the_work_of_a_command_beside_it(kedge: Kedge, root: Path) -> None:
    (root / "a").write_text("one")
    (root / "b").write_text("one")
    done, go = asyncio.Event(), asyncio.Event()

    async def work(ctx: TurnContext) -> None:
        async with ctx.watch_files(os.environ, 2**30):
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
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    go.set()
    await kedge.end(long.run_id)
    changed = await kedge.store.files.changes(kedge.workspace_id, other)
    assert [each.path for each in changed] == []

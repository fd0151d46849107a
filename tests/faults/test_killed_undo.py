"""A real process is killed at every step of an undo: the next server finds all of it done, or nothing."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from kedge.protocol.messages import text_of
from tests.faults.nursery import nursery
from tests.faults.processes import environment
from tests.faults.undoing import make_tree, work_of
from tests.support.file_turn import FileTurn, Tree, tree_of
from tests.support.harness import Kedge
from tests.support.stores import STORES

BEFORE_THE_INTENT = ("begin_undo.begin", "begin_undo.done")
IN_THE_MIDDLE = (
    *("begin_undo.committed", "begin_undo.published", "undo.begun"),
    *("undo.removed@1", "undo.removed@2", "undo.written@1", "undo.written@3", "undo.path@1", "undo.path@5"),
    *("undo.restored", "finish_undo.begin", "finish_undo.done", "finish_undo.committed", "finish_undo.published"),
)
OF_A_REDO = ("begin_redo.done", "begin_redo.committed", "undo.path@4", "finish_undo.done", "finish_undo.committed")
OF_A_FORK = ("undo.path@2", "finish_undo.done", "finish_undo.committed")
OF_WORK = (
    *("begin_work.committed@1", "command.ended", "record_changes.done@1", "record_changes.committed@1"),
    *("begin_work.committed@2", "file.written", "record_changes.done@2"),
)


class Place(NamedTuple):
    """A session that said `look` and `work`, on disk; `before` and `after` are its trees around `work`."""

    root: Path
    session_id: str
    before: Tree
    after: Tree


@asynccontextmanager
async def server(root: Path) -> AsyncGenerator[Kedge]:
    async with Kedge(STORES[0], root) as kedge:
        kedge.turns["prompt"] = FileTurn()  # a run that is resumed has nothing more to do
        yield kedge


async def made(root: Path, then: Callable[[Kedge, str], Awaitable[object]] | None = None) -> Place:
    workspace = root / "workspace"
    make_tree(workspace)
    async with server(root) as kedge:
        session_id = await kedge.session()
        await kedge.end((await kedge.send(session_id, "look")).run_id)
        before = tree_of(workspace)
        kedge.turns["prompt"] = work_of(workspace)
        if then is not None:
            await kedge.end((await kedge.send(session_id, "work")).run_id)
        after = tree_of(workspace)
        if then is not None:
            await then(kedge, session_id)
    return Place(root, session_id, before, after)


def killed(what: str, place: Place, at: str) -> None:
    name, _, hit = at.partition("@")
    env = environment({"KEDGE_FAILPOINT": f"{name}=kill@{hit or 1}"})
    errors = place.root / "errors"
    args = (what, str(place.root), place.session_id)
    code = nursery().run("tests.faults.undoing", *args, env=env, out=place.root / "out", errors=errors)
    assert code == -signal.SIGKILL, f"never came to {at}: {errors.read_text()}"


async def nothing(_kedge: Kedge, _session_id: str) -> None:
    pass


async def undone(kedge: Kedge, session_id: str) -> None:
    await kedge.engine.undos.undo(kedge.workspace_id, session_id)


async def said(kedge: Kedge, session_id: str) -> list[str]:
    return [text_of(m.parts) for m in await kedge.messages(session_id) if m.role == "user"]


@pytest.mark.parametrize("at", [*BEFORE_THE_INTENT, *IN_THE_MIDDLE])
async def test_an_undo_is_done_whole_or_not_at_all(tmp_path: Path, at: str) -> None:
    place = await made(tmp_path, nothing)
    killed("undo", place, at)
    async with server(tmp_path) as kedge:
        is_done = at not in BEFORE_THE_INTENT
        assert tree_of(tmp_path / "workspace") == (place.before if is_done else place.after)
        assert await said(kedge, place.session_id) == (["look"] if is_done else ["look", "work"])
        if is_done:
            await kedge.engine.undos.redo(kedge.workspace_id, place.session_id)
        assert tree_of(tmp_path / "workspace") == place.after
        assert await said(kedge, place.session_id) == ["look", "work"]


@pytest.mark.parametrize("at", OF_A_REDO)
async def test_a_redo_is_done_whole_or_not_at_all(tmp_path: Path, at: str) -> None:
    place = await made(tmp_path, undone)
    killed("redo", place, at)
    async with server(tmp_path) as kedge:
        is_done = at != "begin_redo.done"
        assert tree_of(tmp_path / "workspace") == (place.after if is_done else place.before)
        assert await said(kedge, place.session_id) == (["look", "work"] if is_done else ["look"])


@pytest.mark.parametrize("at", OF_A_FORK)
async def test_a_fork_with_its_files_is_made_whole(tmp_path: Path, at: str) -> None:
    place = await made(tmp_path, nothing)
    killed("fork", place, at)
    async with server(tmp_path) as kedge:
        assert tree_of(tmp_path / "workspace") == place.before
        sessions = {session.id for session in await kedge.store.sessions(kedge.workspace_id)}
        (fork,) = sessions - {place.session_id}
        assert await said(kedge, fork) == ["look"]
        assert await said(kedge, place.session_id) == ["look", "work"]


@pytest.mark.parametrize("at", OF_WORK)
async def test_whatever_was_changed_before_a_crash_is_undone(tmp_path: Path, at: str) -> None:
    place = await made(tmp_path)
    killed("work", place, at)
    async with server(tmp_path) as kedge:
        await kedge.end("the-work")
        dry = await kedge.engine.undos.undo(kedge.workspace_id, place.session_id, dry_run=True)
        assert {step.obstacle for step in dry.files} <= {None, "interrupted"}, "each is undone or named"
        await kedge.engine.undos.undo(kedge.workspace_id, place.session_id, include_unsure=True)
        assert tree_of(tmp_path / "workspace") == place.before


async def test_what_somebody_did_between_a_crash_and_the_next_server_is_left_and_named(tmp_path: Path) -> None:
    place = await made(tmp_path)
    killed("work", place, "command.ended")
    (tmp_path / "workspace/mine").write_bytes(b"by a person")
    async with server(tmp_path) as kedge:
        await kedge.end("the-work")
        undone = await kedge.engine.undos.undo(kedge.workspace_id, place.session_id)
        assert ("mine", "interrupted") in [(step.path, step.obstacle) for step in undone.files]
        assert (tmp_path / "workspace/mine").read_bytes() == b"by a person"


async def test_a_file_that_somebody_changed_before_the_next_server_came_is_theirs(tmp_path: Path) -> None:
    place = await made(tmp_path, nothing)
    killed("undo", place, "undo.begun")
    (tmp_path / "workspace/changed").write_bytes(b"by a person")
    async with server(tmp_path):
        tree = tree_of(tmp_path / "workspace")
        assert tree.pop("changed")[2] == b"by a person"
        assert tree == {name: each for name, each in place.before.items() if name != "changed"}


async def test_an_undo_that_the_disk_refuses_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = await made(tmp_path, nothing)
    real, count = os.replace, 0

    def replace(source: bytes, target: bytes, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise OSError(28, "No space left on device")
        real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    async with server(tmp_path) as kedge:
        with monkeypatch.context() as patch:
            patch.setattr("kedge.files.restore.os.replace", replace)
            with pytest.raises(Exception, match="No space left"):
                await kedge.engine.undos.undo(kedge.workspace_id, place.session_id)
        assert tree_of(tmp_path / "workspace") == place.after
        assert await said(kedge, place.session_id) == ["look", "work"]
        await undone(kedge, place.session_id)
        assert tree_of(tmp_path / "workspace") == place.before
    shutil.rmtree(tmp_path / "workspace")

"""Random histories of edits: undoing all of them gives the first tree back, byte for byte; redoing them, the last."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.protocol.files import FilesConflict
from tests.support.file_turn import FileTurn, Tree, tree_of
from tests.support.harness import Kedge
from tests.support.stores import STORES

pytestmark = pytest.mark.slow

PATHS = ("a", "b", "d/a", "d/b", "d/e/a", "f/a", "f", "g/h")
CONTENTS = (b"", b"one\n", b"two\n", b"three\r\n\xff\x00")


class Deed(NamedTuple):
    kind: str
    path: str
    content: bytes = b""
    other: str = ""


class Act(NamedTuple):
    """A run with its deeds, or an undo, or a redo."""

    kind: str
    deeds: tuple[Deed, ...] = ()


paths = st.sampled_from(PATHS)
deeds = st.builds(
    Deed,
    st.sampled_from(("write", "write", "write", "delete", "chmod", "link", "directory", "rename", "rmtree")),
    paths,
    st.sampled_from(CONTENTS),
    paths,
)
runs = st.builds(Act, st.just("run"), st.lists(deeds, min_size=1, max_size=4).map(tuple))
acts = st.lists(st.one_of(runs, runs, st.sampled_from([Act("undo"), Act("redo")])), min_size=1, max_size=7)
RANDOM = settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def do(root: Path, deed: Deed) -> None:
    """As a command would; what is not possible there is not done."""
    path, other = root / deed.path, root / deed.other
    with contextlib.suppress(OSError):
        match deed.kind:
            case "write":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(deed.content)
            case "delete":
                path.unlink()
            case "chmod":
                path.chmod(0o755 if path.stat().st_mode & 0o111 == 0 else 0o644)
            case "link":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(deed.other)
            case "directory":
                path.mkdir(parents=True)
            case "rename":
                other.parent.mkdir(parents=True, exist_ok=True)
                path.rename(other)
            case _:
                shutil.rmtree(path)


def is_for_a_tool(root: Path, deed: Deed) -> bool:
    path = root / deed.path
    if deed.kind != "write" or path.is_dir() or path.is_symlink() or Path(os.path.realpath(path)) != path:
        return False
    return all(parent.is_dir() or not os.path.lexists(parent) for parent in path.parents)


class World:
    """A session whose prompts are numbers, in a directory of its own."""

    def __init__(self, kedge: Kedge, root: Path) -> None:
        self.kedge = kedge
        self.root = root
        self.turn = kedge.turns["prompt"] = FileTurn()
        self.session_id = ""
        self._count = 0

    async def run(self, *deeds: Deed) -> None:
        """One deed is a tool's where that is possible; several are a command's each, in one run."""
        self._count += 1
        prompt = str(self._count)
        for deed in deeds:
            if len(deeds) == 1 and is_for_a_tool(self.root, deed):
                self.turn.by_tool(prompt, self.root / deed.path, deed.content)
            else:
                self.turn.by_command(prompt, lambda deed=deed: do(self.root, deed))
        end = await self.kedge.end((await self.kedge.send(self.session_id, prompt)).run_id)
        assert end.error is None, end.error

    async def undo(self, *, force: bool = False) -> None:
        await self.kedge.engine.undos.undo(self.kedge.workspace_id, self.session_id, force=force)

    async def redo(self) -> None:
        await self.kedge.engine.undos.redo(self.kedge.workspace_id, self.session_id)


@contextlib.asynccontextmanager
async def world(*, is_git: bool, first: tuple[Deed, ...]):
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory).resolve() / "workspace"
        root.mkdir()
        for deed in first:
            do(root, deed)
        if is_git:
            await asyncio.to_thread(subprocess.run, ["git", "init", "-q"], cwd=root, check=True)
        async with Kedge(STORES[0], root.parent) as kedge:
            made = World(kedge, root)
            made.session_id = await kedge.session()
            yield made


@RANDOM
@given(st.lists(deeds, max_size=6).map(tuple), acts, st.booleans())
def test_undo_and_redo_give_every_tree_back(first: tuple[Deed, ...], history: list[Act], is_git: bool) -> None:
    async def play() -> None:
        async with world(is_git=is_git, first=first) as here:
            done: list[Tree] = []  # the tree before each prompt that is not undone
            undone: list[Tree] = []
            for act in history:
                if act.kind == "run":
                    done.append(tree_of(here.root))
                    await here.run(*act.deeds)
                    undone.clear()
                elif act.kind == "undo" and done:
                    undone.append(tree_of(here.root))
                    await here.undo()
                    assert tree_of(here.root) == done.pop()
                elif act.kind == "redo" and undone:
                    done.append(tree_of(here.root))
                    await here.redo()
                    assert tree_of(here.root) == undone.pop()
            last = tree_of(here.root)
            count = len(done)
            while done:
                await here.undo()
                assert tree_of(here.root) == done.pop()
            for _ in range(count):
                await here.redo()
            assert tree_of(here.root) == last

    asyncio.run(play())


@RANDOM
@given(st.lists(deeds, max_size=6).map(tuple), runs, st.lists(deeds, min_size=1, max_size=4), st.booleans())
def test_what_a_person_did_since_is_refused_or_comes_back(
    first: tuple[Deed, ...], work: Act, since: list[Deed], is_git: bool
) -> None:
    async def play() -> None:
        async with world(is_git=is_git, first=first) as here:
            await here.run(*work.deeds)
            for deed in since:
                do(here.root, deed)
            now = tree_of(here.root)
            try:
                await here.undo()
            except FilesConflict:
                assert tree_of(here.root) == now
                await here.undo(force=True)
            await here.redo()
            assert tree_of(here.root) == now

    asyncio.run(play())

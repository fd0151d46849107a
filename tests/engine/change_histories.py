"""A tree that a user, an editor, jobs, several sessions and git change at random, and what may be undone of it.

Every write has a text of its own, so that one can tell from the tree whose bytes are there. The user works only while
no command of the agent runs; while one runs, nobody can tell the two apart.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from kedge.engine.turn import TurnContext
from kedge.protocol.errors import Conflict
from kedge.protocol.files import FilesConflict, Restore, Rewound
from kedge.store.port import ProcessRecord
from tests.support.file_turn import MAX_BYTES, Tree, tree_of
from tests.support.harness import Kedge

PATHS = ("a", "b", "c", "d/a", "d/b", "e/new", "new", "f", "g/a", "g/b", "h", "i")
UNSURE = ("background_job", "interrupted")
_TOKEN = re.compile(rb"\w+-\d+")

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "gc.auto=0")


class Touch(NamedTuple):
    """A file was changed by the user, a job, a run or an undo (of a session)."""

    author: str
    path: str
    is_certain: bool  # of a run: one can know that it was this one
    may_be_a_jobs: bool  # a job lived, or the server was down


@dataclass
class Done:
    """A run: its session, its prompt's place in the log of touches, and the tree before it."""

    name: str
    session_id: str
    began: int
    before: Tree
    is_shown: bool = True  # in the conversation
    is_reverted: bool = False  # its changes are undone


@dataclass
class Undone:
    runs: list[Done]
    before: Tree
    after: Tree
    at: int  # in the log of touches, after it
    kind: Restore
    flags: list[tuple[bool, bool]]  # of the runs, before it: whether they were shown, and reverted


@dataclass
class World:
    kedge: Kedge
    root: Path
    rng: Random
    sessions: list[str] = field(default_factory=list[str])
    runs: dict[str, list[Done]] = field(default_factory=dict[str, list[Done]])
    undone: dict[str, list[Undone]] = field(default_factory=dict[str, list[Undone]])
    touches: list[Touch] = field(default_factory=list[Touch])
    story: list[str] = field(default_factory=list[str])
    windows: dict[str, str] = field(default_factory=dict[str, str])  # runs whose command is at work, with their session
    held: dict[str, tuple[asyncio.Event, str]] = field(default_factory=dict[str, tuple[asyncio.Event, str]])
    _scripts: dict[str, Callable[[TurnContext], Any]] = field(default_factory=dict[str, Any])
    _jobs: list[ProcessRecord] = field(default_factory=list[ProcessRecord])
    _had_job: bool = False
    _count: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    is_down: bool = False

    async def begin(self) -> None:
        for name in ("a", "b", "d/a", "g/a", "h"):
            path = self.root / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(self._token("commit"))
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
            await asyncio.to_thread(subprocess.run, [*GIT, *words], cwd=self.root, check=True)
        self.kedge.turns["prompt"] = self._turn
        self.sessions = [await self.kedge.session() for _ in range(self.rng.randint(1, 3))]

    # what they do to files

    def user(self) -> None:
        """In place, by renaming as editors do, or with git."""
        deed = self.rng.choice(
            (self._write, self._write, self._append, self._save, self._remove, self._move, self._git)
        )
        self._change("user", deed)

    def job(self) -> None:
        if self._jobs:
            self._change("job", self.rng.choice((self._write, self._append, self._save)))

    def agent(self, author: str) -> None:
        deeds = (self._write, self._write, self._append, self._append, self._save, self._remove, self._move)
        self._change(author, self.rng.choice(deeds))

    def _change(self, author: str, deed: Callable[[str], str]) -> None:
        before = self.files()
        what = deed(author.split(":")[0])
        after = self.files()
        self.story.append(f"{len(self.touches):3} {author}: {what}")
        self._touched(author, before, after)

    def _touched(self, author: str, before: Tree, after: Tree) -> None:
        run = author.removeprefix("run:")
        sessions = set(self.windows.values())
        is_certain = not author.startswith("run:") or run not in self.windows or len(sessions) == 1
        for path in sorted(before.keys() | after.keys()):
            if before.get(path) != after.get(path):
                self.touches.append(Touch(author, path, is_certain, self.is_doubtful))

    @property
    def is_doubtful(self) -> bool:
        """Whether a job lived since the last look at the tree, or the server is down."""
        return bool(self._jobs) or self._had_job or self.is_down

    def _token(self, author: str) -> bytes:
        self._count += 1
        return f"{author}-{self._count}\n".encode()

    def _path(self) -> Path:
        path = self.root / self.rng.choice(PATHS)
        path.parent.mkdir(exist_ok=True)
        return path

    def _write(self, author: str) -> str:
        path, token = self._path(), self._token(author)
        path.write_bytes(token)
        return f"writes {path.name}: {token}"

    def _append(self, author: str) -> str:
        path, token = self._path(), self._token(author)
        with path.open("ab") as file:
            file.write(token)
        return f"appends to {path.name}: {token}"

    def _save(self, author: str) -> str:
        path, token = self._path(), self._token(author)
        beside = path.with_name(f".{path.name}.swp")
        old = path.read_bytes() if path.exists() else b""
        beside.write_bytes(old + token)
        beside.rename(path)
        return f"saves {path.name}: {token}"

    def _remove(self, author: str) -> str:
        path = self._path()
        path.unlink(missing_ok=True)
        return f"removes {path.name}"

    def _move(self, author: str) -> str:
        path, other = self._path(), self._path()
        if path.exists():
            path.rename(other)
        return f"moves {path.name} to {other.name}"

    def _git(self, author: str) -> str:
        what = self.rng.choice((".", "a", "d/a"))
        subprocess.run([*GIT, "checkout", "-q", "--", what], cwd=self.root, check=True)
        return f"git checkout {what}"

    def files(self) -> Tree:
        return {path: each for path, each in tree_of(self.root).items() if each[0] == "file"}

    # what happens in the server

    def _begin_job(self, name: str) -> None:
        self._count += 1
        record = ProcessRecord(2**22 + self._count, "x")
        self.kedge.engine.processes.add_job(record, self.kedge.workspace_id, name)
        self._jobs.append(record)
        self.story.append(f"    a job of {name} begins")

    def end_job(self) -> None:
        if self._jobs:
            self.kedge.engine.processes.discard(self._jobs.pop(self.rng.randrange(len(self._jobs))))
            self._had_job = True
            self.story.append("    a job ends")

    async def run(self, *, holds: bool = False) -> None:
        """Several commands and tools; between them the user works, too. `holds`: its last command goes on."""
        idle = [each for each in self.sessions if each not in {session for _, session in self.held.values()}]
        if not idle:
            return
        session_id = self.rng.choice(idle)
        self._count += 1
        name = f"r{self._count}"
        run = Done(name, session_id, len(self.touches), self.files())
        self.runs.setdefault(session_id, []).append(run)
        self.undone[session_id] = []
        reached, go = asyncio.Event(), asyncio.Event()

        async def work(ctx: TurnContext) -> None:
            for _ in range(self.rng.randint(1, 3)):
                if self.rng.random() < 0.3:
                    await self._tool(ctx, name)
                else:
                    async with ctx.watch_files(os.environ, MAX_BYTES):
                        with self._window(name, session_id):
                            if self.rng.random() < 0.15:
                                self._begin_job(name)
                            for _ in range(self.rng.randint(1, 2)):
                                self.rng.choice((self.agent, self.agent, self.agent, self._job_or_agent))(f"run:{name}")
                if not self.windows and self.rng.random() < 0.4:
                    self.rng.choice((self.user, self.job))()
            if holds:
                async with ctx.watch_files(os.environ, MAX_BYTES):
                    with self._window(name, session_id):
                        self.agent(f"run:{name}")
                        reached.set()
                        await go.wait()
                        self.agent(f"run:{name}")

        self._scripts[name] = work
        self.story.append(f"    {name} in {session_id}")
        await self.kedge.send(session_id, name, run_id=name)
        if holds:
            await reached.wait()
            self.held[name] = go, session_id
        else:
            await self._ended(name)

    async def go_on(self) -> None:
        """A command that was held comes to its end."""
        if self.held:
            name = self.rng.choice(list(self.held))
            self.held.pop(name)[0].set()
            await self._ended(name)
            self.story.append(f"    {name} has ended")

    async def crash(self) -> None:
        """In the middle of a command, or of nothing; the user goes on working before the next server comes."""
        await self.kedge.crash()
        names, self.is_down = list(self.held), True
        self.held.clear()
        self.windows.clear()
        self._jobs.clear()
        self.story.append(f"    crash, with {names} at work")
        # What a command did that nobody looked at afterwards may as well be the user's.
        self.touches = [
            each._replace(is_certain=False, may_be_a_jobs=True) if each.author.removeprefix("run:") in names else each
            for each in self.touches
        ]
        for _ in range(self.rng.randint(0, 2)):
            self.user()
        await self.kedge.start()
        for name in names:
            await self._ended(name)
        await self.kedge.engine.file_recorder.settle(self.kedge.workspace_id)
        self.is_down = False

    async def _ended(self, name: str) -> None:
        end = await self.kedge.end(name)
        assert end.error is None, end.error

    async def _turn(self, ctx: TurnContext) -> None:
        if ctx.run.attempt == 1:
            message = await ctx.begin_message(model="test/model")
            await self._scripts[ctx.run.run_id](ctx)
            await message.finish("end_turn")

    async def _tool(self, ctx: TurnContext, name: str) -> None:
        path, token = self._path(), self._token("run")

        def write(_: str) -> str:
            path.write_bytes(token)
            return f"a tool writes {path.name}: {token}"

        async with ctx.record_change(path, token):
            self._change(f"run:{name}", write)

    def _job_or_agent(self, author: str) -> None:
        if self._jobs:
            self._change(author, lambda _: self._write("shared"))  # of a job, while a command runs: it counts as its
        else:
            self.agent(author)

    @contextmanager
    def _window(self, name: str, session_id: str) -> Generator[None]:
        self.windows[name] = session_id
        try:
            yield
        finally:
            self.windows.pop(name, None)
            self._had_job = False  # the tree is looked at now

    # the way back, and what must hold of it

    async def undo(self) -> None:
        session_id = self._idle_session()
        if session_id is None or not (runs := self.runs.get(session_id)):
            return
        shown = [run for run in runs if run.is_shown]
        if not shown:
            return
        first = runs.index(self.rng.choice((shown[-1], shown[-1], shown[0])))
        kind: Restore = self.rng.choice(("both", "both", "files", "conversation"))
        going, before = [run for run in runs[first:] if run.is_shown or not run.is_reverted], self.files()
        going_shown = [run for run in going if run.is_shown]
        messages = [m for m in await self.kedge.messages(session_id) if m.role == "user"]
        self.story.append(f"    undo ({kind}) of {[run.name for run in going]} in {session_id}")
        try:
            done = await self.kedge.engine.undos.undo(
                self.kedge.workspace_id,
                session_id,
                messages[-len(going_shown)].id,
                restore=kind,
                include_unsure=False,
            )
        except FilesConflict as refused:
            assert self.files() == before, "it was refused, and touched files"
            assert kind != "conversation", "no file is asked about"
            self._check_refusal(session_id, going, refused)
            self._counted("undos refused")
            return
        except Conflict as refused:
            if (kind, refused.code) != ("files", "nothing_to_undo"):
                raise
            assert self.files() == before, "there was nothing to restore, and it touched files"
            return
        self._counted("undos")
        self._counted(f"undos of {kind}")
        after = self.files()
        if kind == "conversation":
            assert (after, done.files) == (before, []), "only the conversation was to go back"
        else:
            self._check_undo(session_id, going, done, before, after)
        self._touched(f"undo:{session_id}", before, after)
        messages_left = [m.id for m in await self.kedge.messages(session_id) if m.role == "user"]
        kept = messages if kind == "files" else messages[: -len(going_shown)]
        assert messages_left == [m.id for m in kept], "other prompts are shown than before the undo allows"
        flags = [(run.is_shown, run.is_reverted) for run in going]
        for run in going:
            run.is_shown = run.is_shown and kind == "files"
            run.is_reverted = run.is_reverted or kind != "conversation"
        self.undone.setdefault(session_id, []).append(Undone(going, before, after, len(self.touches), kind, flags))

    async def redo(self) -> None:
        session_id = self._idle_session()
        if session_id is None or not (stack := self.undone.get(session_id)):
            return
        undone, before = stack[-1], self.files()
        since = {path for path in before.keys() | undone.after.keys() if before.get(path) != undone.after.get(path)}
        self.story.append(f"    redo of {[run.name for run in undone.runs]} in {session_id}")
        try:
            await self.kedge.engine.undos.redo(self.kedge.workspace_id, session_id)
        except FilesConflict as refused:
            assert self.files() == before, "it was refused, and touched files"
            blocked = {file.path for file in refused.files if file.obstacle}
            assert blocked & since, f"{blocked} were not touched"
            self._counted("redos refused")
            return
        self._counted("redos")
        self._counted(f"redos of {undone.kind}")
        after = self.files()
        for path in before.keys() | after.keys() | undone.before.keys():
            wanted = before.get(path) if path in since else undone.before.get(path)
            assert after.get(path) == wanted, f"{path} is {after.get(path)} after the redo, not {wanted}"
        self._touched(f"undo:{session_id}", before, after)
        for run, (run.is_shown, run.is_reverted) in zip(undone.runs, undone.flags, strict=True):
            assert run.is_shown or not run.is_reverted
        shown = [run for run in self.runs[session_id] if run.is_shown]
        messages = [m for m in await self.kedge.messages(session_id) if m.role == "user"]
        assert len(messages) == len(shown), "a redo shows the prompts that were shown before the undo"
        stack.pop()

    def _idle_session(self) -> str | None:
        busy = {session for _, session in self.held.values()}
        idle = [each for each in self.sessions if each not in busy and (self.runs.get(each) or self.undone.get(each))]
        return self.rng.choice(idle) if idle else None

    def _check_undo(self, session_id: str, going: list[Done], done: Rewound, before: Tree, after: Tree) -> None:
        named = {file.path: file.obstacle for file in done.files if file.obstacle}
        # What an undo of files took back may be from before these runs: then it is not restored to their beginning.
        authors = {f"run:{run.name}" for run in going if not run.is_reverted}
        is_mixed = any(run.is_reverted for run in self.runs[session_id])
        own = authors if is_mixed else {*authors, f"undo:{session_id}"}
        lost = {each for each in _tokens(before) if each.startswith(b"user-")} - _tokens(after)
        assert not lost, f"the user wrote {lost}"
        lost = {each for each in _tokens(before) if each.startswith(b"job-")} - _tokens(after)
        assert not lost, f"a job wrote {lost}, and nobody asked to undo that"
        for path in before.keys() | after.keys() | going[0].before.keys():
            touches = [touch for touch in self.touches[going[0].began :] if touch.path == path]
            is_own = all(t.is_certain and t.author in own for t in touches)
            if not any(t.author in authors or not t.is_certain for t in touches):
                assert after.get(path) == before.get(path), f"{path} is none of theirs, and changed"
            elif is_own:
                assert path not in named, f"{path} was not doubtful: {named[path]}"
                assert after.get(path) == going[0].before.get(path), f"{path} is not what it was"
                self._counted("files undone")
            elif touches[-1].author == "user" and path in before:
                assert after.get(path) == before[path], f"{path} is the user's"
            if path in named:
                self._counted("files left")
                assert named[path] in UNSURE
                assert any(t.may_be_a_jobs for t in touches), f"{path} is said to be a job's: {touches}"
                assert after.get(path) == before.get(path), f"{path} was to be left"

    def _check_refusal(self, session_id: str, going: list[Done], refused: FilesConflict) -> None:
        """Somebody else did change each file that is named."""
        authors = {f"run:{run.name}" for run in going} | {f"undo:{session_id}"}
        for file in refused.files:
            if file.obstacle is not None and file.obstacle not in UNSURE:
                around = [t for t in self.touches[going[0].began :] if t.path.startswith(file.path.partition("/")[0])]
                assert any(t.author not in authors or not t.is_certain for t in around), f"{file} was nobody else's"

    def _counted(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _tokens(tree: Tree) -> set[bytes]:
    return {token for _, _, data in tree.values() for token in _TOKEN.findall(data)}

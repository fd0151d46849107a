"""What turns do to files is kept: before a tool touches one, and around a command, which may touch any.

The record is begun before the file is touched, so that a crash in between leaves something to look into (`settle`). One
at a time looks at a workspace's files or changes them for us, so that each change is seen once and has one author.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kedge import failpoints
from kedge.engine.concurrency import Tasks, retry_store, run_in_own_thread
from kedge.engine.files.pruner import Pruner
from kedge.engine.processes.registry import BackgroundGroups
from kedge.files.diffs import count_lines
from kedge.files.listing import CannotScan
from kedge.files.scan import Difference
from kedge.files.states import (
    ABSENT,
    DIRECTORY,
    UNREADABLE,
    Observation,
    State,
    compute_digest,
    decode_state,
    encode_state,
    find_empty_parent,
    observe_resolved,
)
from kedge.files.versions import Versions
from kedge.protocol.errors import KedgeError, NotFound
from kedge.protocol.files import Unsure
from kedge.protocol.messages import whole_characters
from kedge.store.files_port import NewChange, NewWork, OpenWork
from kedge.store.port import Store

log = logging.getLogger(__name__)

RECORDED_AT_ONCE = 500  # changes in one transaction: a command may change thousands
RELEASE_S = 1.0  # to see what a cancelled command did; a large tree is looked at after the run's end (P6)
LOOK_S = 60.0  # a file system that takes longer hangs


class NotRecorded(Exception):
    """What a file was could not be kept, so that it must not be changed."""


class Author(NamedTuple):
    """Whose change it is, and where."""

    workspace_id: str
    run_id: str
    root: Path


class FileRecorder:
    def __init__(
        self, store: Store, versions: Versions, root_of: Callable[[str], Path], tasks: Tasks, jobs: BackgroundGroups
    ) -> None:
        self.versions = versions
        self.pruner = Pruner(store, versions, tasks)
        self._store = store
        self._root_of = root_of
        self._tasks = tasks
        self._jobs = jobs
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._live: dict[int, Author] = {}  # work whose turn will say itself what became of it
        self._unfinished: set[int] = set()  # work that was begun here; any other is of a dead server

    def alone(self, workspace_id: str) -> asyncio.Lock:
        return self._locks[workspace_id]

    @contextlib.asynccontextmanager
    async def changing(
        self, author: Author, path: Path, data: bytes | None, counts: tuple[int, int] | None
    ) -> AsyncGenerator[None]:
        """Record a change of `path`. `data`: its new content, if known. Raises `NotRecorded`: then do not change it."""
        name = os.fsencode(path)
        async with self.alone(author.workspace_id):
            try:
                before, empty_parent = await asyncio.to_thread(self._kept_before, os.fsencode(author.root), name, data)
            except (OSError, sqlite3.Error) as error:
                raise NotRecorded(str(error)) from error
            planned = (
                None
                if data is None
                else encode_state(State("file", compute_digest(data), before.state.mode, len(data)))
            )
            work = await self._begun(
                author, NewWork(path=name, before=encode_state(before.state), after=planned, hollow=empty_parent)
            )
            try:
                yield
            except Exception:
                await self._changed(work, author, name, before, empty_parent, counts)
                raise
            failpoints.hit("file.written")
            await self._changed(work, author, name, before, empty_parent, counts)

    @contextlib.asynccontextmanager
    async def watching(
        self, author: Author, env: Mapping[str, str], max_bytes: int, tell: Callable[[str], Awaitable[None]]
    ) -> AsyncGenerator[None]:
        """Around a command: what changes meanwhile counts as its work, and what changed before does not."""
        self.pruner.max_bytes = max_bytes
        try:
            async with self.alone(author.workspace_id):
                await self.settle_alone(author.workspace_id)
                await self._look_between(author.workspace_id, author.root, env)
                work = await self._begun(author, NewWork())
        except CannotScan as error:
            why = f"{author.root} is not watched: {error.why}"
            if await retry_store(lambda: self._store.files.record_unwatched(author.workspace_id, author.run_id, why)):
                await tell(f"what commands change here cannot be undone: {why}")
            yield
            return
        try:
            yield
        except Exception:
            await self._watched(work, author, env)
            raise
        await self._watched(work, author, env)

    async def look_for_jobs(self, workspace_id: str) -> None:
        """If a background job was at work since the last look, record what changed. For who is `alone`."""
        if self._jobs.runs_of(workspace_id):
            with contextlib.suppress(CannotScan):
                await self._look_between(workspace_id, self._root_of(workspace_id), os.environ)

    async def _look_between(self, workspace_id: str, root: Path, env: Mapping[str, str]) -> None:
        """Look at what changed while no command ran: it is the user's, and with background jobs it may be a job's.

        With jobs of several runs it is recorded for each of these runs, because any of them may have made it. If a
        command of another run is at work, it counts as that command's. Raises `Uncovered`.
        """
        job_run_ids = self._jobs.runs_of(workspace_id)
        self._jobs.forget_ended(workspace_id)
        found = await self._look(Author(workspace_id, "", root), env)
        commands = [work for work, whose in self._live.items() if whose.workspace_id == workspace_id]
        if commands:
            await self._record(commands[-1], root, found, is_last=False)
            return
        for run_id in job_run_ids if found else []:
            with contextlib.suppress(NotFound):  # its session was deleted: nobody can undo it
                work = await self._begun(Author(workspace_id, run_id, root), NewWork())
                await self._record(work, root, found, unsure="background_job", saves=False)
        await self._save(root)  # after the last run: a crash before leads to the same look again

    async def release(self, workspace_id: str, run_id: str) -> None:
        """A turn is over: what it began and did not finish is looked into, before its end if that takes no time."""
        left = [work for work, whose in self._live.items() if whose[:2] == (workspace_id, run_id)]
        for work in left:
            del self._live[work]
        if left:
            await asyncio.wait({self._tasks.own(self.settle(workspace_id))}, timeout=RELEASE_S)

    async def settle(self, workspace_id: str) -> None:
        async with self.alone(workspace_id):
            await self.settle_alone(workspace_id)

    async def settle_alone(self, workspace_id: str) -> None:
        """Look into what was begun and not finished, by whoever is no longer at work. For who is `alone`."""
        left = [work for work in await self._store.files.open_work(workspace_id) if work.id not in self._live]
        if not left:
            return
        root = self._root_of(workspace_id)
        for work in left:
            if work.path is None:
                continue
            try:
                found = await asyncio.to_thread(self._found, work, os.fsencode(root))
            except sqlite3.Error as error:  # whoever comes next tries it again; nobody's command waits for that
                log.warning("what became of %r could not be kept: %s", work.path, error)
            else:
                is_known = work.after is not None or work.id in self._unfinished
                await self._record(work.id, root, found, unsure=None if is_known else "interrupted")
        commands = [work for work in left if work.path is None]
        if not commands:
            return
        try:
            found = await self._look(Author(workspace_id, "", root), os.environ)
        except CannotScan:
            found = []
        for work in commands:
            # Since a server died the user may have been at work, too.
            unsure = None if work.id in self._unfinished else "interrupted"
            await self._record(work.id, root, found if work is commands[-1] else [], unsure=unsure)

    async def settle_all(self) -> None:
        """What a dead server left."""
        for workspace_id in {work.workspace_id for work in await self._store.files.open_work()}:
            with contextlib.suppress(KedgeError):  # a workspace that is gone
                await self.settle(workspace_id)

    async def _begun(self, author: Author, work: NewWork) -> int:
        begun = await retry_store(lambda: self._store.files.begin_work(author.workspace_id, author.run_id, work))
        self._live[begun] = author
        self._unfinished.add(begun)
        return begun

    async def _watched(self, work: int, author: Author, env: Mapping[str, str]) -> None:
        failpoints.hit("command.ended")
        async with self.alone(author.workspace_id):
            self._jobs.forget_ended(author.workspace_id)
            try:
                found = await self._look(author, env)
            except CannotScan as error:
                found = []
                why = f"{author.root} is not watched: {error.why}"
                await retry_store(lambda: self._store.files.record_unwatched(author.workspace_id, author.run_id, why))
            await self._record(work, author.root, found)

    async def _changed(
        self,
        work: int,
        author: Author,
        path: bytes,
        before: Observation,
        empty_parent: bytes | None,
        counts: tuple[int, int] | None,
    ) -> None:
        root = os.fsencode(author.root)
        try:
            after = await asyncio.to_thread(self._kept_after, root, path)
        except (OSError, sqlite3.Error) as error:
            log.warning("what became of %r could not be kept, and is looked into later: %s", path, error)
            self._live.pop(work, None)  # its turn may have been left behind
            self._unfinished.discard(work)
            return
        found = [Difference(path, before.state, after.state)]
        if empty_parent is not None:
            found.append(Difference(empty_parent, DIRECTORY, ABSENT))
        await self._record(work, author.root, [each for each in found if before.state != after.state], counts=counts)

    async def _look(self, author: Author, env: Mapping[str, str]) -> list[Difference]:
        root, trees = os.fsencode(author.root), self.versions.trees
        try:
            async with asyncio.timeout(LOOK_S):
                return await run_in_own_thread(lambda: trees.scan(root, env, self.pruner.max_bytes))
        except TimeoutError:
            why = f"looking at its files takes over {LOOK_S:.0f} s"
            await asyncio.to_thread(trees.stop_watching, root, why)
            raise CannotScan(why) from None
        except (OSError, sqlite3.Error) as error:
            log.exception("the files of %s cannot be looked at", author.root)
            raise CannotScan(str(error)) from error

    async def _record(
        self,
        work: int,
        root: Path,
        found: Sequence[Difference],
        *,
        is_last: bool = True,
        counts: tuple[int, int] | None = None,
        unsure: Unsure | None = None,
        saves: bool = True,
    ) -> None:
        changes = await asyncio.to_thread(self._told, root, found, counts, unsure) if found else []
        bites = [changes[start : start + RECORDED_AT_ONCE] for start in range(0, len(changes), RECORDED_AT_ONCE)]
        if is_last and not bites:
            bites.append([])  # that nothing changed ends the work, too
        for place, bite in enumerate(bites, 1):
            is_end = is_last and place == len(bites)
            await retry_store(partial(self._store.files.record_changes, work, bite, is_last=is_end))
        if saves:
            await self._save(root)
        if is_last:
            self._live.pop(work, None)
            self._unfinished.discard(work)

    async def _save(self, root: Path) -> None:
        """What was seen is dealt with: the next look begins from there."""
        try:
            await asyncio.to_thread(self.versions.trees.save, os.fsencode(root))
        except sqlite3.Error as error:  # then the next look sees it again, and it is on record twice
            log.warning("what was seen of %s could not be noted: %s", root, error)

    # From here on in threads.

    def _kept_before(self, root: bytes, path: bytes, data: bytes | None) -> tuple[Observation, bytes | None]:
        """What is there, kept with what will be; and the empty directory that it will be in, if there is one."""
        seen = observe_resolved(path)
        self.versions.blobs.put([each for each in (seen.data, data) if each is not None])
        return seen, find_empty_parent(root, path) if seen.state.kind == "absent" else None

    def _kept_after(self, root: bytes, path: bytes) -> Observation:
        seen = observe_resolved(path)
        if seen.data is not None:
            self.versions.blobs.put([seen.data])
        self.versions.trees.record(root, path, seen)
        return seen

    def _found(self, work: OpenWork, root: bytes) -> list[Difference]:
        """What became of a file that a tool was about to change when it was stopped."""
        assert work.path is not None
        assert work.before is not None
        before = decode_state(work.before)
        try:
            now = self._kept_after(root, work.path).state
        except OSError:
            now = UNREADABLE
        planned = now if work.after is None else decode_state(work.after)
        if now == before:
            return []
        # Neither: somebody else was here since, and an undo must see that.
        after = now if now.digest == planned.digest else planned
        empty_parent = [] if work.hollow is None else [Difference(work.hollow, DIRECTORY, ABSENT)]
        return [Difference(work.path, before, after), *empty_parent]

    def _lines_of(self, difference: Difference) -> tuple[int, int]:
        try:
            return count_lines(difference.before, difference.after, self.versions.blobs)
        except sqlite3.Error:
            return 0, 0  # a number for people; the change itself counts

    def _told(
        self, root: Path, found: Sequence[Difference], counts: tuple[int, int] | None, unsure: Unsure | None
    ) -> list[NewChange]:
        prefix = os.fsencode(root) + b"/"
        changes: list[NewChange] = []
        for each in sorted(found):
            added, removed = counts or self._lines_of(each)
            changes.append(
                NewChange(
                    path=each.path,
                    shown=whole_characters(os.fsdecode(each.path.removeprefix(prefix))),
                    before=encode_state(each.before),
                    after=encode_state(each.after),
                    added=added if each.after.kind != "absent" else 0,
                    removed=removed if each.before.kind != "absent" else 0,
                    unsure=unsure,
                )
            )
        return changes

"""Record the changes that turns make to files: those of a tool one by one, those of a command by scans around it.

Work is registered before a file is touched, so that a crash in between leaves a row to settle. One task at a time scans
or changes a workspace's files for us, so that each change is found once and has one author.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path

from kedge import failpoints
from kedge.engine.concurrency import Tasks, retry_store
from kedge.engine.errors import NotRecorded
from kedge.engine.files.change_log import Author, ChangeLog, Pruner, Scanner
from kedge.engine.processes.registry import ProcessRegistry
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
from kedge.protocol.errors import KedgeError
from kedge.protocol.files import FileStatus
from kedge.store.port import NewWork, OpenWork, Store

log = logging.getLogger(__name__)

RELEASE_S = 1.0  # for the scan after a canceled command; a large tree is scanned after the run's end (P6)


class FileRecorder:
    def __init__(
        self,
        store: Store,
        versions: Versions,
        root_of: Callable[[str], Path],
        tasks: Tasks,
        processes: ProcessRegistry,
    ) -> None:
        self.versions = versions
        self.pruner = Pruner(store, versions, tasks)
        self._store = store
        self._root_of = root_of
        self._tasks = tasks
        self._processes = processes
        self._change_log = ChangeLog(store, versions)
        self._scanner = Scanner(self._change_log, versions, self.pruner, processes)
        self._unfinished = UnfinishedWork(store, self._change_log, self._scanner)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def lock(self, workspace_id: str) -> asyncio.Lock:
        return self._locks[workspace_id]

    @contextlib.asynccontextmanager
    async def record_change(
        self, author: Author, path: Path, data: bytes | None, counts: tuple[int, int] | None
    ) -> AsyncGenerator[None]:
        """Record a change of `path` made inside the block; `data` is its new content, if known.

        Raises `NotRecorded` if the old content cannot be kept: then do not change the file.
        """
        name = os.fsencode(path)
        async with self.lock(author.workspace_id):
            try:
                before, empty_parent = await asyncio.to_thread(
                    self._observe_before, os.fsencode(author.root), name, data
                )
            except (OSError, sqlite3.Error) as error:
                raise NotRecorded(str(error)) from error
            planned = (
                None
                if data is None
                else encode_state(State("file", compute_digest(data), before.state.mode, len(data)))
            )
            work = NewWork(path=name, before=encode_state(before.state), after=planned, hollow=empty_parent)
            work_id = await self._change_log.begin(author, work)
            try:
                yield
            except Exception:
                await self._record_file(work_id, author, name, before, empty_parent, counts)
                raise
            failpoints.hit("file.written")
            await self._record_file(work_id, author, name, before, empty_parent, counts)

    @contextlib.asynccontextmanager
    async def watch(
        self, author: Author, env: Mapping[str, str], max_bytes: int, notify: Callable[[str], Awaitable[None]]
    ) -> AsyncGenerator[dict[Path, FileStatus]]:
        """Record all changes in the workspace while a command runs inside the block: they count as the command's.

        What it yields is empty in the block, and has the changed files after it.

        In a tree that cannot be scanned nothing is recorded; the first time in a run, `notify` gets the reason.
        """
        self.pruner.max_bytes = max_bytes
        changed: dict[Path, FileStatus] = {}
        try:
            async with self.lock(author.workspace_id):
                await self._record_earlier_changes(author, env)
                work_id = await self._change_log.begin(author, NewWork())
        except CannotScan as error:
            if why := await self._record_unwatched(author, error):
                await notify(f"what commands change here cannot be undone: {why}")
            yield changed
            return
        try:
            yield changed
        except Exception:
            await self._record_command(work_id, author, env)
            raise
        changed |= await self._record_command(work_id, author, env)

    async def find_problem(self, author: Author, env: Mapping[str, str], max_bytes: int) -> str | None:
        """Return why `watch` would record nothing; None if it would."""
        self.pruner.max_bytes = max_bytes
        try:
            async with self.lock(author.workspace_id):
                await self._record_earlier_changes(author, env)
        except CannotScan as error:
            return error.why
        return None

    async def record_job_changes(self, workspace_id: str) -> None:
        """Record changes that may be a background job's. Callers hold the lock."""
        await self._scanner.record_job_changes(workspace_id, self._root_of(workspace_id))

    async def release(self, workspace_id: str, run_id: str) -> None:
        """Settle the unfinished work of a turn that is over. Returns after `RELEASE_S`; the rest happens later."""
        if self._change_log.release(workspace_id, run_id):
            await asyncio.wait({self._tasks.start(self.settle(workspace_id))}, timeout=RELEASE_S)

    async def settle(self, workspace_id: str) -> None:
        async with self.lock(workspace_id):
            await self.settle_locked(workspace_id)

    async def settle_locked(self, workspace_id: str) -> None:
        """Record the changes of unfinished work of turns that are over. Callers hold the lock."""
        await self._unfinished.settle(workspace_id, self._root_of(workspace_id))

    async def settle_all(self) -> None:
        """Settle the work that a dead server left in all workspaces."""
        for workspace_id in {work.workspace_id for work in await self._store.files.open_work()}:
            with contextlib.suppress(KedgeError):  # a deleted workspace
                await self.settle(workspace_id)

    async def _record_earlier_changes(self, author: Author, env: Mapping[str, str]) -> None:
        """Record what was changed before now, so that it is not taken for changes of the next command."""
        await self.settle_locked(author.workspace_id)
        await self._scanner.record_idle_changes(author.workspace_id, author.root, env)

    async def _record_command(self, work_id: int, author: Author, env: Mapping[str, str]) -> dict[Path, FileStatus]:
        """Record the changes of a command; return the changed files."""
        failpoints.hit("command.ended")
        async with self.lock(author.workspace_id):
            self._processes.forget_ended(author.workspace_id)
            try:
                found = await self._scanner.scan(author.root, env)
            except CannotScan as error:
                found = []
                await self._record_unwatched(author, error)
            await self._change_log.record(work_id, author.root, found)
        return {Path(os.fsdecode(each.path)): _describe_status(each) for each in found}

    async def _record_unwatched(self, author: Author, error: CannotScan) -> str | None:
        """Store that the run's commands are not watched; returns the reason the first time."""
        why = f"{author.root} is not watched: {error.why}"
        is_first = await retry_store(
            lambda: self._store.files.record_unwatched(author.workspace_id, author.run_id, why)
        )
        return why if is_first else None

    async def _record_file(
        self,
        work_id: int,
        author: Author,
        path: bytes,
        before: Observation,
        empty_parent: bytes | None,
        counts: tuple[int, int] | None,
    ) -> None:
        try:
            after = await asyncio.to_thread(self._change_log.observe_after, os.fsencode(author.root), path)
        except (OSError, sqlite3.Error) as error:
            log.warning("the new content of %r could not be kept; trying again later: %s", path, error)
            self._change_log.forget(work_id)
            return
        found = [Difference(path, before.state, after.state)]
        if empty_parent is not None:
            found.append(Difference(empty_parent, DIRECTORY, ABSENT))
        has_changed = before.state != after.state
        await self._change_log.record(work_id, author.root, found if has_changed else [], counts=counts)

    def _observe_before(self, root: bytes, path: bytes, data: bytes | None) -> tuple[Observation, bytes | None]:
        """Keep the old and the new content. Also returns the empty directory that a new file is in. Blocks."""
        seen = observe_resolved(path)
        self.versions.blobs.put([each for each in (seen.data, data) if each is not None])
        return seen, find_empty_parent(root, path) if seen.state.kind == "absent" else None


class UnfinishedWork:
    """Work on files that was begun and not recorded: of a canceled turn, or of a server that died."""

    def __init__(self, store: Store, change_log: ChangeLog, scanner: Scanner) -> None:
        self._store = store
        self._change_log = change_log
        self._scanner = scanner

    async def settle(self, workspace_id: str, root: Path) -> None:
        """Record the changes of open work whose turn is over. Callers hold the workspace's lock.

        Changes found after a crash are unsure: the user may have changed files until this server started.
        """
        left = [
            work for work in await self._store.files.open_work(workspace_id) if not self._change_log.is_live(work.id)
        ]
        for work in left:
            if work.path is not None:
                await self._settle_file(work, root)
        commands = [work for work in left if work.path is None]
        if not commands:
            return
        try:
            found = await self._scanner.scan(root, os.environ)
        except CannotScan:
            found = []
        for work in commands:
            unsure = None if self._change_log.is_of_this_server(work.id) else "interrupted"
            await self._change_log.record(work.id, root, found if work is commands[-1] else [], unsure=unsure)

    async def _settle_file(self, work: OpenWork, root: Path) -> None:
        try:
            found = await asyncio.to_thread(self._compare, work, os.fsencode(root))
        except sqlite3.Error as error:  # tried again later: a command must not wait for it
            log.warning("the content of %r could not be kept: %s", work.path, error)
        else:
            is_known = work.after is not None or self._change_log.is_of_this_server(work.id)
            await self._change_log.record(work.id, root, found, unsure=None if is_known else "interrupted")

    def _compare(self, work: OpenWork, root: bytes) -> list[Difference]:
        """Return the change of a file that a tool was about to make. Blocks."""
        assert work.path is not None
        assert work.before is not None
        before = decode_state(work.before)
        try:
            now = self._change_log.observe_after(root, work.path).state
        except OSError:
            now = UNREADABLE
        planned = now if work.after is None else decode_state(work.after)
        if now == before:
            return []
        # Neither the old nor the planned content: somebody else changed it since, and an undo must find that.
        after = now if now.digest == planned.digest else planned
        empty_parent = [] if work.hollow is None else [Difference(work.hollow, DIRECTORY, ABSENT)]
        return [Difference(work.path, before, after), *empty_parent]


def _describe_status(found: Difference) -> FileStatus:
    if found.before == ABSENT:
        return "created"
    return "deleted" if found.after == ABSENT else "modified"

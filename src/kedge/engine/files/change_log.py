"""Changes of files in the store: work is registered before a file is touched, and its changes recorded afterwards;
scans of a workspace's tree, which find changes and decide whose they are; and the pruner of old versions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kedge.engine.concurrency import Tasks, retry_store, run_in_own_thread
from kedge.engine.processes.registry import ProcessRegistry
from kedge.files.listing import CannotScan
from kedge.files.restore import decode_steps
from kedge.files.scan import Difference
from kedge.files.states import Observation, decode_state, encode_state, observe_resolved
from kedge.files.versions import DEFAULT_MAX_BYTES, Versions
from kedge.protocol.errors import NotFound
from kedge.protocol.files import Unsure
from kedge.protocol.messages import replace_surrogates
from kedge.store.port import NewChange, NewWork, Store

log = logging.getLogger(__name__)

BATCH_CHANGES = 500  # in one transaction: a command may change thousands of files


class Author(NamedTuple):
    """The run that changes files, and the root of its workspace."""

    workspace_id: str
    run_id: str
    root: Path


class ChangeLog:
    def __init__(self, store: Store, versions: Versions) -> None:
        self._store = store
        self._versions = versions
        self._live: dict[int, Author] = {}  # work whose turn will record the changes itself
        self._of_this_server: set[int] = set()  # other open work was begun by a server that died

    async def begin(self, author: Author, work: NewWork) -> int:
        work_id = await retry_store(lambda: self._store.files.begin_work(author.workspace_id, author.run_id, work))
        self._live[work_id] = author
        self._of_this_server.add(work_id)
        return work_id

    def is_live(self, work_id: int) -> bool:
        return work_id in self._live

    def is_of_this_server(self, work_id: int) -> bool:
        return work_id in self._of_this_server

    def live_work(self, workspace_id: str) -> list[int]:
        return [work_id for work_id, author in self._live.items() if author.workspace_id == workspace_id]

    def release(self, workspace_id: str, run_id: str) -> bool:
        """Stop waiting for the turn of this run to record its work; returns whether it has any."""
        left = [work_id for work_id, author in self._live.items() if author[:2] == (workspace_id, run_id)]
        for work_id in left:
            del self._live[work_id]
        return bool(left)

    def forget(self, work_id: int) -> None:
        """Leave open work to `UnfinishedWork.settle`, as if this server had died."""
        self._live.pop(work_id, None)
        self._of_this_server.discard(work_id)

    async def record(
        self,
        work_id: int,
        root: Path,
        found: Sequence[Difference],
        *,
        is_last: bool = True,
        counts: tuple[int, int] | None = None,
        unsure: Unsure | None = None,
        saves: bool = True,
    ) -> None:
        """Store changes. `is_last`: the work is done; `counts`: added and removed lines; `saves`: call `save`, too."""
        changes = await asyncio.to_thread(self._describe, root, found, counts, unsure) if found else []
        batches = [changes[start : start + BATCH_CHANGES] for start in range(0, len(changes), BATCH_CHANGES)]
        if is_last and not batches:
            batches.append([])  # work without changes ends, too
        for number, batch in enumerate(batches, 1):
            is_end = is_last and number == len(batches)
            await retry_store(partial(self._store.files.record_changes, work_id, batch, is_last=is_end))
        if saves:
            await self.save(root)
        if is_last:
            self.forget(work_id)

    async def save(self, root: Path) -> None:
        """Make the last scan the base of the next one: its differences are recorded."""
        try:
            await asyncio.to_thread(self._versions.trees.save, os.fsencode(root))
        except sqlite3.Error as error:  # the next scan finds the same changes and records them twice
            log.warning("the last scan of %s could not be saved: %s", root, error)

    def observe_after(self, root: bytes, path: bytes) -> Observation:
        """Read a file after its change and keep its content. Blocks."""
        seen = observe_resolved(path)
        if seen.data is not None:
            self._versions.blobs.put([seen.data])
        self._versions.trees.record(root, path, seen)
        return seen

    def _describe(
        self, root: Path, found: Sequence[Difference], counts: tuple[int, int] | None, unsure: Unsure | None
    ) -> list[NewChange]:
        """Blocks: counts lines."""
        prefix = os.fsencode(root) + b"/"
        changes: list[NewChange] = []
        for each in sorted(found):
            added, removed = counts or self._count_lines(each)
            changes.append(
                NewChange(
                    path=each.path,
                    shown=replace_surrogates(os.fsdecode(each.path.removeprefix(prefix))),
                    before=encode_state(each.before),
                    after=encode_state(each.after),
                    added=added if each.after.kind != "absent" else 0,
                    removed=removed if each.before.kind != "absent" else 0,
                    unsure=unsure,
                )
            )
        return changes

    def _count_lines(self, difference: Difference) -> tuple[int, int]:
        from kedge.files.diffs import count_lines  # imports difflib, which would slow the server's start

        try:
            return count_lines(difference.before, difference.after, self._versions.blobs)
        except sqlite3.Error:
            return 0, 0  # only shown to people; the change itself is recorded


SCAN_S = 60.0  # a file system that takes longer hangs


class Scanner:
    """Callers hold the workspace's lock."""

    def __init__(self, change_log: ChangeLog, versions: Versions, pruner: Pruner, processes: ProcessRegistry) -> None:
        self._change_log = change_log
        self._trees = versions.trees
        self._pruner = pruner
        self._processes = processes

    async def scan(self, root: Path, env: Mapping[str, str]) -> list[Difference]:
        """Return the changes since the last saved scan. Raises `CannotScan`: it is too large or unreadable."""
        root_bytes = os.fsencode(root)
        try:
            async with asyncio.timeout(SCAN_S):
                return await run_in_own_thread(lambda: self._trees.scan(root_bytes, env, self._pruner.max_bytes))
        except TimeoutError:
            why = f"looking at its files takes over {SCAN_S:.0f} s"
            await asyncio.to_thread(self._trees.stop_watching, root_bytes, why)
            raise CannotScan(why) from None
        except (OSError, sqlite3.Error) as error:
            log.exception("the files of %s cannot be scanned", root)
            raise CannotScan(str(error)) from error

    async def record_idle_changes(self, workspace_id: str, root: Path, env: Mapping[str, str]) -> None:
        """Scan for changes made while no command ran. Raises `CannotScan`.

        They are the user's and are not recorded. If background jobs were alive, any of them may have made the changes:
        they are recorded as unsure for each run with a job. If a command of another run is running, they are its.
        """
        job_run_ids = self._processes.runs_with_jobs(workspace_id)
        self._processes.forget_ended(workspace_id)
        found = await self.scan(root, env)
        if commands := self._change_log.live_work(workspace_id):
            await self._change_log.record(commands[-1], root, found, is_last=False)
            return
        for run_id in job_run_ids if found else []:
            with contextlib.suppress(NotFound):  # its session was deleted: there is no undo that could name them
                work_id = await self._change_log.begin(Author(workspace_id, run_id, root), NewWork())
                await self._change_log.record(work_id, root, found, unsure="background_job", saves=False)
        await self._change_log.save(root)  # after the last run: after a crash before it, the next scan finds the same

    async def record_job_changes(self, workspace_id: str, root: Path) -> None:
        """Scan if a background job was alive since the last scan, so that an undo can name its changes."""
        if self._processes.runs_with_jobs(workspace_id):
            with contextlib.suppress(CannotScan):
                await self.record_idle_changes(workspace_id, root, os.environ)


PRUNE_TO = 0.9  # of the limit, so that not every new version starts a pruning


class Pruner:
    def __init__(self, store: Store, versions: Versions, tasks: Tasks) -> None:
        self.max_bytes = DEFAULT_MAX_BYTES  # as configured for the last command
        self._store = store
        self._versions = versions
        self._tasks = tasks

    async def prune_if_full(self) -> None:
        try:
            size = await asyncio.to_thread(lambda: self._versions.blobs.size_bytes)
        except sqlite3.Error as error:
            log.warning("the size of the versions of files is not known: %s", error)
            return
        if size > self.max_bytes:
            self._tasks.start(self.prune())

    async def prune(self) -> None:
        if self._versions.blobs.is_empty:
            return
        last_use = await self._last_use()
        try:
            await asyncio.to_thread(self._prune, last_use)
        except sqlite3.Error as error:
            log.warning("old versions of files could not be removed: %s", error)

    async def _last_use(self) -> dict[str, int]:
        """The last use of every content that a record refers to; what a redo needs counts as the newest."""
        used: dict[str, int] = {}
        for state, last in (await self._store.files.states_in_use()).items():
            digest = decode_state(state).digest
            used[digest] = max(last, used.get(digest, 0))
        steps = [step for _, plan in await self._store.files.plans() for step in decode_steps(plan)]
        planned = {state.digest for step in steps for state in (step.now, step.then)}
        return used | dict.fromkeys(planned, max(used.values(), default=0))

    def _prune(self, last_use: Mapping[str, int]) -> None:
        """Blocks."""
        blobs, most = self._versions.blobs, int(self.max_bytes * PRUNE_TO)
        blobs.prune(last_use, most)
        while blobs.size_bytes > self.max_bytes and self._versions.trees.forget_oldest():
            blobs.prune(last_use, most)

"""Changes of files in the store: work is registered before a file is touched, and its changes recorded afterwards."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kedge.engine.concurrency import retry_store
from kedge.files.scan import Difference
from kedge.files.states import Observation, encode_state, observe_resolved
from kedge.files.versions import Versions
from kedge.protocol.files import Unsure
from kedge.protocol.messages import replace_surrogates
from kedge.store.files_port import NewChange, NewWork
from kedge.store.port import Store

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

    def abandon(self, work_id: int) -> None:
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
            self.abandon(work_id)

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

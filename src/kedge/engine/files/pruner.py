"""Remove kept versions of files that no record refers to, and the oldest ones beyond the size limit.

It runs in the background; what fails is tried again the next time.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Mapping

from kedge.engine.concurrency import Tasks
from kedge.files.restore import decode_steps
from kedge.files.states import decode_state
from kedge.files.versions import DEFAULT_MAX_BYTES, Versions
from kedge.store.port import Store

log = logging.getLogger(__name__)

PRUNE_TO = 0.9  # of the limit, so that not every new version starts a pruning


class Pruner:
    def __init__(self, store: Store, versions: Versions, tasks: Tasks) -> None:
        self.max_bytes = DEFAULT_MAX_BYTES  # as configured for the last command
        self._store = store
        self._versions = versions
        self._tasks = tasks

    async def prune_if_full(self) -> None:
        """Start pruning if the versions take more than `max_bytes`."""
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

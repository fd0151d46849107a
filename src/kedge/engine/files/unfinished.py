"""Work on files that was begun and not recorded: of a canceled turn, or of a server that died."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from pathlib import Path

from kedge.engine.files.change_log import ChangeLog
from kedge.engine.files.scanner import Scanner
from kedge.files.listing import CannotScan
from kedge.files.scan import Difference
from kedge.files.states import ABSENT, DIRECTORY, UNREADABLE, decode_state
from kedge.store.files_port import OpenWork
from kedge.store.port import Store

log = logging.getLogger(__name__)


class UnfinishedWork:
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

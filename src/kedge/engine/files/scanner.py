"""Scans of a workspace's tree, and whose changes they find."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from kedge.engine.concurrency import run_in_own_thread
from kedge.engine.files.change_log import Author, ChangeLog
from kedge.engine.files.pruner import Pruner
from kedge.engine.processes.registry import ProcessRegistry
from kedge.files.listing import CannotScan
from kedge.files.scan import Difference
from kedge.files.versions import Versions
from kedge.protocol.errors import NotFound
from kedge.store.files_port import NewWork

log = logging.getLogger(__name__)

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

"""Process groups of this server: each belongs to its turn, until it is kept as a background job of the workspace."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from typing import NamedTuple

from kedge.engine.concurrency import retry_store
from kedge.engine.message_writer import TurnWriter
from kedge.engine.processes import cgroups, process_groups
from kedge.store.port import ProcessRecord, Store

log = logging.getLogger(__name__)

FORGET_S = 2.0  # for removing the record of a group that is gone, if the store has trouble


class _Job(NamedTuple):
    workspace_id: str
    run_id: str


class ProcessRegistry:
    """Background jobs, which end with their workspace or the server, and the commands that users typed themselves."""

    def __init__(self, store: Store, term_s: float, kill_s: float) -> None:
        self.store = store
        self.term_s = term_s
        self.kill_s = kill_s
        self.user_groups: set[ProcessRecord] = set()  # of users' own commands; each leads a session
        self._of_workspaces: dict[ProcessRecord, str] = {}  # groups that belong to no run, by workspace
        self._jobs: dict[ProcessRecord, _Job] = {}
        self._ended: defaultdict[str, list[str]] = defaultdict(list)  # by workspace: runs of jobs that ended lately

    @property
    def has_jobs(self) -> bool:
        return bool(self._jobs)

    def add_job(self, record: ProcessRecord, workspace_id: str, run_id: str) -> None:
        self._jobs[record] = _Job(workspace_id, run_id)

    def discard(self, record: ProcessRecord) -> None:
        self.user_groups.discard(record)
        self._of_workspaces.pop(record, None)
        if job := self._jobs.pop(record, None):
            self._ended[job.workspace_id].append(job.run_id)

    def runs_with_jobs(self, workspace_id: str) -> list[str]:
        """Each run that has a job alive in the workspace, or one that ended since `forget_ended`."""
        alive = [job.run_id for job in self._jobs.values() if job.workspace_id == workspace_id]
        return list(dict.fromkeys([*self._ended.get(workspace_id, ()), *alive]))

    def forget_ended(self, workspace_id: str) -> None:
        self._ended.pop(workspace_id, None)

    async def record_for_workspace(self, workspace_id: str, pid: int) -> WorkspaceProcess:
        """Record the group that `pid` leads: it ends with the workspace or the server, or by the next server.

        If this fails or is canceled, the group is ended.
        """
        record = process_groups.identify(pid)
        self._of_workspaces[record] = workspace_id
        process = WorkspaceProcess(self, record)
        try:
            async with process_groups.join_cgroup(record):
                await retry_store(lambda: self.store.record_workspace_process(workspace_id, record))
        except BaseException:
            await process.end()
            await process.forget()
            raise
        return process

    async def end_jobs(self, workspace_id: str | None = None) -> None:
        """End the jobs and other groups of one workspace, or all jobs. They stay in the store until they are gone.

        At a stop the groups of workspaces are ended by the service that started them.
        """
        due = [record for record, job in self._jobs.items() if workspace_id in (None, job.workspace_id)]
        due += [record for record, each in self._of_workspaces.items() if each == workspace_id]
        if survivors := await self.end_groups(due):
            log.warning("background jobs that cannot be ended: %s", ", ".join(survivors))

    async def end_groups(self, records: list[ProcessRecord]) -> list[str]:
        return await process_groups.end_groups(records, self.term_s, self.kill_s)


class WorkspaceProcess:
    """A handle of a process group that belongs to a workspace, such as an MCP server."""

    def __init__(self, registry: ProcessRegistry, record: ProcessRecord) -> None:
        self._registry = registry
        self._record = record

    @property
    def mark(self) -> str:
        return process_groups.mark_of(self._record)

    async def memory_bytes(self) -> int:
        """Return the memory of all its processes together; 0 where it cannot be read."""
        return await process_groups.memory_bytes(self._record)

    async def end(self) -> list[str]:
        return await self._registry.end_groups([self._record])

    async def forget(self) -> None:
        self._registry.discard(self._record)
        cgroups.remove(self.mark)
        with contextlib.suppress(TimeoutError):  # the record of a group that is gone harms nothing
            async with asyncio.timeout(FORGET_S):
                await retry_store(lambda: self._registry.store.forget_process(self._record))


class ProcessGroup:
    """A tool's handle of a process group. Call `forget` when the group has ended; others are ended with the turn."""

    def __init__(
        self, registry: ProcessRegistry, turn_writer: TurnWriter, of_turn: set[ProcessRecord], record: ProcessRecord
    ) -> None:
        self._registry = registry
        self._turn_writer = turn_writer
        self._of_turn = of_turn
        self.record = record

    @property
    def mark(self) -> str:
        return process_groups.mark_of(self.record)

    async def members(self) -> list[str]:
        return await process_groups.members(self.record)

    def limit(self, *, processes: int, memory_bytes: int) -> None:
        cgroups.limit(self.mark, processes=processes, memory_bytes=memory_bytes)

    async def end(self) -> list[str]:
        return await self._registry.end_groups([self.record])

    async def keep(self) -> None:
        """Make the group a background job: it ends with the workspace or the server, not with the turn."""
        self._turn_writer.check_claim()
        claim, record = self._turn_writer.claim, self.record
        await retry_store(lambda: self._registry.store.keep_process(claim, record))
        self._registry.add_job(record, claim.workspace_id, claim.run_id)
        self._of_turn.discard(record)

    async def forget(self) -> None:
        self._of_turn.discard(self.record)
        self._registry.discard(self.record)
        cgroups.remove(self.mark)
        await retry_store(lambda: self._registry.store.forget_process(self.record))

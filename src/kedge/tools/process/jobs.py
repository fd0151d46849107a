"""Background jobs: commands that outlive their run, and end with their workspace or the server.

Jobs are kept in memory; their processes are recorded, so that the next server ends those of a dead one (P13).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from kedge.protocol import sessions as protocol
from kedge.protocol.errors import NotFound
from kedge.protocol.text_safety import shorten
from kedge.tools.errors import ToolError
from kedge.tools.process.command import Command
from kedge.tools.process.spawn import CommandContext

MAX_JOBS = 50  # running in one workspace; as many ended ones are kept


class Job:
    def __init__(self, id: str, ctx: CommandContext, command: Command, command_line: str, description: str) -> None:
        self.id = id
        self.command = command
        self.command_line = command_line
        self._description = description
        self._session_id = ctx.session_id
        self._run_id = ctx.run_id
        self._started_at = time.time() - command.duration_s

    @property
    def is_running(self) -> bool:
        return not self.command.finished.is_set()

    @property
    def status(self) -> str:
        """One line for the model."""
        command = self.command
        if not self.is_running:
            return f"Job {self.id} has ended ({command.outcome}): {self._short}"
        if command.exit_code is None:
            return f"Job {self.id} is running, for {command.duration_s:.0f} s so far: {self._short}"
        return f"Job {self.id} is running; its shell has ended ({command.outcome}): {self._short}"

    def info(self) -> protocol.Job:
        return protocol.Job(
            id=self.id,
            command=self.command_line,
            description=self._description,
            session_id=self._session_id,
            run_id=self._run_id,
            state="running" if self.is_running else "ended",
            exit_code=self.command.exit_code,
            started_at=self._started_at,
            output_file=str(self.command.saved.path),
        )

    @property
    def _short(self) -> str:
        return shorten(self._description or self.command_line, 80)


class Jobs:
    """The jobs of one workspace."""

    def __init__(self, new_id: Callable[[], str] = lambda: secrets.token_hex(2)) -> None:
        self._jobs: dict[str, Job] = {}  # oldest first
        self._new_id = new_id

    def check_room(self) -> None:
        if sum(job.is_running for job in self._jobs.values()) >= MAX_JOBS:
            raise ToolError(
                f"There are {MAX_JOBS} running background jobs, which is the limit;", f"end some: {self._ids}."
            )

    async def add(self, ctx: CommandContext, command: Command, command_line: str, description: str) -> Job:
        """Turn a running command into a job."""
        await command.keep()
        job = Job(self._free_id(), ctx, command, command_line, description)
        self._jobs[job.id] = job
        ended = [id for id, other in self._jobs.items() if not other.is_running]
        for id in ended[:-MAX_JOBS]:
            del self._jobs[id]
        return job

    def get(self, id: str) -> Job:
        job = self._jobs.get(id.strip())
        if job is None:
            known = f"the jobs are: {self._ids}" if self._jobs else "there are none; the server may have been restarted"
            raise ToolError(f"There is no background job {id!r};", f"{known}.")
        return job

    def list(self) -> list[Job]:
        """Return the jobs, newest first."""
        return list(reversed(self._jobs.values()))

    async def kill(self, id: str) -> Job:
        """End a job for a client. Raises `NotFound`."""
        if id not in self._jobs:
            raise NotFound("job", id)
        job = self._jobs[id]
        if not await job.command.end():
            await job.command.finished.wait()
        return job

    async def close(self) -> None:
        await asyncio.gather(*(job.command.abandon() for job in self._jobs.values()))
        self._jobs.clear()

    @property
    def _ids(self) -> str:
        return ", ".join(self._jobs)

    def _free_id(self) -> str:
        while (id := self._new_id()) in self._jobs:
            pass
        return id


class WorkspaceJobs:
    """The jobs of all workspaces of a server."""

    def __init__(self) -> None:
        self._workspaces: dict[str, Jobs] = {}

    def of(self, workspace_id: str) -> Jobs:
        return self._workspaces.setdefault(workspace_id, Jobs())

    async def close(self) -> None:
        """Stop reading their output. The engine ends the processes."""
        await asyncio.gather(*(jobs.close() for jobs in self._workspaces.values()))

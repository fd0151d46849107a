"""Background jobs: commands that outlive the run that started them, and end with their workspace or the server.

They live in memory; their processes are on record, so that those of a dead server are found (P13).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from kedge.protocol import sessions as protocol
from kedge.protocol.errors import NotFound
from kedge.tools.errors import ToolError
from kedge.tools.port import ToolContext
from kedge.tools.process.command import Command

MAX_JOBS = 50  # at work in one workspace; as many that ended are remembered


class Job:
    def __init__(self, id: str, ctx: ToolContext, command: Command, words: str, description: str) -> None:
        self.id = id
        self.command = command
        self.words = words
        self._description = description
        self._session_id = ctx.session_id
        self._run_id = ctx.run_id
        self._started_at = time.time() - command.took_s

    @property
    def is_running(self) -> bool:
        return not self.command.over.is_set()

    @property
    def status(self) -> str:
        """In one line, for the model."""
        command = self.command
        if not self.is_running:
            return f"Job {self.id} has ended ({command.how_it_ended}): {self._short}"
        if command.exit_code is None:
            return f"Job {self.id} is running, for {command.took_s:.0f} s so far: {self._short}"
        return f"Job {self.id} is running; its shell has ended ({command.how_it_ended}): {self._short}"

    def info(self) -> protocol.Job:
        return protocol.Job(
            id=self.id,
            command=self.words,
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
        words = " ".join((self._description or self.words).split())
        return words if len(words) <= 80 else f"{words[:79]}…"


class Jobs:
    """Those of one workspace."""

    def __init__(self, new_id: Callable[[], str] = lambda: secrets.token_hex(2)) -> None:
        self._jobs: dict[str, Job] = {}  # oldest first
        self._new_id = new_id

    def check_room(self) -> None:
        if sum(job.is_running for job in self._jobs.values()) >= MAX_JOBS:
            raise ToolError(
                f"There are {MAX_JOBS} background jobs at work, the most there may be; end some: {self._ids}."
            )

    async def add(self, ctx: ToolContext, command: Command, words: str, description: str) -> Job:
        """Let a command go on as a job."""
        await command.keep()
        job = Job(self._free_id(), ctx, command, words, description)
        self._jobs[job.id] = job
        ended = [id for id, other in self._jobs.items() if not other.is_running]
        for id in ended[:-MAX_JOBS]:
            del self._jobs[id]
        return job

    def get(self, id: str) -> Job:
        job = self._jobs.get(id.strip())
        if job is None:
            known = f"the jobs are: {self._ids}" if self._jobs else "there are none; the server may have been restarted"
            raise ToolError(f"There is no background job {id!r}; {known}.")
        return job

    def list(self) -> list[Job]:
        """Newest first."""
        return list(reversed(self._jobs.values()))

    async def kill(self, id: str) -> Job:
        """For clients: raises `NotFound`."""
        if id not in self._jobs:
            raise NotFound("job", id)
        job = self._jobs[id]
        if not await job.command.end():
            await job.command.over.wait()
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


class AllJobs:
    """Those of every workspace, as long as the server lives."""

    def __init__(self) -> None:
        self._workspaces: dict[str, Jobs] = {}

    def of(self, workspace_id: str) -> Jobs:
        return self._workspaces.setdefault(workspace_id, Jobs())

    async def close(self) -> None:
        """Follow none any further; the engine ends their processes."""
        await asyncio.gather(*(jobs.close() for jobs in self._workspaces.values()))

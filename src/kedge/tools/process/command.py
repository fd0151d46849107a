"""Running commands, whose output is read until the last process has ended; and background jobs.

A job is a command that outlives its run, and ends with its workspace or the server. Jobs are kept in memory; their
processes are recorded, so that the next server ends those of a dead one (P13).
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path

from kedge.files.safe_open import remove_tree
from kedge.protocol import sessions as protocol
from kedge.protocol.errors import NotFound
from kedge.protocol.text_safety import shorten
from kedge.tools.errors import ToolError
from kedge.tools.process import spawn
from kedge.tools.process.output import Cleaner, Excerpt, OutputFile
from kedge.tools.process.spawn import PIECE, CommandContext, SpawnedCommand
from kedge.tools.sandbox.launch import reap_supervisor
from kedge.tools.sandbox.policy import LaunchSpec, Limits

log = logging.getLogger(__name__)

# How long output is awaited after the shell's end: background processes may keep the pipe open forever.
DRAIN_S = 1.0
LONG_S = 10.0  # from this duration on, a command's result shows it
# Interval at which background processes are checked, at first and at most.
_MIN_CHECK_S, _MAX_CHECK_S = 0.1, 5.0


class Command:
    """`shell_exited` is set when the shell ended and its output is read; `finished` when all processes ended."""

    def __init__(
        self,
        started: SpawnedCommand,
        saved: OutputFile,
        on_text: Callable[[str], None],
        timeout_s: float | None,
        launch_spec: LaunchSpec | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.exit_code: int | None = None
        self.left_running: list[str] = []  # processes still running when the shell ended
        self.timed_out = False
        self.survivors: list[str] = []  # processes that could not be killed
        self.shell_exited = asyncio.Event()
        self.finished = asyncio.Event()
        self.new_output = asyncio.Event()  # there is output since the last `take_output`
        self.growth = asyncio.Event()  # set and replaced when there is output, and at the end
        self.saved = saved
        self._on_text: Callable[[str], None] = on_text
        self._excerpt = Excerpt()
        self._lines = 0  # number of lines before the excerpt
        self._has_output = False  # there is output that `take_output` has not returned
        self._cleaner = Cleaner()
        self._supervisor = launch_spec.supervisor if launch_spec else ""
        self.sandbox = launch_spec.description if launch_spec else ""  # in which it runs, for the model
        self._child, self._record, self._output, self._pipe, self._temporary = started
        self._limit_s = limits.timeout_s(timeout_s) if limits is not None else None
        self._began = time.monotonic()
        self._ended: float | None = None
        self._ending = asyncio.Lock()  # held while processes are ended, so that dying ones do not count as left
        self._tasks = [asyncio.create_task(self._work())]
        if self._limit_s is not None:  # also ends background processes of an unapproved command
            self._tasks.append(asyncio.create_task(self._end_after(self._limit_s, self.finished)))
        elif timeout_s is not None:
            self._tasks.append(asyncio.create_task(self._end_after(timeout_s, self.shell_exited)))
        for task in self._tasks:
            task.add_done_callback(_log_failure)

    @classmethod
    async def start(
        cls,
        ctx: CommandContext,
        command: str,
        directory: Path,
        env: Mapping[str, str],
        on_text: Callable[[str], None],
        timeout_s: float | None,
        launch_spec: LaunchSpec | None = None,
        limits: Limits | None = None,
    ) -> Command:
        """Start a command. `limits` are for an unapproved command without a sandbox; a sandbox has its own."""
        limits = limits or (launch_spec.limits if launch_spec else None)
        started = await spawn.start(ctx, command, directory, env, launch_spec, limits)
        return cls(started, OutputFile(ctx.scratch), on_text, timeout_s, launch_spec, limits)

    @property
    def duration_s(self) -> float:
        return (self._ended or time.monotonic()) - self._began

    @property
    def outcome(self) -> str:
        """How the shell ended, in a few words."""
        code = self.exit_code
        if self.timed_out:
            bound = "" if self._limit_s is None else f" ({self._limit_s:.0f} s without approval)"
            return f"timed out{bound}"
        if code is None:
            return "running"
        return f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"

    @property
    def outcome_with_duration(self) -> str:
        """The outcome, with the duration if it was long: equal results of short commands stay equal."""
        if self.duration_s < LONG_S:
            return self.outcome
        if self.exit_code == 0 and not self.timed_out:
            return f"took {self.duration_s:.0f} s"
        return f"{self.outcome} after {self.duration_s:.0f} s"

    def take_output(self) -> str:
        """Return the output since the last call, shortened in the middle.

        It begins with the whole line, if the last output ended inside one.
        """
        if not self.finished.is_set():  # stays set after the end: no more output comes
            self.new_output.clear()
        if not self._has_output:
            return ""
        self._has_output = False
        excerpt, self._excerpt = self._excerpt, Excerpt(lines_before=self._lines + self._excerpt.newlines)
        self._lines += excerpt.newlines
        self._excerpt.add(excerpt.unfinished_line)
        return excerpt.text(self.saved)

    async def keep(self) -> None:
        """Let the command continue in the background; its output goes only to the file."""
        await self._record.keep()
        self._on_text = lambda _: None
        self.saved.spill()

    async def end(self) -> list[str]:
        """End all processes; returns those that survived."""
        async with self._ending:
            self.survivors = await self._record.end()
        return self.survivors

    async def abandon(self) -> None:
        """Stop reading. The engine ends the recorded processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        pump = asyncio.create_task(self._pump())
        try:
            self.exit_code = await self._child.wait()
            await asyncio.wait({pump}, timeout=DRAIN_S)
            async with self._ending:
                self.left_running = await self._list_left(is_silent=pump.done())
            self._ended = time.monotonic()
            self.shell_exited.set()
            await self._wait_for_background(pump)
            await self._record.forget()
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            self._pipe.close()
            self.saved.close()
            self.shell_exited.set()
            if self._temporary is not None:
                await asyncio.to_thread(remove_tree, self._temporary)
            self.finished.set()
            self.new_output.set()
            self.growth.set()

    async def _list_left(self, *, is_silent: bool) -> list[str]:
        """Without a supervisor: that one has the output open for as long as there are others."""
        if not self._supervisor:
            return await self._record.members()
        if is_silent:
            await reap_supervisor(self._child.pid)
        left = await self._record.members()
        return [each for each in left if not each.startswith(f"{self._supervisor} (")]

    async def _wait_for_background(self, pump: asyncio.Task[None]) -> None:
        pause_s = _MIN_CHECK_S
        left = self.left_running
        while left:
            # The end of the output is a good moment to check again; after it, only time passes.
            if pump.done():
                await asyncio.sleep(pause_s)
            else:
                await asyncio.wait({pump}, timeout=pause_s)
            pause_s = min(pause_s * 2, _MAX_CHECK_S)
            left = await self._record.members()

    async def _pump(self) -> None:
        while data := await self._output.read(PIECE):
            self._add_output(self._cleaner.feed(data))
        self._add_output(self._cleaner.feed(b"", is_last=True))

    def _add_output(self, text: str) -> None:
        if not text:
            return
        self._excerpt.add(text)
        self._has_output = True
        self.saved.write(text)
        self.new_output.set()
        self.growth.set()
        self.growth = asyncio.Event()
        self._on_text(text)

    async def _end_after(self, timeout_s: float, last: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await last.wait()
        except TimeoutError:
            self.timed_out = True
            if await self.end():
                self.shell_exited.set()  # do not wait for processes that cannot be killed


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("a command could not be followed to its end", exc_info=error)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
            return f"Job {self.id} has ended ({command.outcome_with_duration}): {self._short}"
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

    async def wait_output(self, after: int) -> None:
        """Return when there is output behind that byte, or the job has ended."""
        while self.is_running and self.command.saved.size_bytes <= after:
            await self.command.growth.wait()

    def read_output(self, after: int | None) -> protocol.JobOutput:
        """Return output from that byte on; the last of it if None."""
        size = self.command.saved.size_bytes
        start = max(0, size - protocol.MAX_JOB_OUTPUT_BYTES) if after is None else min(after, size)
        info = self.info()  # before the output: it may end in between
        try:
            with self.command.saved.path.open("rb") as file:
                file.seek(start)
                data = file.read(protocol.MAX_JOB_OUTPUT_BYTES)
        except OSError:
            data = b""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data)
        return protocol.JobOutput(job=info, text=text, next=start + len(data) - len(decoder.getstate()[0]))

    @property
    def _short(self) -> str:
        return shorten(self._description or self.command_line, 80)


class Jobs:
    """The jobs of one workspace."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}  # oldest first
        self._is_added = asyncio.Event()  # set and replaced when there is a new job

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
        self._is_added.set()
        self._is_added = asyncio.Event()
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

    def find(self, id: str) -> Job:
        """Return a job for a client. Raises `NotFound`."""
        if id not in self._jobs:
            raise NotFound("job", id)
        return self._jobs[id]

    async def wait_change(self, running: Set[str]) -> None:
        """Return when other jobs are running than these."""
        while running == (now := {id for id, job in self._jobs.items() if job.is_running}):
            changes = [self._is_added.wait(), *(self._jobs[id].command.finished.wait() for id in now)]
            waiting = [asyncio.ensure_future(each) for each in changes]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waiting:
                    each.cancel()

    async def kill(self, id: str) -> Job:
        """End a job for a client. Raises `NotFound`."""
        job = self.find(id)
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
        while (id := secrets.token_hex(2)) in self._jobs:
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

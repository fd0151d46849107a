"""The engine's view of an agent (`Turn`), and the agent's view of the engine (`TurnContext`).

A turn returns when its run is completed and raises when it failed. It should stop when it is canceled; whether it does
or not, from then on its writes raise `ClaimLost`, and the engine completes the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from kedge.engine.concurrency import Tasks, TurnSlot, Waiters, retry_store, sleep_until
from kedge.engine.files.change_log import Author
from kedge.engine.files.recorder import FileRecorder
from kedge.engine.message_writer import MessageWriter, ShellWriter, ToolWriter, TurnWriter
from kedge.engine.processes import process_groups
from kedge.engine.processes.registry import ProcessGroup, ProcessRegistry
from kedge.engine.runs import Runs, check_title
from kedge.engine.workspace_host import WorkspaceHost
from kedge.feed.feeds import Feeds
from kedge.protocol.events import AgentEvent, AgentEventType
from kedge.protocol.files import FileStatus, SessionFile
from kedge.protocol.messages import Message, ShellCommand, ToolResult, replace_surrogates
from kedge.protocol.requests import BY_RUN, Answer, PermissionRequest, QuestionRequest, RequestKind
from kedge.protocol.runs import Effort, Mode, Run, RunEnd, RunOptions, Submission, Usage, Waiting
from kedge.protocol.sessions import SessionDetails
from kedge.store.errors import ClaimLost
from kedge.store.port import CostGrant, DayCost, Past, ProcessRecord, SessionCost, Started, Store


class Turn(Protocol):
    def __call__(self, ctx: TurnContext, /) -> Awaitable[None]: ...


Decide = Callable[[], Awaitable[Answer | None]]


class TurnDeps(NamedTuple):
    """The parts of the engine that turns and session actors use."""

    store: Store
    feeds: Feeds
    runs: Runs
    answers: Waiters[str, Answer]
    modes: Waiters[tuple[str, str], Mode | None]  # by workspace and run: the mode after an event of the run
    processes: ProcessRegistry
    file_recorder: FileRecorder
    tasks: Tasks
    now: Callable[[], float]  # the time of day


class TurnContext:
    def __init__(
        self,
        deps: TurnDeps,
        started: Started,
        turn_writer: TurnWriter,
        slot: TurnSlot,
    ) -> None:
        self.run: Run = started.run
        self.joined: list[Run] = list(started.joined)
        self.options: RunOptions = started.options
        self.model = started.model  # None: the configured one
        self.effort: Effort | None = started.effort
        self.workspace_id = started.claim.workspace_id
        self.directory = Path(turn_writer.feed.path)
        self.env = deps.runs.env.get((self.workspace_id, self.run.run_id))
        self.groups: set[ProcessRecord] = set()
        self._deps = deps
        self._store = deps.store
        self._claim = started.claim
        self._command = started.command
        self._turn_writer = turn_writer
        self._slot = slot

    async def history(self) -> list[Message]:
        """Return the messages that the model may see, oldest first, with this run's prompt and finished steps."""
        return await retry_store(lambda: self._store.history(self._claim.workspace_id, self._claim.session_id))

    async def join(self) -> list[Run]:
        """Let steered prompts join the turn; call it between two steps. Their messages are then in the history."""
        self._turn_writer.check_claim()
        joined = await retry_store(lambda: self._store.join(self._claim))
        self.joined += joined
        return joined

    async def begin_message(self, *, model: str | None = None, summary: bool = False) -> MessageWriter:
        """Create an assistant message: one for each step and attempt."""
        self._turn_writer.check_claim()
        raw = await retry_store(
            lambda: self._store.create_message(self._claim, "assistant", model=model, summary=summary)
        )
        return MessageWriter(self._turn_writer, raw)

    def begin_command(self) -> ShellWriter | None:
        """Return the writer of a shell run's message. None: the command may have run before and is not repeated."""
        self._turn_writer.check_claim()
        if self._command is None:
            return None
        return ShellWriter(self._turn_writer, self._command, ShellCommand(self.run.prompt, "", None))

    async def begin_tool_result(self, message_id: str, call_id: str, name: str) -> ToolWriter:
        """Create the result of a call in message `message_id`. After a crash the call counts as started (P13).

        If it goes on after a restart, return the writer of the result that was begun then.
        """
        self._turn_writer.check_claim()
        call = (message_id, replace_surrogates(call_id), replace_surrogates(name))
        raw = await retry_store(lambda: self._store.create_message(self._claim, "tool", call=call))
        so_far = msgspec.json.decode(raw.parts[0], type=ToolResult).content
        return ToolWriter(self._turn_writer, raw, ToolResult(call[1], call[2], "", False), so_far)

    async def ask_permission(
        self,
        message_id: str,
        call_id: str,
        *,
        tool: str,
        action: str,
        description: str,
        params: dict[str, Any],
        path: str | None = None,
        decide: Decide | None = None,
    ) -> Answer:
        """Ask before a call starts; returns when someone answered, also after a restart of the server.

        `decide` is called when the mode of the run may have changed: an answer of it resolves the request.
        """
        if self.run.permissions == "allow":
            return Answer(action="allow", by=BY_RUN)
        request = PermissionRequest(
            id="",
            session_id="",
            run_id="",
            tool_call_id=call_id,
            tool=tool,
            action=action,
            description=description,
            params=params,
            path=path,
        )
        if self.run.permissions == "deny":
            self._turn_writer.check_claim()
            denial = Answer(action="deny", by=BY_RUN)
            _, answer = await retry_store(
                lambda: self._store.ask(self._claim, "permission", message_id, request, denial)
            )
            return answer or denial
        return await self._ask("permission", message_id, request, decide)

    async def mode(self) -> Mode | None:
        """Return the mode that was chosen for the run. A person may change it at any time."""
        claim = self._claim
        return (await retry_store(lambda: self._store.options_of(claim.workspace_id, claim.run_id))).mode

    @property
    def skips_permissions(self) -> bool:
        """Whether permission requests are switched off for the whole workspace."""
        return self._turn_writer.feed.skips_permissions

    async def grants(self) -> list[PermissionRequest]:
        """Return the requests that were allowed for the rest of this session."""
        return await retry_store(lambda: self._store.grants(self._claim.workspace_id, self._claim.session_id))

    async def session_cost(self) -> SessionCost:
        """Return what the session cost so far, with its sub-agents; a sub-agent's is that of the topmost session."""
        return await retry_store(lambda: self._store.session_cost(self._claim.workspace_id, self._claim.session_id))

    async def cost_grants(self, tool: str) -> list[CostGrant]:
        """Return the requests of `tool` that a person allowed in the session."""
        return await retry_store(
            lambda: self._store.cost_grants(self._claim.workspace_id, self._claim.session_id, tool)
        )

    async def day_cost(self) -> DayCost:
        """Return what all runs of this data directory cost today."""
        return await retry_store(self._store.day_cost)

    async def allow_day_cost(self, day: str, until: float) -> None:
        await retry_store(lambda: self._store.allow_day_cost(day, until))

    async def ask_question(self, message_id: str, call_id: str, questions: list[dict[str, Any]]) -> Answer:
        if self.run.permissions == "deny":
            return Answer(action="cancel", by=BY_RUN)
        request = QuestionRequest(id="", session_id="", run_id="", tool_call_id=call_id, questions=questions)
        return await self._ask("question", message_id, request)

    async def append_event(
        self,
        type: AgentEventType,
        *,
        message: str | None = None,
        error: str | None = None,
        code: str | None = None,
        provider_id: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        """Append an event about this run to the log: a retry, a summary, a wait for a login."""
        self._turn_writer.check_claim()
        event = AgentEvent(
            type=type,
            run_id=self.run.run_id,
            session_id=self.run.session_id,
            error=error,
            code=code,
            provider_id=provider_id,
            message=message,
            details=details,
        )
        await retry_store(lambda: self._store.append_agent_event(self._claim, event))

    def publish_skills(self, state: str, home: str) -> None:
        """Tell clients if the workspace's skills, commands or agents differ from those of the last call."""
        self._turn_writer.feed.publish_skills(state, home)

    def now(self) -> float:
        """Return the time of day, as Unix time."""
        return self._deps.now()

    async def wait(self, waiting: Waiting) -> None:
        """Wait until a time of day, with the slot free. The wait is stored, and continues after a restart."""
        self._turn_writer.check_claim()
        await retry_store(lambda: self._store.set_waiting(self._claim, waiting))
        await self._wait_until(waiting.until)

    async def end_stored_wait(self) -> None:
        """Wait on where an earlier server stopped, if the run was waiting then."""
        if self.run.waiting is not None:
            await self._wait_until(self.run.waiting.until)

    async def waiting_since(self) -> float | None:
        """Return when the run began to wait, if its model has not answered since, also before a restart."""
        return await retry_store(lambda: self._store.waiting_since(self._claim.workspace_id, self.run.run_id))

    def lend_slot(self) -> AbstractAsyncContextManager[None]:
        """Free this turn's slot inside the block, while a person has to act."""
        return self._slot.lend()

    async def add_usage(self, usage: Usage) -> None:
        """Add usage outside of the run's steps."""
        await retry_store(lambda: self._store.count_usage(self._claim, usage))

    async def usage(self) -> Usage:
        """Return the run's usage so far: all attempts, interrupted ones and sub-agents included."""
        return (await retry_store(lambda: self._store.run(self._claim.workspace_id, self.run.run_id))).usage

    async def steps(self) -> int:
        """Count the run's steps in all attempts, also those replaced by a summary."""
        return await retry_store(lambda: self._store.steps(self._claim.workspace_id, self.run.run_id))

    async def past(self) -> Past:
        """Return what the history may no longer show of the session."""
        return await retry_store(lambda: self._store.past(self._claim.workspace_id, self._claim.session_id))

    async def summarized(self) -> list[list[Message]]:
        """Return the run's steps and results after each of its last summaries."""
        return await retry_store(lambda: self._store.summarized(self._claim.workspace_id, self.run.run_id))

    async def changed_files(self) -> list[SessionFile]:
        """Return the files that the session changed so far."""
        from kedge.engine.files.changed_files import list_changed_files  # imports `difflib`: not at the server's start

        claim, root = self._claim, os.fsencode(self.directory)
        versions = self._deps.file_recorder.versions
        changed = await list_changed_files(
            self._store, versions, root, claim.workspace_id, claim.session_id, None, diffs=False
        )
        return changed.files

    async def restored_files(self, message_id: str) -> list[str]:
        """Return the files that an undo of files alone restored since the message before this one."""
        plans = await retry_store(lambda: self._store.files.restores_before(self._claim.session_id, message_id))
        if not plans:
            return []
        from kedge.files.restore import decode_steps  # rarely needed

        prefix = os.fsencode(self.directory) + b"/"
        paths = {step.path for plan in plans for step in decode_steps(plan)}
        return sorted(replace_surrogates(os.fsdecode(path.removeprefix(prefix))) for path in paths)

    async def session(self) -> SessionDetails:
        claim = self._claim
        return await retry_store(lambda: self._store.session(claim.workspace_id, claim.session_id))

    async def tools(self) -> bytes | None:
        """Return what `keep_tools` stored last; None before that."""
        return await retry_store(lambda: self._store.tools(self._claim.session_id))

    async def keep_tools(self, body: bytes) -> None:
        """Store the tools that the session's requests contain. Call it after `keep_surroundings`."""
        self._turn_writer.check_claim()
        await retry_store(lambda: self._store.keep_tools(self._claim, body))

    async def surroundings(self) -> bytes | None:
        """Return what `keep_surroundings` stored; None before that."""
        return await retry_store(lambda: self._store.surroundings(self._claim.session_id))

    async def keep_surroundings(self, body: bytes) -> bytes:
        """Store the surroundings as the session first saw them; returns those that are stored, which never change."""
        self._turn_writer.check_claim()
        return await retry_store(lambda: self._store.keep_surroundings(self._claim, body))

    async def notes(self) -> dict[str, bytes]:
        """Return the session's notes for the model by the message that each is sent with, oldest first."""
        return await retry_store(lambda: self._store.notes(self._claim.session_id))

    async def set_note(self, message_id: str, body: bytes) -> None:
        self._turn_writer.check_claim()
        await retry_store(lambda: self._store.set_note(self._claim, message_id, body))

    async def retitle(self, expected: str, title: str) -> bool:
        """Rename the session if its title is still `expected`; returns whether it was. Also works after the turn."""
        check_title(title)
        return await self._store.retitle_session(self._claim.workspace_id, self._claim.session_id, expected, title)

    async def delegate(
        self,
        prompt: str,
        *,
        title: str = "",
        model: str | None = None,
        options: RunOptions | None = None,
    ) -> RunEnd:
        """Run a prompt as a sub-agent in a child session and wait for its end. Its usage is added to this run's."""
        self._turn_writer.check_claim()
        workspace_id = self._claim.workspace_id
        child = await retry_store(
            lambda: self._store.create_session(
                workspace_id, replace_surrogates(title), parent_session_id=self.run.session_id
            )
        )
        submission = Submission(
            session_id=child.id,
            prompt=prompt,
            kind="agent",
            permissions=self.run.permissions,
            model=model,
            parent_run_id=self.run.run_id,
            options=options or RunOptions(),
        )
        run_id = self._deps.runs.new_id()
        try:
            await retry_store(lambda: self._deps.runs.accept(workspace_id, submission, run_id=run_id, env=self.env))
            return await self._deps.runs.wait_end(workspace_id, run_id)
        except BaseException:
            # The tool call timed out or was canceled, maybe before the run was accepted: nothing waits for its end.
            self._deps.runs.cancel_soon(workspace_id, run_id)
            raise

    @property
    def host(self) -> WorkspaceHost:
        """For services of the workspace that outlive the run."""
        return WorkspaceHost(self._deps.processes, self._turn_writer.feed)

    @property
    def is_stopping(self) -> bool:
        """Whether the server stops, and leaves unfinished runs to the next one."""
        return self._deps.runs.is_stopping

    async def record_process(self, pid: int) -> ProcessGroup:
        """Record the process group that `pid` leads: it is ended with the turn, or by the next server."""
        group = process_groups.identify(pid)
        self.groups.add(group)
        if self.run.kind == "shell":
            self._deps.processes.user_groups.add(group)
        try:
            self._turn_writer.check_claim()
            async with process_groups.join_cgroup(group):
                await retry_store(lambda: self._store.record_process(self._claim, group))
            self._turn_writer.check_claim()
        except ClaimLost:
            # The turn was stopped before the group was recorded: nothing else would end it.
            await self._deps.processes.end_groups([group])
            raise
        return ProcessGroup(self._deps.processes, self._turn_writer, self.groups, group)

    @contextlib.asynccontextmanager
    async def record_change(
        self, path: Path, data: bytes | None = None, counts: tuple[int, int] | None = None
    ) -> AsyncGenerator[None]:
        """Save the old content of a file, then record its change. Raises `NotRecorded`: then do not change it."""
        self._turn_writer.check_claim()
        async with self._deps.file_recorder.record_change(self._author, path, data, counts):
            yield

    async def find_unwatched_reason(self, env: Mapping[str, str], max_bytes: int) -> str | None:
        """Return why changes of commands in the workspace cannot be recorded; None if they can. Scans it."""
        return await self._deps.file_recorder.find_problem(self._author, env, max_bytes)

    async def is_unwatched(self) -> bool:
        """Return whether changes of commands of the session were not recorded, in this run or before."""
        reasons = self._store.files.unwatched_reasons
        return bool(await retry_store(lambda: reasons(self._claim.workspace_id, self._claim.session_id)))

    @contextlib.asynccontextmanager
    async def watch_files(self, env: Mapping[str, str], max_bytes: int) -> AsyncGenerator[dict[Path, FileStatus]]:
        """Record all changes that a command inside the block makes in the workspace: it yields them, after it."""
        self._turn_writer.check_claim()
        recorder = self._deps.file_recorder
        async with recorder.watch(self._author, env, max_bytes, self._append_notice) as changed:
            yield changed
        await recorder.pruner.prune_if_full()

    @property
    def _author(self) -> Author:
        return Author(self.workspace_id, self.run.run_id, self.directory)

    async def _wait_until(self, time_s: float) -> None:
        async with self._slot.lend():
            await sleep_until(time_s, self._deps.now)
        await retry_store(lambda: self._store.set_waiting(self._claim, None))

    async def _append_notice(self, message: str) -> None:
        await self.append_event("notice", message=message)

    async def _ask(
        self,
        kind: RequestKind,
        message_id: str,
        request: PermissionRequest | QuestionRequest,
        decide: Decide | None = None,
    ) -> Answer:
        self._turn_writer.check_claim()
        request_id, answer = await retry_store(lambda: self._store.ask(self._claim, kind, message_id, request))
        if answer is not None:
            return answer
        with self._deps.answers.waiter(request_id) as waiter:
            # The answer may have been committed before the waiter was registered.
            _, answer = await retry_store(lambda: self._store.ask(self._claim, kind, message_id, request))
            if answer is not None:
                return answer
            async with self._slot.lend():
                if decide is not None:
                    await self._watch_mode(request_id, waiter, decide)
                return await waiter

    async def _watch_mode(self, request_id: str, waiter: asyncio.Future[Answer], decide: Decide) -> None:
        """Resolve a permission request with the answer of `decide`, if there is one before that of a person."""
        workspace_id = self._claim.workspace_id
        while not waiter.done():
            with self._deps.modes.waiter((workspace_id, self._claim.run_id)) as switched:
                if (answer := await decide()) is not None:
                    await retry_store(lambda: self._store.answer(workspace_id, "permission", request_id, answer))
                    return
                either: set[asyncio.Future[Any]] = {waiter, switched}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

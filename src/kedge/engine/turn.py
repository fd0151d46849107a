"""What the engine asks of an agent (`Turn`), and what it gives it (`TurnContext`).

A turn returns when its run is completed, and raises when it failed. It stops when it is cancelled; whether it does or
not, from that moment on it can write nothing (`ClaimLost`), and the engine makes the record whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from kedge.engine.concurrency import TurnSlot, retry_store
from kedge.engine.files.recorder import Author
from kedge.engine.message_writer import MessageWriter, ShellWriter, ToolWriter
from kedge.engine.processes import process_groups
from kedge.engine.processes.registry import ProcessGroup
from kedge.engine.turn_writer import TurnWriter
from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import Message, ShellCommand, ToolResult, whole_characters
from kedge.protocol.requests import Answer, PermissionRequest, QuestionRequest, RequestKind
from kedge.protocol.runs import Effort, Run, RunEnd, RunOptions, Submission, Usage
from kedge.protocol.sessions import SessionDetails
from kedge.store.errors import ClaimLost
from kedge.store.port import ProcessRecord, Started

if TYPE_CHECKING:
    from kedge.engine.engine import Engine


class Turn(Protocol):
    def __call__(self, ctx: TurnContext, /) -> Awaitable[None]: ...


class TurnContext:
    """One turn's hands: its run, its history, and every way to write."""

    def __init__(
        self, engine: Engine, started: Started, turn_writer: TurnWriter, slot: TurnSlot, env: Mapping[str, str] | None
    ) -> None:
        self.run: Run = started.run
        self.joined: list[Run] = list(started.joined)
        self.options: RunOptions = started.options
        self.model = started.model  # None: what is configured
        self.effort: Effort | None = started.effort
        self.workspace_id = started.claim.workspace_id
        self.directory = Path(turn_writer.feed.path)
        self.env = env
        self.groups: set[ProcessRecord] = set()
        self._engine = engine
        self._claim = started.claim
        self._command = started.command
        self._desk = turn_writer
        self._slot = slot

    async def history(self) -> list[Message]:
        """The conversation as the model may see it, oldest first, this run's prompt and finished steps included."""
        return await retry_store(lambda: self._engine.store.history(self._claim.workspace_id, self._claim.session_id))

    async def join(self) -> list[Run]:
        """Call at every step boundary: prompts steered here join the turn; their messages are in the history."""
        self._desk.check_claim()
        joined = await retry_store(lambda: self._engine.store.join(self._claim))
        self.joined += joined
        return joined

    async def begin_message(self, *, model: str | None = None, summary: bool = False) -> MessageWriter:
        """Begin an assistant message: one for each step and attempt."""
        self._desk.check_claim()
        store = self._engine.store
        raw = await retry_store(lambda: store.create_message(self._claim, "assistant", model=model, summary=summary))
        return MessageWriter(self._desk, raw)

    def begin_command(self) -> ShellWriter | None:
        """The message of the person's command that this run is; None: it may have run before, and never does again."""
        self._desk.check_claim()
        if self._command is None:
            return None
        return ShellWriter(self._desk, self._command, ShellCommand(self.run.prompt, "", None))

    async def begin_tool_result(self, message_id: str, call_id: str, name: str) -> ToolWriter:
        """Begin to run a call of the assistant message `message_id`. After a crash it counts as started (P13)."""
        self._desk.check_claim()
        call = (message_id, whole_characters(call_id), whole_characters(name))
        raw = await retry_store(lambda: self._engine.store.create_message(self._claim, "tool", call=call))
        return ToolWriter(self._desk, raw, ToolResult(call[1], call[2], "", False))

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
    ) -> Answer:
        """Ask before a call starts; returns when somebody answered, also if that takes a restart of the server."""
        if self.run.permissions == "allow":
            return Answer(action="allow", by="run")
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
            self._desk.check_claim()
            refusal = Answer(action="deny", by="run")
            _, answer = await retry_store(
                lambda: self._engine.store.ask(self._claim, "permission", message_id, request, refusal)
            )
            return answer or refusal
        return await self._ask("permission", message_id, request)

    @property
    def skips_permissions(self) -> bool:
        """Whether somebody switched asking off, for all of the workspace."""
        return self._desk.feed.skips_permissions

    async def grants(self) -> list[PermissionRequest]:
        """What a person allowed for the rest of this session."""
        return await retry_store(lambda: self._engine.store.grants(self._claim.workspace_id, self._claim.session_id))

    async def ask_question(self, message_id: str, call_id: str, questions: list[dict[str, Any]]) -> Answer:
        if self.run.permissions == "deny":
            return Answer(action="cancel", by="run")
        request = QuestionRequest(id="", session_id="", run_id="", tool_call_id=call_id, questions=questions)
        return await self._ask("question", message_id, request)

    async def append_event(self, event: AgentEvent) -> None:
        """Put an event about this run into the log: a retry, a summary, a wait for a login."""
        self._desk.check_claim()
        ours = msgspec.structs.replace(event, run_id=self.run.run_id, session_id=self.run.session_id)
        await retry_store(lambda: self._engine.store.append_agent_event(self._claim, ours))

    def lend_slot(self) -> AbstractAsyncContextManager[None]:
        """While a person has to act: another turn may work in this one's place."""
        return self._slot.lend()

    async def add_usage(self, usage: Usage) -> None:
        """Add to the run what was used beside its steps."""
        await retry_store(lambda: self._engine.store.count_usage(self._claim, usage))

    async def usage(self) -> Usage:
        """What the run used so far: all attempts, interrupted ones and sub-agents included."""
        return (await retry_store(lambda: self._engine.store.run(self._claim.workspace_id, self.run.run_id))).usage

    async def steps(self) -> int:
        """How many steps the run has taken so far, in all attempts, also those that a summary stands for."""
        return await retry_store(lambda: self._engine.store.steps(self._claim.workspace_id, self.run.run_id))

    async def session(self) -> SessionDetails:
        claim = self._claim
        return await retry_store(lambda: self._engine.store.session(claim.workspace_id, claim.session_id))

    async def retitle(self, expected: str, title: str) -> bool:
        """Name the session, unless somebody named it since it was called `expected`; also after the turn's end."""
        return await self._engine.retitle_session(self._claim.workspace_id, self._claim.session_id, expected, title)

    async def delegate(
        self,
        prompt: str,
        *,
        title: str = "",
        model: str | None = None,
        options: RunOptions | None = None,
    ) -> RunEnd:
        """Run a prompt as a sub-agent in a child session, and wait for its end. What it used is counted here, too."""
        self._desk.check_claim()
        workspace_id = self._claim.workspace_id
        child = await retry_store(
            lambda: self._engine.store.create_session(
                workspace_id, whole_characters(title), parent_session_id=self.run.session_id
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
        run_id = self._engine.new_id()
        try:
            await retry_store(lambda: self._engine.accept(workspace_id, submission, run_id=run_id, env=self.env))
            return await self._engine.wait_end(workspace_id, run_id)
        except BaseException:
            # The call is given up (its own time limit, or our cancel), maybe while it was being accepted: nobody waits
            # for the sub-agent any more.
            self._engine.cancel_soon(workspace_id, run_id)
            raise

    async def process_started(self, pid: int) -> ProcessGroup:
        """Record a process group (its leader) of this turn: it is ended with the turn, or by the next server."""
        group = process_groups.identify(pid)
        self.groups.add(group)
        if self.run.kind == "shell":
            self._engine.user_groups.add(group)
        try:
            self._desk.check_claim()
            async with process_groups.enclosing(group):
                await retry_store(lambda: self._engine.store.record_process(self._claim, group))
            self._desk.check_claim()
        except ClaimLost:
            # Started by a turn that was stopped already: nobody else would end it.
            await process_groups.end_groups([group], self._engine.term_s, self._engine.kill_s)
            raise
        return ProcessGroup(self._engine, self._desk, self.groups, group)

    @contextlib.asynccontextmanager
    async def record_change(
        self, path: Path, data: bytes | None = None, counts: tuple[int, int] | None = None
    ) -> AsyncGenerator[None]:
        """Around the change of a file: what it is now is kept first. Raises `NotRecorded`: then leave it alone."""
        self._desk.check_claim()
        async with self._engine.file_recorder.changing(self._author, path, data, counts):
            yield

    @contextlib.asynccontextmanager
    async def watch_files(self, env: Mapping[str, str], max_bytes: int) -> AsyncGenerator[None]:
        """Around a command: whatever it changes in the workspace is kept, and told."""
        self._desk.check_claim()
        recorder = self._engine.file_recorder
        async with recorder.watching(self._author, env, max_bytes, self._notice):
            yield
        await recorder.pruner.prune_if_full()

    @property
    def _author(self) -> Author:
        return Author(self.workspace_id, self.run.run_id, self.directory)

    async def _notice(self, message: str) -> None:
        await self.append_event(AgentEvent(type="notice", run_id="", session_id="", message=message))

    async def _ask(self, kind: RequestKind, message_id: str, request: PermissionRequest | QuestionRequest) -> Answer:
        self._desk.check_claim()
        request_id, answer = await retry_store(lambda: self._engine.store.ask(self._claim, kind, message_id, request))
        if answer is not None:
            return answer
        with self._engine.answers.waiter(request_id) as waiter:
            # Answered before we listened? The row knows.
            _, answer = await retry_store(lambda: self._engine.store.ask(self._claim, kind, message_id, request))
            if answer is not None:
                return answer
            async with self._slot.lend():
                return await waiter

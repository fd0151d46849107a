"""The state of one session: its messages, runs, queue and events of the agent. `block_builder` turns it into blocks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from kedge.client.errors import Dropped
from kedge.client.message_assembly import AssembledMessage, AssembledPart, is_complete
from kedge.protocol.events import AgentEvent, FileChange
from kedge.protocol.files import SessionFile
from kedge.protocol.messages import Delta, Finish, Message, Part, ToolResult, text_in
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from kedge.protocol.runs import Mode, Run, RunEnd, RunStatus, Usage
from kedge.tui.state.blocks import Block
from kedge.tui.state.notes import RunNotes, describe_wait

if TYPE_CHECKING:
    from kedge.client.message_assembly import PartContent

Request = PermissionRequest | QuestionRequest


class MessageState(AssembledMessage):
    def __init__(self, message: Message, seq: int | None) -> None:
        super().__init__()
        self.id = message.id
        self.seq = seq  # of its first event; 0: it was read from the store; None: it came with a snapshot
        self.run_id = message.run_id
        self.session_id = message.session_id
        self.role = message.role
        self.is_summary = message.summary
        self.model = message.model
        self.created_at = message.created_at
        self.finish: Finish | None = None

    @property
    def revision(self) -> int:
        return sum(part.revision + 1 for part in self.parts) + self.is_finished

    def take(self, message: Message, *, is_snapshot: bool) -> None:
        """Take the message as the log or a snapshot has it."""
        self.model = message.model or self.model
        if message.parts and isinstance(message.parts[-1], Finish):
            self.finish = message.parts[-1]
        self.add_parts(map(_read_part, message.parts), is_snapshot=is_snapshot)

    def take_delta(self, delta: Delta) -> None:
        self.add_delta(delta.part, delta.kind, delta.offset, delta.text)


def _read_part(part: Part) -> PartContent:
    tag, text = str(part.__struct_config__.tag), text_in(part)
    is_error, exit_code = getattr(part, "is_error", None), getattr(part, "exit_code", None)
    return tag, text, part, is_complete(tag, text, is_error, exit_code)


class RunSection:
    """Consecutive messages of one run, and the blocks that were built from them."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.messages: list[MessageState] = []
        self.blocks: list[Block] | None = None  # None after a change


class SessionState:
    """`as_of` is the seq at which the messages were read: they include all events up to it."""

    def __init__(self, session_id: str, parent: SessionState | None = None) -> None:
        self.session_id = session_id
        self.parent = parent
        self.as_of = 0
        self.is_read = False  # whether the messages stored before have been read
        self.messages: dict[str, MessageState] = {}  # in the order of their creation
        self.results: dict[str, tuple[MessageState, AssembledPart]] = {}  # by tool call id
        self.runs: dict[str, Run] = {}
        self.ends: dict[str, RunEnd] = {}
        self.notes: dict[str, RunNotes] = {}  # by run
        self.began_at: dict[str, float] = {}  # when this client saw a run begin, of a monotonic clock
        self.took_s: dict[str, float] = {}  # how long the runs took that this client saw begin and end
        self.asked: dict[str, str] = {}  # ids of tool calls that wait for the user, by request id
        self.children: dict[str, SessionState] = {}  # sessions of sub-agents, by id
        self.files: dict[str, FileChange | SessionFile] = {}  # changed files, by path
        self.usage = Usage()
        self.undone_runs: set[str] = set()  # runs without messages because they were undone
        self.sections: list[RunSection] = []
        self.sections_of: dict[str, list[RunSection]] = {}  # by run
        self.blocks: list[Block] | None = None  # built by `block_builder`; None after a change
        self._streamed_runs: set[str] = set()  # their events are newer than anything that is read

    # events and reads

    def read(self, messages: Iterable[Message], as_of: int) -> None:
        """Take the stored messages. Text that was streamed meanwhile stays: text only grows."""
        known, self.messages = self.messages, {}
        self._clear_sections()
        self.results.clear()
        for message in messages:
            state = self.messages[message.id] = known.pop(message.id, None) or MessageState(message, 0)
            state.take(message, is_snapshot=False)
            self._append(state)
        for state in known.values():
            if state.seq is None or state.seq > as_of:  # created after the read; the others were undone
                self.messages[state.id] = state
                self._append(state)
            else:
                self.undone_runs.add(state.run_id)
        self.undone_runs -= self.sections_of.keys()
        self.as_of = as_of
        self.is_read = True
        self.blocks = None
        for run_id in self.runs:
            self._touch(run_id)  # the parent session shows this one's blocks, too

    def read_runs(self, runs: Iterable[RunStatus]) -> None:
        """Take the stored runs: also those that ended without a message."""
        for run in runs:
            if run.run_id in self._streamed_runs:
                continue
            self.runs[run.run_id] = run
            if run.undone:
                self.undone_runs.add(run.run_id)
            if not run.is_open and run.run_id not in self.ends:
                self.ends[run.run_id] = RunEnd(
                    session_id=run.session_id,
                    run_id=run.run_id,
                    message_id=None,
                    text="",
                    usage=run.usage,
                    error=run.error,
                    code=run.code,
                    cancelled=run.state == "cancelled",
                )

    def take_message(self, message: Message, seq: int | None, *, is_deleted: bool) -> None:
        if seq is not None and seq <= self.as_of:
            return
        if is_deleted:
            self._remove(message.id)
            return
        state = self.messages.get(message.id)
        if state is None:
            state = self.messages[message.id] = MessageState(message, seq)
            state.take(message, is_snapshot=seq is None)
            self._append(state)
        else:
            state.take(message, is_snapshot=seq is None)
            self._index_results(state)
        if message.parts:
            self._proceed(message.run_id)
        self._touch(message.run_id)

    def take_delta(self, delta: Delta) -> None:
        message = self.messages.get(delta.message_id)
        if message is None:
            if not self.is_read:
                return  # the read that is under way has its beginning
            raise Dropped("a delta of an unknown message: its beginning was missed")
        message.take_delta(delta)
        self._proceed(delta.run_id)
        self._touch(delta.run_id)

    def take_run(self, run: Run) -> None:
        self._streamed_runs.add(run.run_id)
        self.runs[run.run_id] = run
        if run.state == "running":
            self.began_at.setdefault(run.run_id, time.monotonic())
        self._touch(run.run_id)

    def take_end(self, end: RunEnd) -> None:
        self.ends[end.run_id] = end
        if (began_at := self.began_at.get(end.run_id)) is not None:
            # Events that were missed come all at once: then the messages know better.
            times = [each.created_at for each in self.messages.values() if each.run_id == end.run_id]
            span_s = max(times) - min(times) if times else 0.0
            self.took_s[end.run_id] = max(time.monotonic() - began_at, span_s)
        self._proceed(end.run_id)
        self._touch(end.run_id)

    def take_agent_event(self, event: AgentEvent, seq: int | None) -> None:
        notes = self.notes.setdefault(event.run_id, RunNotes())
        own = (each.id for each in reversed(self.messages.values()) if each.run_id == event.run_id and each.parts)
        key = f"note:{event.run_id}:{seq or len(list(notes))}"
        notes.add(key, event, next(own, None), time.monotonic())
        self._touch(event.run_id)

    def take_request(self, request: Request) -> None:
        self.asked[request.id] = request.tool_call_id
        self._touch(request.run_id)

    def take_resolution(self, request: Request) -> None:
        self.asked.pop(request.id, None)
        self._touch(request.run_id)

    # queries

    @property
    def active(self) -> Run | None:
        return next((run for run in self._open_runs() if run.state == "running" and run.merged_into is None), None)

    def describe_wait(self) -> str | None:
        """What the session waits for: a limit, the network, the next attempt, a download; None if it does not wait."""
        run = self.active
        if run is None:
            return None
        notes = self.notes.get(run.run_id)
        if run.waiting is not None:
            return describe_wait(run.waiting, notes.provider if notes else None, time.time())
        pending = notes.describe_pending(time.monotonic()) if notes else None
        return pending or next(filter(None, (child.describe_wait() for child in self.children.values())), None)

    @property
    def rejected_provider(self) -> str | None:
        """The provider for which the session waits for a new API key."""
        run = self.active
        notes = self.notes.get(run.run_id) if run else None
        return notes.rejected_provider if notes else None

    @property
    def queue(self) -> list[Run]:
        """Queued prompts, the next one first."""
        return sorted((run for run in self._open_runs() if run.state == "queued"), key=lambda run: run.queue_place)

    def find_plan(self, configured: Mode) -> Run | None:
        """Return the last run if it ended with a plan. `configured`: the mode of runs that were sent without one."""
        if self.is_busy or not self.is_read:
            return None
        runs = (run for run in self.runs.values() if run.run_id not in self.undone_runs)
        last = max(runs, key=lambda run: run.seq, default=None)
        if last is None or (last.kind, last.state, last.mode or configured) != ("prompt", "completed", "plan"):
            return None
        ids = (last.run_id, last.merged_into)
        has_text = any(m.run_id in ids and m.role == "assistant" and m.text.strip() for m in self.messages.values())
        return last if has_text else None

    @property
    def is_busy(self) -> bool:
        return any(True for _ in self._open_runs())

    @property
    def todos(self) -> list[tuple[str, str]]:
        """The session's task list, as (status, content)."""
        for _, part in reversed(self.results.values()):
            if isinstance(part.value, ToolResult) and part.value.name == "todos" and part.value.metadata:
                todos = cast("list[dict[str, Any]]", part.value.metadata.get("todos", []))
                return [(str(todo.get("status", "")), str(todo.get("content", ""))) for todo in todos]
        return []

    @property
    def context_tokens(self) -> int:
        """Tokens that the model read and wrote in its last step: the context in use."""
        for message in reversed(self.messages.values()):
            if message.finish and message.finish.usage:
                usage = message.finish.usage
                return usage.output_tokens if message.is_summary else usage.prompt_tokens + usage.output_tokens
        return 0

    def is_open(self, run_id: str) -> bool:
        run = self.runs.get(run_id)
        return run is not None and run.is_open

    def _open_runs(self) -> Iterator[Run]:
        return (run for run in self.runs.values() if run.is_open)

    def _proceed(self, run_id: str) -> None:
        if notes := self.notes.get(run_id):
            notes.proceed()

    def _append(self, message: MessageState) -> None:
        if not self.sections or self.sections[-1].run_id != message.run_id:
            earlier = self.sections_of.setdefault(message.run_id, [])
            for section in earlier:
                section.blocks = None  # it is no longer the last of its run
            earlier.append(RunSection(message.run_id))
            self.sections.append(earlier[-1])
        self.sections[-1].messages.append(message)
        self._index_results(message)

    def _index_results(self, message: MessageState) -> None:
        if message.role == "tool":
            for part in message.parts:
                if isinstance(part.value, ToolResult):
                    self.results[part.value.tool_call_id] = (message, part)

    def _remove(self, message_id: str) -> None:
        message = self.messages.pop(message_id, None)
        if message is None:
            return
        self._clear_sections()
        for each in self.messages.values():
            self._append(each)
        self._touch(message.run_id)

    def _clear_sections(self) -> None:
        self.sections.clear()
        self.sections_of.clear()

    def _touch(self, run_id: str) -> None:
        """Have the blocks of a run built again, here and in the parent session."""
        self.blocks = None
        for section in self.sections_of.get(run_id, ()):
            section.blocks = None
        if self.parent is not None:
            run = self.runs.get(run_id)
            if run is not None and run.parent_run_id is not None:
                self.parent._touch(run.parent_run_id)

"""One session as the interface has it: its messages, runs, queue and notes. Only what changed is shown anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from kedge.client.errors import Dropped
from kedge.client.message_assembly import AssembledPart
from kedge.protocol.events import AgentEvent, FileChange
from kedge.protocol.files import SessionFile
from kedge.protocol.messages import Delta, Message, ToolResult
from kedge.protocol.runs import Run, RunEnd, RunStatus, Usage
from kedge.tui.state.block_builder import note_of, show
from kedge.tui.state.blocks import Block, Note
from kedge.tui.state.message import MessageState

if TYPE_CHECKING:
    from kedge.tui.state.workspace import Request


class Segment:
    """Messages of one run that follow each other, and the blocks they made when they last changed."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.messages: list[MessageState] = []
        self.blocks: list[Block] | None = None


class SessionState:
    """Of one session. `as_of` is the seq that the messages were read at: what the log said before is in them."""

    def __init__(self, session_id: str, parent: SessionState | None = None) -> None:
        self.session_id = session_id
        self.parent = parent
        self.as_of = 0
        self.is_read = False  # whether the messages from before are there
        self.messages: dict[str, MessageState] = {}  # in the order of their creation
        self.results: dict[str, tuple[MessageState, AssembledPart]] = {}  # by the id of their call
        self.runs: dict[str, Run] = {}
        self.ends: dict[str, RunEnd] = {}
        self.notes: dict[str, list[Note]] = {}  # by run
        self.asked: dict[str, str] = {}  # calls that wait for a person, by the id of the request
        self.children: dict[str, SessionState] = {}  # by the id of the child's session
        self.files: dict[str, FileChange | SessionFile] = {}  # that it changed, by path
        self.usage = Usage()
        self._heard: set[str] = set()  # runs that the stream told of: what is read of them is older
        self._undone: set[str] = set()  # runs whose messages went: they have nothing more to say
        self._segments: list[Segment] = []
        self._segments_of: dict[str, list[Segment]] = {}  # by run
        self._blocks: list[Block] | None = None

    # what comes in

    def read(self, messages: Iterable[Message], as_of: int) -> None:
        """What REST has. What was heard meanwhile stays: text only grows."""
        heard, self.messages = self.messages, {}
        self._segments.clear()
        self._segments_of.clear()
        self.results.clear()
        for message in messages:
            view = self.messages[message.id] = heard.pop(message.id, None) or MessageState(message, 0)
            view.take(message, is_snapshot=False)
            self._place(view)
        for view in heard.values():
            if view.seq is None or view.seq > as_of:  # created after what was read; others were undone
                self.messages[view.id] = view
                self._place(view)
            else:
                self._undone.add(view.run_id)
        self._undone -= self._segments_of.keys()
        self.as_of = as_of
        self.is_read = True
        self._blocks = None
        for run_id in self.runs:
            self._touch(run_id)  # the page of the session that sent this one out shows it, too

    def read_runs(self, runs: Iterable[RunStatus]) -> None:
        """Runs of before: how those ended that left no message, too."""
        for run in runs:
            if run.run_id in self._heard:
                continue
            self.runs[run.run_id] = run
            if run.undone:
                self._undone.add(run.run_id)
            if not run.is_open and run.run_id not in self.ends:
                is_cancelled = run.state == "cancelled"
                self.ends[run.run_id] = RunEnd(
                    session_id=run.session_id,
                    run_id=run.run_id,
                    message_id=None,
                    text="",
                    usage=run.usage,
                    error=run.error,
                    code=run.code,
                    cancelled=is_cancelled,
                )

    def take_message(self, message: Message, seq: int | None, *, is_deleted: bool) -> None:
        if seq is not None and seq <= self.as_of:
            return
        if is_deleted:
            self._remove(message.id)
            return
        view = self.messages.get(message.id)
        if view is None:
            view = self.messages[message.id] = MessageState(message, seq)
            view.take(message, is_snapshot=seq is None)
            self._place(view)
        else:
            view.take(message, is_snapshot=seq is None)
            self._index(view)
        self._touch(message.run_id)

    def take_delta(self, delta: Delta) -> None:
        view = self.messages.get(delta.message_id)
        if view is None:
            if not self.is_read:
                return  # its beginning is on the way
            raise Dropped("a delta of an unknown message: its beginning was missed")
        view.take_delta(delta)
        self._touch(delta.run_id)

    def take_run(self, run: Run) -> None:
        self._heard.add(run.run_id)
        self.runs[run.run_id] = run
        self._touch(run.run_id)

    def take_end(self, end: RunEnd) -> None:
        self.ends[end.run_id] = end
        self._touch(end.run_id)

    def take_agent_event(self, event: AgentEvent, seq: int | None) -> None:
        notes = self.notes.setdefault(event.run_id, [])
        note = note_of(event, f"note:{event.run_id}:{seq or len(notes)}")
        if note is not None and all(known.key != note.key for known in notes):
            notes.append(note)
            self._touch(event.run_id)

    def take_request(self, request: Request) -> None:
        self.asked[request.id] = request.tool_call_id
        self._touch(request.run_id)

    def take_resolution(self, request: Request) -> None:
        self.asked.pop(request.id, None)
        self._touch(request.run_id)

    # what is asked

    @property
    def active(self) -> Run | None:
        return next((run for run in self._open() if run.state == "running" and run.merged_into is None), None)

    @property
    def queue(self) -> list[Run]:
        """Prompts that wait, in the order of acceptance."""
        return sorted((run for run in self._open() if run.state == "queued"), key=lambda run: run.seq)

    @property
    def is_busy(self) -> bool:
        return any(True for _ in self._open())

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
        """What the model read and wrote in its last step: how full its context is."""
        for message in reversed(self.messages.values()):
            if message.finish and message.finish.usage:
                usage = message.finish.usage
                return usage.output_tokens if message.is_summary else usage.prompt_tokens + usage.output_tokens
        return 0

    @property
    def model(self) -> str | None:
        """The one that spoke last."""
        return next((message.model for message in reversed(self.messages.values()) if message.model), None)

    def is_open(self, run_id: str) -> bool:
        run = self.runs.get(run_id)
        return run is not None and run.is_open

    def blocks(self) -> list[Block]:
        """From top to bottom: the same list as long as nothing changed."""
        if self._blocks is None:
            self._blocks = []
            for segment in self._segments:
                if segment.blocks is None:
                    is_last = self._segments_of[segment.run_id][-1] is segment
                    segment.blocks = show(self, segment.run_id, segment.messages, is_last=is_last)
                self._blocks += segment.blocks
            for run in sorted(self.runs.values(), key=lambda run: run.seq):
                # It ended, or says something, before its first message.
                if run.run_id not in self._segments_of and run.run_id not in self._undone:
                    self._blocks += show(self, run.run_id, [], is_last=True)
        return self._blocks

    def _open(self) -> Iterator[Run]:
        return (run for run in self.runs.values() if run.is_open)

    def _place(self, view: MessageState) -> None:
        if not self._segments or self._segments[-1].run_id != view.run_id:
            earlier = self._segments_of.setdefault(view.run_id, [])
            for segment in earlier:
                segment.blocks = None  # it is not the last of its run any more
            earlier.append(Segment(view.run_id))
            self._segments.append(earlier[-1])
        self._segments[-1].messages.append(view)
        self._index(view)

    def _index(self, view: MessageState) -> None:
        if view.role == "tool":
            for part in view.parts:
                if isinstance(part.value, ToolResult):
                    self.results[part.value.tool_call_id] = (view, part)

    def _remove(self, message_id: str) -> None:
        view = self.messages.pop(message_id, None)
        if view is None:
            return
        left = list(self.messages.values())
        self._segments.clear()
        self._segments_of.clear()
        for each in left:
            self._place(each)
        self._touch(view.run_id)

    def _touch(self, run_id: str) -> None:
        self._blocks = None
        for segment in self._segments_of.get(run_id, ()):
            segment.blocks = None
        if self.parent is not None:
            run = self.runs.get(run_id)
            if run is not None and run.parent_run_id is not None:
                self.parent._touch(run.parent_run_id)

"""One session as the interface has it: its messages, runs, queue and notes, and the blocks they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from kedge.client.errors import Dropped
from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import Delta, File, Image, Message, Reasoning, ShellCommand, Text, ToolCall, ToolResult
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from kedge.protocol.runs import Run, RunEnd
from kedge.protocol.usage import Usage
from kedge.tui.story.blocks import Block, Call, CallState, End, Note, Prompt, Shell, Thoughts, Words
from kedge.tui.story.message import MessageView, PartView

Request = PermissionRequest | QuestionRequest


class Page:
    """Of one session. `as_of` is the seq that the messages were read at: what the log said before is in them."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.as_of = 0
        self.is_read = False  # whether the messages from before are there
        self.messages: dict[str, MessageView] = {}  # in the order of their creation
        self.runs: dict[str, Run] = {}
        self.ends: dict[str, RunEnd] = {}
        self.notes: dict[str, list[Note]] = {}  # by run
        self.children: dict[str, Page] = {}  # by the id of the child's session
        self.usage = Usage()

    # what comes in

    def read(self, messages: Iterable[Message], as_of: int) -> None:
        """What REST has. What was heard meanwhile stays: text only grows."""
        heard, self.messages = self.messages, {}
        for message in messages:
            view = self.messages[message.id] = heard.pop(message.id, None) or MessageView(message)
            view.take(message, is_snapshot=True)
            for part in view.parts if view.finish else ():
                part.is_whole = True
        self.messages |= heard  # created after what was read
        self.as_of = as_of
        self.is_read = True

    def take_message(self, message: Message, seq: int | None, *, is_deleted: bool) -> None:
        if seq is not None and seq <= self.as_of:
            return
        if is_deleted:
            self.messages.pop(message.id, None)
            return
        view = self.messages.get(message.id)
        if view is None:
            view = self.messages[message.id] = MessageView(message)
        view.take(message, is_snapshot=seq is None)

    def take_delta(self, delta: Delta) -> None:
        view = self.messages.get(delta.message_id)
        if view is None:
            if not self.is_read:
                return  # its beginning is on the way
            raise Dropped("a delta of an unknown message: its beginning was missed")
        view.take_delta(delta)

    def take_run(self, run: Run) -> None:
        self.runs[run.run_id] = run

    def take_end(self, end: RunEnd) -> None:
        self.ends[end.run_id] = end
        self.usage += end.usage

    def take_agent_event(self, event: AgentEvent, seq: int | None) -> None:
        notes = self.notes.setdefault(event.run_id, [])
        note = _note(event, f"note:{event.run_id}:{seq or len(notes)}")
        if note is not None and all(known.key != note.key for known in notes):
            notes.append(note)

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
        for message in reversed(list(self.messages.values())):
            for part in message.parts:
                if isinstance(part.head, ToolResult) and part.head.name == "todos" and part.head.metadata:
                    todos = part.head.metadata.get("todos", [])
                    return [(str(todo.get("status", "")), str(todo.get("content", ""))) for todo in todos]
        return []

    @property
    def prompt_tokens(self) -> int:
        """What the model read in its last step: how full the context is."""
        for message in reversed(list(self.messages.values())):
            if message.finish and message.finish.usage:
                usage = message.finish.usage
                return usage.prompt_tokens + usage.output_tokens
        return 0

    def _open(self) -> Iterator[Run]:
        return (run for run in self.runs.values() if run.is_open)

    # what is shown

    def blocks(self, requests: Iterable[Request] = ()) -> list[Block]:
        asked = {request.tool_call_id for request in requests}
        results = {
            part.head.tool_call_id: (message, part)
            for message in self.messages.values()
            if message.role == "tool"
            for part in message.parts
            if isinstance(part.head, ToolResult)
        }
        blocks: list[Block] = []
        told: set[str] = set()
        last_of = {message.run_id: message.id for message in self.messages.values()}
        for message in self.messages.values():
            blocks += self._of_message(message, results, asked)
            if last_of[message.run_id] == message.id:
                blocks += self._after(message.run_id)
                told.add(message.run_id)
        for run_id in self.notes.keys() | self.ends.keys():  # of runs that failed before their first message
            run = self.runs.get(run_id)
            if run_id not in told and run is not None and (self.notes.get(run_id) or self._failed(run_id)):
                blocks.append(Prompt(key=f"prompt:{run_id}", text=run.prompt))
                blocks += self._after(run_id)
        return blocks

    def _of_message(
        self, message: MessageView, results: dict[str, tuple[MessageView, PartView]], asked: set[str]
    ) -> Iterator[Block]:
        if message.role == "user":
            yield from self._of_user(message)
        elif message.role == "assistant":
            if message.is_summary:
                text = "summarizing the conversation…" if message.finish is None else "the conversation was summarized"
                yield Note(
                    key=f"{message.id}:summary",
                    revision=message.revision,
                    message_id=message.id,
                    kind="summary",
                    text=text,
                    details=message.text,
                )
                return
            for index, part in enumerate(message.parts):
                key, is_open = f"{message.id}:{index}", message.finish is None and not part.is_whole
                match part.head:
                    case Text() if part.text.strip():
                        yield Words(
                            key=key,
                            revision=part.revision * 2 + is_open,
                            message_id=message.id,
                            text=part.text,
                            is_open=is_open,
                            is_interrupted=message.finish is not None and message.finish.reason == "interrupted",
                        )
                    case Reasoning(redacted=redacted) if part.text.strip() or redacted:
                        yield Thoughts(
                            key=key,
                            revision=part.revision * 2 + is_open,
                            message_id=message.id,
                            text=part.text,
                            is_open=is_open,
                            is_redacted=redacted,
                        )
                    case ToolCall():
                        yield self._of_call(message, part, part.head, results.get(part.head.id), asked)
                    case _:
                        pass

    def _of_user(self, message: MessageView) -> Iterator[Block]:
        for index, part in enumerate(message.parts):
            if isinstance(part.head, ShellCommand):
                shell = part.head
                yield Shell(
                    key=f"{message.id}:{index}",
                    revision=part.revision,
                    message_id=message.id,
                    command=shell.command,
                    output=shell.output,
                    exit_code=shell.exit_code,
                    is_open=message.finish is None and shell.exit_code is None and self._is_open(message.run_id),
                )
        names = tuple(
            part.head.name if isinstance(part.head, File) else part.head.mime_type
            for part in message.parts
            if isinstance(part.head, File | Image)
        )
        if message.text or names:
            yield Prompt(
                key=f"prompt:{message.run_id}:{message.id}",
                revision=message.revision,
                message_id=message.id,
                text=message.text,
                attachments=names,
            )

    def _of_call(
        self,
        message: MessageView,
        part: PartView,
        call: ToolCall,
        result: tuple[MessageView, PartView] | None,
        asked: set[str],
    ) -> Call:
        state, output, final, images = self._state_of(message, call, result, asked)
        child = self._child_of(message.run_id, part.text) if call.name == "agent" else None
        blocks = tuple(child.blocks()) if child else ()
        revision = part.revision + (result[1].revision if result else 0) + sum(1 + block.revision for block in blocks)
        return Call(
            key=f"{message.id}:{call.id}",
            revision=revision * 10 + _STATES.index(state),
            message_id=message.id,
            call_id=call.id,
            name=call.name,
            input=part.text,
            state=state,
            output=output,
            result=final,
            images=images,
            child=blocks,
            child_session_id=child.session_id if child else None,
        )

    def _state_of(
        self, message: MessageView, call: ToolCall, result: tuple[MessageView, PartView] | None, asked: set[str]
    ) -> tuple[CallState, str, ToolResult | None, int]:
        if result is not None:
            told, part = result
            assert isinstance(part.head, ToolResult)
            if told.finish is not None or part.is_whole:
                images = sum(isinstance(each.head, Image) for each in told.parts)
                return ("failed" if part.head.is_error else "done"), part.text, part.head, images
            return "running", part.text, None, 0
        if call.id in asked:
            return "asking", "", None, 0
        if message.finish is not None and not self._is_open(message.run_id):
            return "interrupted", "", None, 0
        return ("waiting" if call.finished else "writing"), "", None, 0

    def _child_of(self, run_id: str, call_input: str) -> Page | None:
        """The sub-agent that a call sent out: it was given the call's own prompt."""
        try:
            prompt = msgspec.json.decode(call_input, type=dict[str, object]).get("prompt")
        except msgspec.DecodeError:
            return None
        for page in self.children.values():
            if any(run.parent_run_id == run_id and run.prompt == prompt for run in page.runs.values()):
                return page
        return None

    def _after(self, run_id: str) -> Iterator[Block]:
        yield from self.notes.get(run_id, ())
        end = self.ends.get(run_id)
        if end is None:
            return
        if end.cancelled:
            yield Note(key=f"end:{run_id}", kind="cancelled", text="cancelled")
        elif end.error is not None:
            if not any(note.kind == "error" for note in self.notes.get(run_id, ())):
                yield Note(key=f"end:{run_id}", kind="error", text=end.error)
        else:
            message = self.messages.get(end.message_id or "")
            if message is not None:
                reason = message.finish.reason if message.finish else None
                yield End(key=f"end:{run_id}", reason=reason, model=message.model, usage=end.usage)

    def _failed(self, run_id: str) -> bool:
        end = self.ends.get(run_id)
        return end is not None and end.error is not None

    def _is_open(self, run_id: str) -> bool:
        run = self.runs.get(run_id)
        return run is not None and run.is_open


_STATES: tuple[CallState, ...] = ("writing", "asking", "waiting", "running", "done", "failed", "interrupted")


def _note(event: AgentEvent, key: str) -> Note | None:
    match event.type:
        case "error":
            return Note(key=key, kind="error", text=event.error or event.message or "the run failed")
        case "retry" | "re_authenticate":
            return Note(key=key, kind="warning", text=event.message or event.error or event.type)
        case "summarize":
            return Note(key=key, kind="info", text=event.message) if event.message else None
        case "notice":
            return Note(key=key, kind="info", text=event.message or "")

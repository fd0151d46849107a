"""The blocks of a run's messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from kedge.client.message_assembly import AssembledPart
from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import File, Image, Reasoning, ShellCommand, ToolCall, ToolResult
from kedge.tui.state.blocks import Block, Call, CallState, End, Note, Prompt, Shell, Thoughts, Words
from kedge.tui.state.message import MessageState

if TYPE_CHECKING:
    from kedge.tui.state.session import SessionState

_UNKNOWN_CALL = ToolCall("", "", "", finished=False)  # until the log or a snapshot has named it
_STATES: tuple[CallState, ...] = ("writing", "asking", "waiting", "running", "done", "failed", "interrupted")


def show(session: SessionState, run_id: str, messages: Iterable[MessageState], *, is_last: bool) -> list[Block]:
    """Messages of one run that follow each other; below the last of them, how the run ended."""
    blocks = [block for message in messages for block in _of_message(session, message)]
    if is_last:
        after = list(_after(session, run_id))
        run = session.runs.get(run_id)
        if not blocks and (end := session.ends.get(run_id)) is not None and end.cancelled:
            return []  # it was taken out of the queue: it never was part of the conversation (P7)
        if after and not blocks and run is not None:
            blocks.append(Prompt(key=f"prompt:{run_id}", text=run.prompt, is_shell=run.kind == "shell"))
        blocks += after
    return blocks


def note_of(event: AgentEvent, key: str) -> Note | None:
    match event.type:
        case "error":
            return Note(key=key, kind="error", text=event.error or event.message or "the run failed")
        case "retry" | "re_authenticate":
            return Note(key=key, kind="warning", text=event.message or event.error or event.type)
        case "summarize" | "notice":
            return Note(key=key, kind="info", text=event.message) if event.message else None


def _of_message(session: SessionState, message: MessageState) -> Iterator[Block]:
    match message.role:
        case "user":
            yield from _of_user(session, message)
        case "assistant" if message.is_summary:
            is_open = not message.is_finished
            text = "summarizing the conversation…" if is_open else "the conversation was summarized"
            yield Note(
                key=f"{message.id}:summary",
                revision=message.revision,
                message_id=message.id,
                kind="summary",
                text=text,
                details=message.text,
            )
        case "assistant":
            for index, part in enumerate(message.parts):
                if block := _of_part(session, message, index, part):
                    yield block
        case _:
            pass  # a tool's result is shown with its call


def _of_part(session: SessionState, message: MessageState, index: int, part: AssembledPart) -> Block | None:
    is_open = message.finish is None and not part.is_final
    is_interrupted = message.finish is not None and message.finish.reason == "interrupted"
    key, revision = f"{message.id}:{index}", part.revision * 4 + is_open * 2 + is_interrupted
    match part.type:
        case "text" if part.text.strip():
            return Words(
                key=key,
                revision=revision,
                message_id=message.id,
                text=part.text,
                is_open=is_open,
                is_interrupted=is_interrupted,
            )
        case "reasoning" if part.text.strip() or _is_redacted(part):
            return Thoughts(
                key=key,
                revision=revision,
                message_id=message.id,
                text=part.text,
                is_open=is_open,
                is_redacted=_is_redacted(part),
            )
        case "tool_call":
            call = part.value if isinstance(part.value, ToolCall) else _UNKNOWN_CALL
            return _of_call(session, message, part, call)
        case _:
            return None


def _is_redacted(part: AssembledPart) -> bool:
    return isinstance(part.value, Reasoning) and part.value.redacted


def _of_user(session: SessionState, message: MessageState) -> Iterator[Block]:
    for index, part in enumerate(message.parts):
        if isinstance(part.value, ShellCommand):
            shell = part.value
            yield Shell(
                key=f"{message.id}:{index}",
                revision=part.revision * 2 + session.is_open(message.run_id),
                message_id=message.id,
                command=shell.command,
                output=part.text,
                exit_code=shell.exit_code,
                is_open=shell.exit_code is None and session.is_open(message.run_id),
            )
    names = tuple(
        part.value.name if isinstance(part.value, File) else part.value.mime_type
        for part in message.parts
        if isinstance(part.value, File | Image)
    )
    if message.text or names:
        yield Prompt(
            key=f"prompt:{message.id}",
            revision=message.revision,
            message_id=message.id,
            text=message.text,
            attachments=names,
        )


def _of_call(session: SessionState, message: MessageState, part: AssembledPart, call: ToolCall) -> Call:
    result = session.results.get(call.id)
    state, output, final, images = _state_of(session, message, call, result)
    child = _child_of(session, message.run_id, part.text) if call.name == "agent" else None
    blocks = tuple(child.blocks()) if child else ()
    changes = part.revision + (result[1].revision if result else 0) + sum(1 + block.revision for block in blocks)
    return Call(
        key=f"{message.id}:{call.id}",
        revision=changes * len(_STATES) + _STATES.index(state),
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
    session: SessionState, message: MessageState, call: ToolCall, result: tuple[MessageState, AssembledPart] | None
) -> tuple[CallState, str, ToolResult | None, int]:
    if result is not None:
        told, part = result
        assert isinstance(part.value, ToolResult)
        if told.finish is not None or part.is_final:
            images = sum(isinstance(each.value, Image) for each in told.parts)
            return ("failed" if part.value.is_error else "done"), part.text, part.value, images
        return "running", part.text, None, 0
    if call.id in session.asked.values():
        return "asking", "", None, 0
    if message.finish is not None and not session.is_open(message.run_id):
        return "interrupted", "", None, 0
    return ("waiting" if call.finished else "writing"), "", None, 0


def _child_of(session: SessionState, run_id: str, call_input: str) -> SessionState | None:
    """The sub-agent that a call sent out: it was given the call's own prompt."""
    try:
        prompt = msgspec.json.decode(call_input, type=dict[str, object]).get("prompt")
    except msgspec.DecodeError:
        return None
    for child in session.children.values():
        if any(run.parent_run_id == run_id and run.prompt == prompt for run in child.runs.values()):
            return child
    return None


def _after(session: SessionState, run_id: str) -> Iterator[Block]:
    notes = session.notes.get(run_id, [])
    yield from notes
    end = session.ends.get(run_id)
    if end is None:
        return
    if end.cancelled:
        yield Note(key=f"end:{run_id}", kind="cancelled", text="cancelled")
    elif end.error is not None:
        if not any(note.kind == "error" for note in notes):
            yield Note(key=f"end:{run_id}", kind="error", text=end.error)
    elif (
        message := _answer_of(session, end.message_id, run_id)
    ) and message.role == "assistant":  # commands ask no model
        reason = message.finish.reason if message.finish else None
        yield End(key=f"end:{run_id}", message_id=message.id, reason=reason, model=message.model, usage=end.usage)


def _answer_of(session: SessionState, message_id: str | None, run_id: str) -> MessageState | None:
    if message_id is not None:
        return session.messages.get(message_id)
    for message in reversed(session.messages.values()):
        if message.run_id == run_id and message.role == "assistant" and not message.is_summary:
            return message
    return None

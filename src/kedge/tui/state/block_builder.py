"""Builds the blocks of a session. Blocks of runs that did not change are kept from the last time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kedge.client.message_assembly import AssembledPart
from kedge.protocol.messages import File, Image, Reasoning, ShellCommand, ToolCall, ToolResult
from kedge.protocol.tool_input import correct_params, parse_tool_input
from kedge.tui.state.blocks import (
    Block,
    CallBlock,
    CallState,
    EndBlock,
    NoteBlock,
    PromptBlock,
    ReasoningBlock,
    ShellBlock,
    TextBlock,
)
from kedge.tui.state.session import MessageState, SessionState

_UNNAMED_CALL = ToolCall("", "", "", finished=False)  # while only deltas of it have come
_STATES: tuple[CallState, ...] = ("writing", "asking", "waiting", "running", "done", "failed", "interrupted")
_DENIED = {"bash": "command", "edit": "edit", "multiedit": "edit", "write": "edit", "fetch": "request"}
_FAILURES = ("interrupted", "error", "canceled")
_SUMMARY_REASONS = {"full": "The context was nearly full. ", "refused": "The conversation was too long. "}
# By `metadata.refused` of the result.
_REFUSED = {
    "mode": "Not allowed in plan mode.",
    "hook": "Denied by a hook.",
    "unattended": "Denied: it needs approval, and this run has nobody to ask.",
    "no_sandbox": "Denied: the sandbox is unavailable.",
}


def build_blocks(session: SessionState) -> list[Block]:
    """Return the session's blocks from top to bottom: the same list until something changes."""
    if session.blocks is None:
        session.blocks = []
        for section in session.sections:
            if section.blocks is None:
                is_last = session.sections_of[section.run_id][-1] is section
                section.blocks = _build_run(session, section.run_id, section.messages, is_last=is_last)
            session.blocks += section.blocks
        for run in sorted(session.runs.values(), key=lambda run: run.seq):
            # A run may end, or have a note, before its first message.
            if run.run_id not in session.sections_of and run.run_id not in session.undone_runs:
                session.blocks += _build_run(session, run.run_id, [], is_last=True)
    return session.blocks


def _build_run(session: SessionState, run_id: str, messages: Sequence[MessageState], *, is_last: bool) -> list[Block]:
    """Build consecutive messages of one run, with the notes in their places; after the last of them, its end."""
    end, run, notes = session.ends.get(run_id), session.runs.get(run_id), session.notes.get(run_id)
    sections = session.sections_of.get(run_id, [])
    has_summary = any(message.is_summary for section in sections for message in section.messages)
    is_first = not sections or (bool(messages) and sections[0].messages[0] is messages[0])
    blocks: list[Block] = list(notes.build([None], has_summary=has_summary)) if notes and is_first else []
    for message in messages:
        blocks += _build_message(session, message)
        blocks += notes.build([message.id], has_summary=has_summary) if notes else []
    if not is_last:
        return blocks
    if not messages and end is not None and end.cancelled and not blocks:
        return []  # it was removed from the queue and never was part of the conversation (P7)
    blocks += _build_end(session, run_id)
    if blocks and not messages and run is not None and run.kind != "summarize":
        blocks.insert(0, PromptBlock(key=f"prompt:{run_id}", text=run.prompt, is_shell=run.kind == "shell"))
    return blocks


def _build_message(session: SessionState, message: MessageState) -> Iterator[Block]:
    match message.role:
        case "user":
            yield from _build_prompt(session, message)
        case "assistant" if message.is_summary:
            if message.finish is None or message.finish.reason not in _FAILURES:
                yield _build_summary(session, message)
        case "assistant":
            for index, part in enumerate(message.parts):
                if block := _build_part(session, message, index, part):
                    yield block
        case _:
            pass  # a tool's result is shown with its call


def _build_summary(session: SessionState, message: MessageState) -> NoteBlock:
    notes = session.notes.get(message.run_id)
    why = _SUMMARY_REASONS.get(notes.summary_reason, "") if notes else ""
    return NoteBlock(
        key=f"{message.id}:summary",
        revision=message.revision,
        kind="summary",
        text=f"{why}{'Conversation summarized' if message.is_finished else 'Summarizing the conversation…'}",
        details=message.text,
    )


def _build_part(session: SessionState, message: MessageState, index: int, part: AssembledPart) -> Block | None:
    is_open = not message.is_finished and not part.is_final
    is_interrupted = message.finish is not None and message.finish.reason == "interrupted"
    key, revision = f"{message.id}:{index}", part.revision * 4 + is_open * 2 + is_interrupted
    match part.type:
        case "text" if part.text.strip():
            return TextBlock(key=key, revision=revision, text=part.text, is_open=is_open, is_interrupted=is_interrupted)
        case "reasoning":
            is_redacted = isinstance(part.value, Reasoning) and part.value.redacted
            if not part.text.strip() and not is_redacted:
                return None
            return ReasoningBlock(key=key, revision=revision, text=part.text, is_open=is_open, is_redacted=is_redacted)
        case "tool_call":
            return _build_call(session, message, part)
        case _:
            return None


def _build_prompt(session: SessionState, message: MessageState) -> Iterator[Block]:
    for index, part in enumerate(message.parts):
        if isinstance(part.value, ShellCommand):
            is_open = session.is_open(message.run_id)
            yield ShellBlock(
                key=f"{message.id}:{index}",
                revision=part.revision * 2 + is_open,
                command=part.value.command,
                output=part.text,
                exit_code=part.value.exit_code,
                is_open=part.value.exit_code is None and is_open,
            )
    names = tuple(
        part.value.name or part.value.mime_type for part in message.parts if isinstance(part.value, File | Image)
    )
    if message.text or names:
        key = f"prompt:{message.id}"
        yield PromptBlock(key=key, revision=message.revision, text=message.text, attachments=names)


def _build_call(session: SessionState, message: MessageState, part: AssembledPart) -> CallBlock:
    call = part.value if isinstance(part.value, ToolCall) else _UNNAMED_CALL
    found = session.results.get(call.id)
    result, images, output = None, 0, found[1].text if found else ""
    if found is not None and isinstance(found[1].value, ToolResult) and (found[0].is_finished or found[1].is_final):
        result = found[1].value
        output = _explain_result(result) or _select_shown(result)
        images = sum(isinstance(each.value, Image) for each in found[0].parts)
    state = _find_call_state(session, message, call, is_started=found is not None, result=result)
    child = _find_child(session, message.run_id, part.text) if call.name == "agent" else None
    blocks = tuple(build_blocks(child)) if child else ()
    changes = part.revision + (found[1].revision if found else 0) + sum(1 + block.revision for block in blocks)
    return CallBlock(
        key=f"{message.id}:{call.id}",
        revision=changes * len(_STATES) + _STATES.index(state),
        name=call.name,
        input=part.text,
        state=state,
        output=output,
        result=result,
        images=images,
        child=blocks,
        child_session_id=child.session_id if child else None,
    )


def _find_call_state(
    session: SessionState, message: MessageState, call: ToolCall, *, is_started: bool, result: ToolResult | None
) -> CallState:
    if result is not None:
        return "failed" if result.is_error else "done"
    if is_started:
        return "running"
    if call.id in session.asked.values():
        return "asking"
    if message.is_finished and not session.is_open(message.run_id):
        return "interrupted"
    return "waiting" if call.finished else "writing"


def _explain_result(result: ToolResult) -> str:
    """Return the sentence for people instead of a result that was written for the model; empty: show the result."""
    metadata = result.metadata or {}
    if "denied" in metadata:
        denied = f"You denied this {_DENIED.get(result.name, 'call')}"
        return f"{denied}: {reason}" if isinstance(reason := metadata.get("reason"), str) else f"{denied}."
    if isinstance(rule := metadata.get("rule"), str) and metadata.get("refused") == "rule":
        return f"Denied by the rule {rule}."
    if (sentence := _REFUSED.get(str(metadata.get("refused")))) is not None:
        return sentence
    if result.name == "question" and not result.is_error and "answers" not in metadata:
        is_unattended = metadata.get("by") == "run"
        return "Nobody was there to answer." if is_unattended else "You skipped the questions."
    return ""


def _select_shown(result: ToolResult) -> str:
    """Return the part of the content that is for people, and the sentence that stands for the rest."""
    metadata = result.metadata or {}
    summary, shown_chars = metadata.get("summary"), metadata.get("shown_chars")
    if not isinstance(summary, str):
        return result.content[:shown_chars] if isinstance(shown_chars, int) else result.content
    shown = result.content[:shown_chars] if isinstance(shown_chars, int) else ""
    return f"{shown}\n{summary}" if shown else summary


def _find_child(session: SessionState, run_id: str, call_input: str) -> SessionState | None:
    """Find the session of the sub-agent that a call started: its prompt is the call's."""
    prompt = correct_params("agent", parse_tool_input(call_input) or {}).get("prompt")
    for child in session.children.values():
        if any(run.parent_run_id == run_id and run.prompt == prompt for run in child.runs.values()):
            return child
    return None


def _build_end(session: SessionState, run_id: str) -> Iterator[Block]:
    events = [event for event in session.notes.get(run_id, ()) if event.type == "error"]
    for number, event in enumerate(events):
        text = event.error or event.message or "The run failed"
        yield NoteBlock(key=f"error:{run_id}:{number}", kind="error", text=text)
    end = session.ends.get(run_id)
    if end is None:
        return
    if end.cancelled:
        yield NoteBlock(key=f"end:{run_id}", kind="cancelled", text="Canceled")
    elif end.error is not None:
        if not events:
            yield NoteBlock(key=f"end:{run_id}", kind="error", text=end.error)
    elif (answer := _find_answer(session, end.message_id, run_id)) and answer.role == "assistant":  # no shell command
        reason = answer.finish.reason if answer.finish else None
        took_s = session.took_s.get(run_id)
        yield EndBlock(key=f"end:{run_id}", reason=reason, model=answer.model, usage=end.usage, took_s=took_s)


def _find_answer(session: SessionState, message_id: str | None, run_id: str) -> MessageState | None:
    if message_id is not None:
        return session.messages.get(message_id)
    for message in reversed(session.messages.values()):
        if message.run_id == run_id and message.role == "assistant" and not message.is_summary:
            return message
    return None

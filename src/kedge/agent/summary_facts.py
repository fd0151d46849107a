"""Facts that are added to a summary word for word, because they must not depend on a model's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kedge.agent.history_size import cut_text
from kedge.agent.tool_context import read_file_digests
from kedge.engine.turn import TurnContext
from kedge.protocol.files import SessionFile
from kedge.protocol.messages import File, Image, Message, ShellCommand, ToolResult, text_of
from kedge.store.port import Past
from kedge.tools.process.command import Job, Jobs

MAX_CHARS = 32_000  # of all facts; less in a small context window
MIN_PROMPT_CHARS = 400  # of a message of the user, as long as there is room
MAX_LISTED = 40  # files, and jobs

_MESSAGES = "## The user's messages, word for word"
_LOAD_AGAIN = "## Skills in use: load them again with the tool skill to go on with their work"
_VIEW_AGAIN = "## View these files again before you edit them: what was seen of them no longer counts"


async def build_facts(
    ctx: TurnContext,
    history: Sequence[Message],
    jobs: Jobs | None,
    max_chars: int,
    expanded: Mapping[str, str] = {},
) -> str:
    """Return the user's messages, the todo list, the changed files, the running jobs and the files to view again.

    `expanded`: by message, the texts that the model got instead of prompts with a skill or command.
    """
    past = await ctx.past()
    run_ids = {run.run_id for run in [ctx.run, *ctx.joined]}
    running = [job for job in jobs.list() if job.is_running] if jobs is not None else []
    own = [job for job in running if job.info().session_id == ctx.run.session_id]
    sections = [
        _format_prompts(past, run_ids, max_chars * 5 // 8, expanded),
        _format_list(_LOAD_AGAIN, [f"- {name}" for name in past.skills], max_chars // 16),
        _format_todos(past, max_chars // 8),
        _format_files(await ctx.changed_files(), max_chars // 8),
        _format_jobs(own, max_chars // 16),
        _format_seen(history, ctx.directory, max_chars // 16),
    ]
    return "\n\n".join(section for section in sections if section)


def _format_prompts(past: Past, run_ids: set[str], max_chars: int, expanded: Mapping[str, str]) -> str:
    """Cut messages where they are too long together: the request being worked on and the newest keep most."""
    texts = {message.id: _format_prompt(message, expanded.get(message.id)) for message in past.prompts}
    prompts = [message for message in past.prompts if texts[message.id]]
    current = [message for message in prompts if message.run_id in run_ids]
    shown: dict[str, str] = {}
    room = max_chars
    for message in current:
        shown[message.id] = cut_text(texts[message.id], max_chars // 2 // len(current))
        room -= len(shown[message.id])
    left_out = past.left_out
    for message in reversed(prompts):
        if message.id in shown:
            continue
        if room < MIN_PROMPT_CHARS // 4 and len(texts[message.id]) > room:
            left_out += 1
            continue
        shown[message.id] = cut_text(texts[message.id], max(room // 2, min(MIN_PROMPT_CHARS, room)))
        room -= len(shown[message.id])
    if not shown:
        return ""
    lines = [_MESSAGES]
    if left_out:
        lines.append(f"({left_out} earlier {'message is' if left_out == 1 else 'messages are'} left out.)")
    for number, message in enumerate((each for each in prompts if each.id in shown), left_out + 1):
        mark = ", the request being worked on" if message.run_id in run_ids else ""
        lines.append(f"### Message {number}{mark}\n{shown[message.id]}")
    return "\n\n".join(lines)


def _format_prompt(message: Message, expanded: str | None) -> str:
    commands = [f"(The user ran: {part.command})" for part in message.parts if isinstance(part, ShellCommand)]
    attached = [
        part.name if isinstance(part, File) else "an image" for part in message.parts if isinstance(part, (File, Image))
    ]
    notes = [f"(Attached to it, and no longer shown: {', '.join(attached)})"] if attached else []
    return "\n".join(text for text in [text_of(message.parts).strip(), expanded, *commands, *notes] if text)


def _format_todos(past: Past, max_chars: int) -> str:
    content = "" if past.todos is None else past.todos.content
    return f"## Todo list\n{cut_text(content, max_chars)}" if content.strip() else ""


def _format_files(files: Sequence[SessionFile], max_chars: int) -> str:
    lines = [f"- {file.path} ({file.status}, +{file.added} -{file.removed})" for file in files]
    return _format_list("## Files changed in this session", lines, max_chars)


def _format_jobs(jobs: Sequence[Job], max_chars: int) -> str:
    lines = [f"- job {job.id}: {cut_text(job.command_line, 200)}" for job in reversed(jobs)]
    return _format_list("## Running in the background (job_output shows their output)", lines, max_chars)


def _format_seen(history: Sequence[Message], directory: Path, max_chars: int) -> str:
    results = [part for message in history for part in message.parts if isinstance(part, ToolResult)]
    paths = dict.fromkeys(path for result in reversed(results) for path in read_file_digests(result.metadata))
    lines = [f"- {path.removeprefix(f'{directory}/')}" for path in paths]
    return _format_list(_VIEW_AGAIN, lines, max_chars)


def _format_list(title: str, lines: Sequence[str], max_chars: int) -> str:
    """Return the lines that fit, and how many more there are."""
    shown: list[str] = []
    size = 0
    for line in lines[:MAX_LISTED]:
        size += len(line) + 1
        if size > max_chars and shown:
            break
        shown.append(line)
    if not shown:
        return ""
    rest = len(lines) - len(shown)
    return "\n".join([title, *shown, *([f"- and {rest} more"] if rest else [])])

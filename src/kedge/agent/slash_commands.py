"""Prompts that name a skill or a command, as `/review main`: the model gets its text in place of the prompt.

The text is stored with the message before the model is called, so that it stays the same. The state of the commands in
it is stored before each one starts: after a crash none of them is run again (P13).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence

import msgspec

from kedge.agent.notes import Note, SessionNotes
from kedge.agent.tool_calls import ToolRunner
from kedge.agent.tool_context import TurnScope
from kedge.files.safe_open import read_regular_file
from kedge.protocol.messages import Message, ToolResult, text_of
from kedge.protocol.runs import Run as RunRow
from kedge.skills.definitions import Command, Skill
from kedge.skills.library import Library
from kedge.skills.rendering import fill_command, fill_skill, format_skill, list_files, list_names
from kedge.skills.template import Filled, Mention, Run
from kedge.skills.tool_names import list_rules
from kedge.tools.builtin.skill import show_output
from kedge.tools.errors import ToolError
from kedge.tools.permissions.judge import Judge
from kedge.tools.permissions.policy import Allow
from kedge.tools.port import Access, resolve_path

MAX_FILE_BYTES = 64 * 1024  # of a mentioned file; the model can view a longer one
INTERRUPTED = "[This command was interrupted when the server stopped, and not run again: {line}]"
NOT_RUN = "[Not run, because a command before it was interrupted: {line}]"
_SLASH = re.compile(r"\s*/(?P<name>[^\W_][\w.:-]{0,200})(?:\s+(?P<arguments>.*))?", re.DOTALL)


class SlashCommand(msgspec.Struct, frozen=True):
    definition: Skill | Command
    arguments: str


def find_slash_command(prompt: str, library: Library) -> SlashCommand | None:
    """Return the skill or command that a prompt begins with; None if it names none, like `/etc/hosts is wrong`."""
    found = _SLASH.fullmatch(prompt)
    definition = library.find_slash_command(found["name"]) if found else None
    if found is None or definition is None:
        return None
    return SlashCommand(definition, (found["arguments"] or "").strip())


def rules_of(definition: Skill | Command) -> list[str]:
    """Return the permission rules that hold while a skill or command is at work."""
    return list_rules(definition.allowed_tools, list_names(definition.origin))


def find_model(run: RunRow, library: Library) -> str | None:
    """Return the model that the command of a run names; None for a name that is not `PROVIDER/NAME`."""
    command = find_slash_command(run.prompt, library) if run.kind == "prompt" else None
    model = command.definition.model if command and isinstance(command.definition, Command) else ""
    return model if "/" in model else None


def list_active_rules(history: Sequence[Message], run_ids: Collection[str], library: Library) -> list[str]:
    """Return the rules of the skills and commands that this turn has used so far, also before a restart."""
    rules: list[str] = []
    for message in history:
        if message.run_id not in run_ids:
            continue
        if message.role == "user" and (command := find_slash_command(text_of(message.parts), library)):
            rules += rules_of(command.definition)
        for part in message.parts if message.role == "tool" else ():
            match part:
                case ToolResult(metadata={"skill": str(name)}) if (skill := library.skills.get(name)) is not None:
                    rules += rules_of(skill)
                case _:
                    pass
    return list(dict.fromkeys(rules))


def _read_mentioned_file(scope: TurnScope, judge: Judge, path: str) -> str | None:
    """Return the text of a file that a command mentions, if it may be read without asking. Blocks."""
    try:
        real = resolve_path(scope, path)
    except ToolError:
        return None
    access = Access(kind="read", subject=str(real), description=f"read {path}")
    if not isinstance(judge.judge("view", access), Allow):
        return None
    try:
        data = read_regular_file(real, MAX_FILE_BYTES)
    except OSError:
        return None
    return None if data is None or b"\0" in data else data.decode("utf-8", "replace")


class PromptExpander:
    def __init__(self, notes: SessionNotes, scope: TurnScope, judge: Judge, tool_runner: ToolRunner) -> None:
        self._notes = notes
        self._scope = scope
        self._judge = judge
        self._tool_runner = tool_runner

    async def expand(self, history: Sequence[Message], run_ids: Collection[str]) -> None:
        """Expand the prompts of these runs that name a skill or command, and apply what it allows.

        Raises `Denied` when a person denied a command in the text without a reason.
        """
        for message in history:
            if message.run_id not in run_ids or message.role != "user":
                continue
            command = find_slash_command(text_of(message.parts), self._scope.library)
            note = self._notes.of(message.id) or Note()
            if command is not None and not note.prompt and not note.is_blocked:
                self._judge.grant(rules_of(command.definition))
                await self._expand(message, command, note)

    async def _expand(self, message: Message, command: SlashCommand, note: Note) -> None:
        definition, arguments = command.definition, command.arguments
        is_skill = isinstance(definition, Skill)
        filled = fill_skill(definition, arguments) if is_skill else fill_command(definition, arguments)
        outputs = await self._run_commands(message, filled, note)
        files = {
            each.path: await asyncio.to_thread(_read_mentioned_file, self._scope, self._judge, each.path)
            for each in filled.pieces
            if isinstance(each, Mention)
        }

        def show(piece: Run | Mention) -> str:
            if isinstance(piece, Run):
                return show_output(piece, outputs)
            text = files.get(piece.path)
            return f"@{piece.path}" if text is None else f'@{piece.path}\n<file path="{piece.path}">\n{text}\n</file>\n'

        text = filled.join(show)
        if is_skill:
            listed = await asyncio.to_thread(list_files, definition)
            text = f"{format_skill(definition, text, listed)}\n\n{text_of(message.parts).strip()}"
        elif definition.agent in self._scope.library.agents:
            text = f"{text}\n\n(Give this task to the sub-agent {definition.agent!r}, and report its answer.)"
        await self._notes.change(message.id, prompt=text or "(empty)", is_running=False)

    async def _run_commands(self, message: Message, filled: Filled, note: Note) -> dict[str, str]:
        """Return the outputs by command line; those of an earlier attempt are not run again."""
        lines = filled.commands
        outputs = list(note.outputs)
        if note.is_running:
            outputs.append(INTERRUPTED.format(line=lines[len(outputs)] if len(outputs) < len(lines) else ""))
            outputs += [NOT_RUN.format(line=line) for line in lines[len(outputs) :]]
        for number, line in enumerate(lines[len(outputs) :], len(outputs)):

            async def note_start(number: int = number) -> None:
                await self._notes.change(message.id, outputs=tuple(outputs[:number]), is_running=True)

            outputs.append(await self._tool_runner.run_command(message.id, "command", number + 1, line, note_start))
        return dict(zip(lines, outputs, strict=False))

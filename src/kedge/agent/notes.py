"""Notes: texts and decisions that are stored with a message of a session and that people do not see in it.

A note says what changed in the surroundings, what a prompt `/name` stands for, what hooks added for the model, and what
hooks decided: after a crash a committed decision is not asked for again. Notes are sent with their messages, so that
requests stay the same in every turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Literal

import msgspec

from kedge.engine.turn import TurnContext
from kedge.protocol.messages import Message, Part, Text, ToolResult

CallDecision = Literal["", "allow", "deny", "ask"]


class CallVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the `PreToolUse` hooks decided about a call."""

    decision: CallDecision = ""
    reason: str = ""
    input: dict[str, Any] | None = None  # instead of the model's
    context: str = ""  # for the model, with the result
    stops: str | None = None  # why the run is to end


class RequestVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the `PermissionRequest` hooks decided about a request to a person."""

    decision: Literal["", "allow", "deny"] = ""
    reason: str = ""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """`text` and the next five fields tell what changed in the surroundings; fields that did not change are empty."""

    text: str = ""
    today: date | None = None
    permissions: str = ""
    files: Mapping[str, str] = {}  # digests by path; empty for a removed file
    skills: Mapping[str, str] = {}  # descriptions by name; empty for a removed skill
    agents: Mapping[str, str] = {}
    prompt: str = (
        ""  # what the model gets instead of a prompt that names a skill or command; empty until it is complete
    )
    outputs: tuple[str, ...] = ()  # of the commands in that text, so far
    is_running: bool = False  # the next of them was started
    context: str = ""  # what hooks tell the model with this message
    has_started: bool = False  # with this prompt or summary the SessionStart hooks have run
    is_submitted: bool = False  # for this prompt the UserPromptSubmit hooks have run
    is_blocked: bool = False  # one of them blocked it: the model does not get it
    calls: Mapping[str, CallVerdict] = {}  # of a step, by call id
    requests: Mapping[str, RequestVerdict] = {}  # of a step, by call id and access
    is_handled: bool = False  # for this result the PostToolUse hooks have run
    edited: Mapping[str, str] = {}  # digests of files that they changed, as the model was told
    stop: str | None = None  # for this answer the Stop hooks have run; a text says why the run goes on


class SessionNotes:
    def __init__(self, ctx: TurnContext, notes: dict[str, Note]) -> None:
        self._ctx = ctx
        self._notes = notes
        self._lock = asyncio.Lock()  # calls run in parallel and add to the note of their step

    @classmethod
    async def load(cls, ctx: TurnContext) -> SessionNotes:
        bodies = await ctx.notes()
        return cls(ctx, {message_id: msgspec.json.decode(body, type=Note) for message_id, body in bodies.items()})

    def of(self, message_id: str) -> Note | None:
        return self._notes.get(message_id)

    async def change(self, message_id: str, **fields: Any) -> None:
        """Store fields of a message's note. Values of `calls` and `requests` are added to those that are there."""
        async with self._lock:
            known = self._notes.get(message_id) or Note()
            for name in ("calls", "requests"):
                if name in fields:
                    fields[name] = {**getattr(known, name), **fields[name]}
            note = msgspec.structs.replace(known, **fields)
            await self._ctx.set_note(message_id, msgspec.json.encode(note))
            self._notes[message_id] = note

    def list_edited(self, history: Sequence[Message]) -> dict[str, str]:
        """Return the digests of files that hooks changed after a call, as the model was told."""
        notes = (self._notes.get(message.id) for message in history)
        return {path: digest for note in notes if note is not None for path, digest in note.edited.items()}

    @property
    def prompts(self) -> dict[str, str]:
        """The texts that the model gets instead of prompts that name a skill or command, by message."""
        return {message_id: note.prompt for message_id, note in self._notes.items() if note.prompt}

    def add_to(self, history: Sequence[Message]) -> Sequence[Message]:
        """Return the history with its notes: in front of a prompt, and behind all other messages."""
        if not self._notes:
            return history
        return [each for message in history for each in self._add_note(message)]

    def _add_note(self, message: Message) -> Iterator[Message]:
        note = self._notes.get(message.id)
        if note is None:
            yield message
            return
        if note.is_blocked:
            return
        texts = [text for text in (note.text, note.context and format_context(note.context)) if text]
        parts: list[Part] = list(message.parts)
        if message.role == "tool":
            parts = [_add_to_result(part, texts) for part in parts]
        elif message.summary:
            parts = [*parts[:-1], *(Text(f"\n\n{text}") for text in texts), *parts[-1:]]
        elif message.role == "user":
            if note.prompt:
                parts = [Text(note.prompt), *(part for part in parts if not isinstance(part, Text))]
            parts = [*map(Text, texts), *parts]
        yield msgspec.structs.replace(message, parts=parts) if texts or note.prompt else message
        if note.stop:
            goes_on: list[Part] = [Text(format_context(note.stop))]
            yield msgspec.structs.replace(message, id=f"{message.id}-stop", role="user", parts=goes_on, model=None)


def format_context(text: str) -> str:
    return f"<hook-note>\n{text}\n</hook-note>"


def _add_to_result(part: Part, texts: Sequence[str]) -> Part:
    if not isinstance(part, ToolResult) or not texts:
        return part
    return msgspec.structs.replace(part, content="\n\n".join([part.content, *texts]))

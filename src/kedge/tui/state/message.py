"""A message of a session, while it is streamed and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kedge.client.message_assembly import AssembledMessage
from kedge.protocol.messages import Delta, Finish, Message, Part, ShellCommand, ToolResult, text_in

if TYPE_CHECKING:
    from kedge.client.message_assembly import PartContent


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
    text = text_in(part)
    match part:
        case ToolResult():
            is_complete = bool(text) or part.is_error
        case ShellCommand():
            is_complete = bool(text) or part.exit_code is not None
        case _:
            is_complete = True
    return str(part.__struct_config__.tag), text, part, is_complete

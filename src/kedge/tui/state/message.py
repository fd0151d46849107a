"""One message while it is written and after: text only grows, whatever arrives twice or late (P12)."""

from __future__ import annotations

from kedge.client.errors import Dropped
from kedge.protocol.messages import (
    Delta,
    DeltaKind,
    Finish,
    Message,
    Part,
    Reasoning,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
    text_in,
)

_HEADS: dict[DeltaKind, Part] = {
    "text": Text(""),
    "reasoning": Reasoning(""),
    "tool_input": ToolCall("", "", "", finished=False),
    "tool_output": ToolResult("", "", "", is_error=False),
}


class PartView:
    """A part and its text. `revision` changes with whatever is to be seen of it."""

    def __init__(self, head: Part) -> None:
        self.head = head  # the part as it came last; of one that is still streamed, without the rest of its text
        self.is_whole = False
        self.revision = 0
        self._pieces: list[str] = []
        self._length = 0  # code points

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def grow(self, offset: int, text: str) -> None:
        overlap = self._length - offset
        if overlap < 0:
            raise Dropped(f"a delta at {offset} follows {self._length}: something was missed")
        if new := text[overlap:]:
            self._pieces.append(new)
            self._length += len(new)
            self.revision += 1

    def take(self, part: Part, *, is_whole: bool) -> None:
        """The part as the log or a snapshot has it."""
        if isinstance(part, ToolResult | ShellCommand) and is_whole:  # need not be what was printed on the way
            text = text_in(part)
            self._pieces, self._length = [text], len(text)
        else:
            self.grow(0, text_in(part))
        if part != self.head or is_whole != self.is_whole:
            self.revision += 1
        self.head = part
        self.is_whole = self.is_whole or is_whole


class MessageView:
    def __init__(self, message: Message, seq: int | None) -> None:
        self.id = message.id
        self.seq = seq  # when it was first told of; 0: it was read; None: it was in a snapshot
        self.run_id = message.run_id
        self.session_id = message.session_id
        self.role = message.role
        self.is_summary = message.summary
        self.model = message.model
        self.created_at = message.created_at
        self.finish: Finish | None = None
        self.parts: list[PartView] = []

    @property
    def revision(self) -> int:
        return sum(part.revision + 1 for part in self.parts) + (self.finish is not None)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part.head, Text))

    def take(self, message: Message, *, is_snapshot: bool) -> None:
        """The message as the log has it; only a snapshot may hold a part that still grows, or one that only begins."""
        self.model = message.model or self.model
        for index, part in enumerate(message.parts):
            if isinstance(part, Finish):
                self.finish = part
            else:
                self._part(index, part).take(part, is_whole=not is_snapshot and not _is_opening(part))

    def take_delta(self, delta: Delta) -> None:
        self._part(delta.part, _HEADS[delta.kind]).grow(delta.offset, delta.text)

    def _part(self, index: int, head: Part) -> PartView:
        if index > len(self.parts):
            raise Dropped(f"part {index} of a message follows {len(self.parts)}: something was missed")
        if index == len(self.parts):
            self.parts.append(PartView(head))
        return self.parts[index]


def _is_opening(part: Part) -> bool:
    """A message that a tool or a command is still to fill shows what it is of; a final result is never empty."""
    match part:
        case ToolResult():
            return not part.content and not part.is_error
        case ShellCommand():
            return not part.output and part.exit_code is None
        case _:
            return False

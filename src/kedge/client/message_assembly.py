"""Assembles messages from deltas, snapshots and stored messages, which may repeat and overlap (P12).

Text only grows: a snapshot or message with less text than is known changes nothing. A delta that would leave a hole
raises `Dropped`: events were missed. The same code serves `kedge run`, whose parts are JSON objects, and the
interface, whose parts are structs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kedge.client.errors import Dropped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # type, text, the part itself, and whether it is complete: a tool's result is announced before the tool has run
    PartContent = tuple[str, str, object, bool]
    Growth = tuple[int, str, int, str]  # part, kind, offset, text: the fields of a delta

_PART_TYPES = {"text": "text", "reasoning": "reasoning", "tool_input": "tool_call", "tool_output": "tool_result"}
_DELTA_KINDS = {part_type: kind for kind, part_type in _PART_TYPES.items()} | {"shell_command": "tool_output"}
_TEXT_FIELDS = {
    "text": "text",
    "reasoning": "text",
    "tool_call": "input",
    "tool_result": "content",
    "shell_command": "output",
}


class AssembledPart:
    def __init__(self, type: str) -> None:
        self.type = type
        self.value: object = None  # the part as it was received last; None after deltas alone
        self.is_final = False
        self.revision = 0  # a different number whenever the part looks different
        self.length = 0  # in code points
        self._pieces: list[str] = []
        self._taken = 0  # code points that `take_new_text` returned

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add_text(self, offset: int, text: str) -> str:
        """Add text that belongs at `offset`; return the new end of it."""
        if self.is_final and self._is_output:
            return ""  # its final text need not be the one that was streamed
        overlap = self.length - offset
        if overlap < 0:
            raise Dropped(f"a delta at {offset} follows {self.length}: something was missed")
        new = text[overlap:]
        if new:
            self._pieces.append(new)
            self.length += len(new)
            self.revision += 1
        return new

    def set(self, value: object, text: str, *, is_final: bool) -> str:
        """Take the part as the log or a snapshot has it; return the text by which the known text grew."""
        new = ""
        if is_final and self._is_output:
            self._pieces, self.length = [text], len(text)
        else:
            new = self.add_text(0, text)
        if value != self.value or is_final != self.is_final:
            self.revision += 1
        self.value = value
        self.is_final = self.is_final or is_final
        return new

    def take_new_text(self) -> str:
        """Return the text that was added since the last call."""
        missing = self.length - self._taken
        self._taken = self.length
        pieces: list[str] = []
        for piece in reversed(self._pieces):
            if missing <= 0:
                break
            pieces.append(piece[-missing:])
            missing -= len(piece)
        return "".join(reversed(pieces))

    @property
    def _is_output(self) -> bool:
        return self.type in ("tool_result", "shell_command")


class AssembledMessage:
    def __init__(self) -> None:
        self.parts: list[AssembledPart] = []  # without the `finish` part
        self.is_finished = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if part.type == "text")

    def add_delta(self, index: int, kind: str, offset: int, text: str) -> list[Growth]:
        part = self._part(index, _PART_TYPES[kind])
        at = part.length
        new = part.add_text(offset, text)
        return [(index, kind, at, new)] if new else []

    def add_parts(self, parts: Iterable[PartContent], *, is_snapshot: bool) -> list[Growth]:
        """Take the message's parts as the log or a snapshot has them; only a snapshot has parts that still grow."""
        grown: list[Growth] = []
        for index, (part_type, text, value, is_complete) in enumerate(parts):
            if part_type == "finish":
                self.is_finished = True
                continue
            part = self._part(index, part_type)
            at = part.length
            if new := part.set(value, text, is_final=is_complete and not is_snapshot):
                grown.append((index, _DELTA_KINDS[part_type], at, new))
        return grown

    def take_new_text(self) -> Iterator[str]:
        """Yield the new text that can be printed: a text part waits for the end of the text parts before it."""
        for part in self.parts:
            if part.type != "text":
                continue
            if new := part.take_new_text():
                yield new
            if not part.is_final and not self.is_finished:
                return

    def _part(self, index: int, part_type: str) -> AssembledPart:
        """Return the part at `index`. A part before it that has no text yet was not announced: it gets no type yet."""
        while len(self.parts) <= index:
            self.parts.append(AssembledPart(""))
        part = self.parts[index]
        part.type = part.type or part_type
        return part


class RunMessage(AssembledMessage):
    """A message of a run that is followed, from JSON objects."""

    def __init__(self, payload: dict[str, Any]) -> None:
        super().__init__()
        self.id: str = payload["id"]
        self.role: str = payload["role"]
        self.is_summary: bool = payload.get("summary", False)
        self.reason: str | None = None  # why it is finished
        self.explanation: str | None = None  # the text of its finish, beside the reason
        self.printed_chars = 0  # code points of its text that were printed

    def take_new_text(self) -> Iterator[str]:
        for text in super().take_new_text():
            self.printed_chars += len(text)
            yield text

    def take(self, payload: dict[str, Any], *, is_snapshot: bool) -> list[Growth]:
        parts: list[dict[str, Any]] = payload["parts"]
        if parts and parts[-1]["type"] == "finish":
            self.reason, self.explanation = parts[-1]["reason"], parts[-1].get("message")
        return self.add_parts(map(_read_part, parts), is_snapshot=is_snapshot)


def _read_part(part: dict[str, Any]) -> PartContent:
    part_type = part["type"]
    text = part.get(_TEXT_FIELDS.get(part_type, ""), "")
    return part_type, text, part, is_complete(part_type, text, part.get("is_error"), part.get("exit_code"))


def is_complete(part_type: str, text: str, is_error: bool | None, exit_code: int | None) -> bool:
    """Whether a stored part is complete: results of tools and commands are announced, empty, before they have run."""
    if part_type == "tool_result":
        return bool(text or is_error)
    return part_type != "shell_command" or bool(text) or exit_code is not None


class RunMessages:
    """The messages of one run, in the order of their creation; messages of other runs are ignored."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.answers: list[RunMessage] = []  # the assistant's messages without summaries
        self._messages: dict[str, RunMessage] = {}

    def get(self, message_id: str | None) -> RunMessage | None:
        return self._messages.get(message_id) if message_id else None

    def take_message(self, payload: dict[str, Any], *, is_snapshot: bool) -> list[Growth]:
        if payload["run_id"] != self.run_id:
            return []
        message = self._messages.get(payload["id"])
        if message is None:
            message = self._messages[payload["id"]] = RunMessage(payload)
            if message.role == "assistant" and not message.is_summary:
                self.answers.append(message)
        return message.take(payload, is_snapshot=is_snapshot)

    def take_delta(self, delta: dict[str, Any]) -> list[Growth]:
        if delta["run_id"] != self.run_id:
            return []
        message = self._messages.get(delta["message_id"])
        if message is None:
            raise Dropped("a delta of an unknown message: its beginning was missed")
        return message.add_delta(delta["part"], delta["kind"], delta["offset"], delta["text"])

"""The exact text of one run's messages, from snapshots, deltas and whole messages in any order and with overlaps (P12).

Text only grows: of whatever says less than we have, nothing is taken; what would leave a hole means that frames were
lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from kedge.client.errors import Dropped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Where a part of a whole message keeps what is streamed as a delta of some kind.
_STREAMED = {
    "text": ("text", "text"),
    "reasoning": ("reasoning", "text"),
    "tool_call": ("tool_input", "input"),
    "tool_result": ("tool_output", "content"),
}

Growth = tuple[int, str, int, str]  # part, kind, offset, text: what a delta says


class Part:
    """A streamed part: its pieces, and how many of them were told already."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.length = 0  # code points
        self._pieces: list[str] = []
        self._told = 0

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def grow(self, offset: int, text: str) -> str:
        """Take text that belongs at `offset`; returns what of it is new."""
        overlap = self.length - offset
        if overlap < 0:
            raise Dropped(f"a delta at {offset} follows {self.length}: something was missed")
        new = text[overlap:]
        if new:
            self._pieces.append(new)
            self.length += len(new)
        return new

    def untold(self) -> str:
        """What was not asked for before."""
        new = "".join(self._pieces[self._told :])
        self._told = len(self._pieces)
        return new


class Message:
    def __init__(self, payload: dict[str, Any]) -> None:
        self.id: str = payload["id"]
        self.role: str = payload["role"]
        self.is_summary: bool = payload.get("summary", False)
        self.reason: str | None = None  # why it is finished
        self.explanation: str | None = None  # what its finish says beside the reason
        self.told = 0  # code points of its text that were told
        self._parts: dict[int, Part] = {}
        self._finished = 0  # parts before this one do not change any more

    @property
    def text(self) -> str:
        return "".join(part.text for _, part in sorted(self._parts.items()) if part.kind == "text")

    def untold(self) -> Iterator[str]:
        """Text that can be told now: a text part has to wait for the end of the text parts before it."""
        for index, part in sorted(self._parts.items()):
            if part.kind != "text":
                continue
            if new := part.untold():
                self.told += len(new)
                yield new
            if index >= self._finished and self.reason is None:
                return

    def take_delta(self, delta: dict[str, Any]) -> list[Growth]:
        index, kind = delta["part"], delta["kind"]
        part = self._parts.setdefault(index, Part(kind))
        at = part.length
        new = part.grow(delta["offset"], delta["text"])
        return [(index, kind, at, new)] if new else []

    def take_whole(self, payload: dict[str, Any], *, is_snapshot: bool) -> list[Growth]:
        """The message as the log or a snapshot has it; only a snapshot may hold a part that still grows."""
        grown: list[Growth] = []
        parts: list[dict[str, Any]] = payload["parts"]
        for index, whole in enumerate(parts):
            if whole["type"] == "finish":
                self.reason, self.explanation = whole["reason"], whole.get("message")
            elif whole["type"] in _STREAMED and (is_snapshot or whole["type"] != "tool_result"):
                # A tool's final result need not be what it printed on the way.
                kind, field = _STREAMED[whole["type"]]
                part = self._parts.setdefault(index, Part(kind))
                at = part.length
                if new := part.grow(0, whole[field]):
                    grown.append((index, kind, at, new))
        if not is_snapshot:
            self._finished = max(self._finished, len(parts))
        return grown


class RunMessages:
    """The messages of one run, in the order of their creation; other runs' are not looked at."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.answers: list[Message] = []  # what the assistant said: no summaries
        self._messages: dict[str, Message] = {}

    def get(self, message_id: str | None) -> Message | None:
        return self._messages.get(message_id) if message_id else None

    def take_whole(self, payload: dict[str, Any], *, is_snapshot: bool) -> list[Growth]:
        if payload["run_id"] != self.run_id:
            return []
        message = self._messages.get(payload["id"])
        if message is None:
            message = self._messages[payload["id"]] = Message(payload)
            if message.role == "assistant" and not message.is_summary:
                self.answers.append(message)
        return message.take_whole(payload, is_snapshot=is_snapshot)

    def take_delta(self, delta: dict[str, Any]) -> list[Growth]:
        if delta["run_id"] != self.run_id:
            return []
        message = self._messages.get(delta["message_id"])
        if message is None:
            raise Dropped("a delta of an unknown message: its beginning was missed")
        return message.take_delta(delta)

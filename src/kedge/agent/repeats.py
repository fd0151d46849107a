"""A model that goes in circles is stopped: the same calls with the same results, over and over, help nobody.

Judged from the history alone, so that a restart forgets nothing. A circle is one call, or a few that take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kedge.protocol.messages import Message, ToolCall, ToolResult

WARN_AT = 3  # rounds: twice may be checking, three times is a habit
END_AT = 6  # rounds: the warning was read several times by then
LONGEST_CIRCLE = 3  # calls in a round; longer ones are rare, and the limit on steps ends them

_MARK = "\n\n[kedge: "
WARNING = (
    _MARK + "you have made this same call {rounds} times with the same result. It will not change. Do something else:"
    " read the result again, try another way, or say what keeps you from going on.]"
)


class Made(NamedTuple):
    """A call that was made, and what came of it."""

    name: str
    input: str
    content: str


def made_calls(history: Sequence[Message], run_id: str) -> list[Made]:
    """The last calls of a run with their results, oldest first; as many as matter."""
    most = END_AT * LONGEST_CIRCLE
    results: dict[str, ToolResult] = {}
    made: list[Made] = []
    for message in reversed(history):
        if message.run_id != run_id or message.role == "user":
            break
        if message.role == "tool":
            results |= {part.tool_call_id: part for part in message.parts if isinstance(part, ToolResult)}
            continue
        calls = [part for part in reversed(message.parts) if isinstance(part, ToolCall) and part.id in results]
        made += [Made(call.name, call.input, results.pop(call.id).content.partition(_MARK)[0]) for call in calls]
        if len(made) >= most:
            break
    return made[:most][::-1]


def rounds(made: Sequence[Made]) -> int:
    """How often in a row the last calls went the same way."""
    return max((_rounds(made, size) for size in range(1, LONGEST_CIRCLE + 1)), default=0)


def _rounds(made: Sequence[Made], size: int) -> int:
    circle = made[-size:]
    if len(circle) < size:
        return 0
    count = 1
    while made[-size * (count + 1) : -size * count] == circle:
        count += 1
    return count

"""How far a turn is, read from its history alone: so a resumed one goes on exactly where the last one was (P13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kedge.protocol.messages import FinishReason, Message, Text, ToolCall, ToolResult, finish_of, text_of

WARN_AT = 3  # rounds: twice may be checking, three times is a habit
END_AT = 6  # rounds: the warning was read several times by then
LONGEST_CIRCLE = 3  # calls in a round; longer ones are rare, and the limit on steps ends them
DENIED = "denied"  # in a result's metadata: a person said no, and the turn ends (also after a restart)

# A step with another reason was not finished by the model: its calls are never run.
_WHOLE: frozenset[FinishReason] = frozenset({"end_turn", "tool_use", "max_tokens", "content_filter", "unknown"})
_CUT_OFF: frozenset[FinishReason] = frozenset({"max_tokens", "content_filter"})

# Sent in the request alone, as nobody said it: a model that answers the same to the same would be silent again.
_ASK_AGAIN = "Your last answer was empty. Go on with the task, or give the answer."


class Step(msgspec.Struct, frozen=True):
    """The last step of a turn, and what came of its calls so far."""

    message: Message
    reason: FinishReason
    calls: list[ToolCall]
    results: dict[str, ToolResult]

    @property
    def open_calls(self) -> list[ToolCall]:
        return [call for call in self.calls if call.id not in self.results]

    @property
    def is_denied(self) -> bool:
        """A person said no to one of its calls."""
        return any(result.metadata and DENIED in result.metadata for result in self.results.values())

    @property
    def is_cut_off(self) -> bool:
        return self.reason in _CUT_OFF

    @property
    def text(self) -> str:
        return text_of(self.message.parts)


def last_step(history: Sequence[Message], run_id: str) -> Step | None:
    """The step that the conversation ends with; None: the model has not been asked yet."""
    results: dict[str, ToolResult] = {}
    for message in reversed(history):
        if message.role == "tool":
            results |= {part.tool_call_id: part for part in message.parts if isinstance(part, ToolResult)}
            continue
        finish = finish_of(message.parts)
        if message.role != "assistant" or message.run_id != run_id or message.summary or finish is None:
            return None
        if finish.reason not in _WHOLE:
            return None
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        return Step(message, finish.reason, calls, results)
    return None


def count_empty_answers(history: Sequence[Message], run_id: str) -> int:
    """How many answers with neither text nor calls the conversation ends with. A history has no failed attempts."""
    count = 0
    for message in reversed(history):
        finish = finish_of(message.parts)
        if message.role != "assistant" or message.run_id != run_id or message.summary or finish is None:
            break
        has_calls = any(isinstance(part, ToolCall) for part in message.parts)
        if has_calls or finish.reason not in _WHOLE or text_of(message.parts).strip():
            break
        count += 1
    return count


def with_empty_answer_named(history: Sequence[Message]) -> list[Message]:
    """The history for the step after an empty answer, which itself is not sent: the model is told to speak."""
    return [*history, msgspec.structs.replace(history[-1], role="user", parts=[Text(_ASK_AGAIN)], model=None)]


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

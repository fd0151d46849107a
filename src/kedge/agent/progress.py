"""How far a turn is, read from its history alone: so a resumed one goes on exactly where the last one was (P13)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kedge.agent.calls import DENIED
from kedge.protocol.messages import FinishReason, Message, Text, ToolCall, ToolResult, finish_of, text_of

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

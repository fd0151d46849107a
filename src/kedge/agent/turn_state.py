"""The state of a turn, derived from its history alone, so that a resumed turn continues exactly where it was (P13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from kedge.models.wires.hosted_search import is_marked
from kedge.protocol.messages import (
    INTERRUPTED,
    FinishReason,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    finish_of,
    text_of,
)
from kedge.protocol.tool_input import correct_params, parse_tool_input

# The model is warned, and the turn stopped, after so many repetitions of the same calls with the same results.
WARN_AT_REPEATS = 3  # twice may be a check
STOP_AT_REPEATS = 6  # the model has seen the warning several times by then
MAX_CYCLE_CALLS = 3  # calls that repeat together; longer cycles are rare, and the limit on steps ends them
# Keys in a tool result's metadata: a person denied the call, which ends the turn unless they gave a reason.
DENIED = "denied"
DENIAL_REASON = "reason"

# A step with another reason was not finished by the model: its calls are never run.
_COMPLETE: frozenset[FinishReason] = frozenset({"end_turn", "tool_use", "max_tokens", "content_filter", "unknown"})
_CUT_OFF: frozenset[FinishReason] = frozenset({"max_tokens", "content_filter"})

# Sent in the request but not stored. The same request would probably get the same empty answer.
_ASK_AGAIN = "Your last answer was empty. Go on with the task, or give the answer."

_MAX_COMPARED_CHARS = 100_000  # longer inputs are the same only if they are written the same way
_MARK = "\n\n[kedge: "
REPEAT_WARNING = (
    _MARK + "you have made this same call {repeats} times with the same result. It will not change. Do something else:"
    " read the result again, try another way, or say what keeps you from going on.]"
)


def ends_turn(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a tool result with this metadata ends the turn: a person denied the call and gave no reason."""
    return metadata is not None and DENIED in metadata and DENIAL_REASON not in metadata


class Step(msgspec.Struct, frozen=True):
    """The last step of a turn, and the results of its calls so far."""

    message: Message
    reason: FinishReason
    calls: list[ToolCall]
    results: dict[str, ToolResult]

    @property
    def open_calls(self) -> list[ToolCall]:
        return [call for call in self.calls if call.id not in self.results]

    def is_interrupted(self, call: ToolCall) -> bool:
        """Return whether the server stopped while the call was running."""
        result = self.results.get(call.id)
        return result is not None and result.metadata is not None and INTERRUPTED in result.metadata

    @property
    def is_denied(self) -> bool:
        return any(ends_turn(result.metadata) for result in self.results.values())

    @property
    def is_cut_off(self) -> bool:
        return self.reason in _CUT_OFF

    @property
    def is_paused(self) -> bool:
        """Whether the provider stopped in the middle of its own searches, and goes on with the next request."""
        is_search = (isinstance(part, Reasoning) and is_marked(part.signature) for part in self.message.parts)
        return self.reason == "tool_use" and not self.calls and any(is_search)

    @property
    def text(self) -> str:
        return text_of(self.message.parts)


def find_last_step(history: Sequence[Message], run_id: str) -> Step | None:
    """Return the run's step at the end of the conversation; None if the model was not called yet."""
    results: dict[str, ToolResult] = {}
    for message in reversed(history):
        if message.role == "tool":
            results |= {part.tool_call_id: part for part in message.parts if isinstance(part, ToolResult)}
            continue
        finish = finish_of(message.parts)
        if message.role != "assistant" or message.run_id != run_id or message.summary or finish is None:
            return None
        if finish.reason not in _COMPLETE:
            return None
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        return Step(message, finish.reason, calls, results)
    return None


def count_empty_answers(history: Sequence[Message], run_id: str) -> int:
    """Count the answers with neither text nor calls at the end of the conversation (which has no failed attempts)."""
    count = 0
    for message in reversed(history):
        finish = finish_of(message.parts)
        if message.role != "assistant" or message.run_id != run_id or message.summary or finish is None:
            break
        has_calls = any(isinstance(part, ToolCall) for part in message.parts)
        if has_calls or finish.reason not in _COMPLETE or text_of(message.parts).strip():
            break
        count += 1
    return count


def add_empty_answer_note(history: Sequence[Message]) -> list[Message]:
    """Return the history for the step after an empty answer, with a request to the model to answer."""
    return [*history, msgspec.structs.replace(history[-1], role="user", parts=[Text(_ASK_AGAIN)], model=None)]


def read_call_input(call: ToolCall) -> dict[str, Any]:
    """Return the input of a call with the tool's own parameter names; empty if it cannot be read."""
    return correct_params(call.name, parse_tool_input(call.input) or {})


class PastCall(NamedTuple):
    name: str
    input: object  # as the tool understands it; calls that are written differently can be the same
    content: str

    @classmethod
    def of(cls, call: ToolCall, content: str) -> PastCall:
        given = parse_tool_input(call.input) if len(call.input) <= _MAX_COMPARED_CHARS else None
        return cls(call.name, call.input if given is None else correct_params(call.name, given), content)


def find_past_calls(history: Sequence[Message], run_id: str) -> list[PastCall]:
    """Return the run's calls since the last prompt, oldest first; no more than `count_repeats` needs."""
    limit = STOP_AT_REPEATS * MAX_CYCLE_CALLS
    results: dict[str, ToolResult] = {}
    past_calls: list[PastCall] = []
    for message in reversed(history):
        if message.run_id != run_id or message.role == "user":
            break
        if message.role == "tool":
            results |= {part.tool_call_id: part for part in message.parts if isinstance(part, ToolResult)}
            continue
        calls = [part for part in reversed(message.parts) if isinstance(part, ToolCall) and part.id in results]
        past_calls += [PastCall.of(call, results.pop(call.id).content.partition(_MARK)[0]) for call in calls]
        if len(past_calls) >= limit:
            break
    return past_calls[:limit][::-1]


# A run that is summarized again and again makes no progress: after the last summaries the model has only repeated
# calls, or there was room for a single step each time.
REPEATED_SUMMARIES = 3
FEW_STEPS = 3  # results of so few steps may differ, say in a time of day, and are still no progress
NARROW_SUMMARIES = 10


def find_circle(summarized: Sequence[Sequence[Message]]) -> str | None:
    """Return why the conversation should not be summarized again; None if there was progress.

    `summarized` has the run's messages after each of its last summaries.
    """
    last = summarized[-REPEATED_SUMMARIES:]
    if len(last) == REPEATED_SUMMARIES:
        is_new = (_makes_new_calls(last[number], last[:number]) for number in range(1, len(last)))
        if not any(is_new):
            return (
                f"Stopped: the conversation was summarized {REPEATED_SUMMARIES} times, and after each summary the model"
                " only made the same calls again. Give it a smaller task, or use a model with a larger context window."
            )
    last = summarized[-NARROW_SUMMARIES:]
    if len(last) == NARROW_SUMMARIES and all(_count_steps(messages) <= 1 for messages in last):
        return (
            f"Stopped: after each of the last {NARROW_SUMMARIES} summaries the context had room for only one step."
            " Give the model a smaller task, or use one with a larger context window."
        )
    return None


def _makes_new_calls(messages: Sequence[Message], earlier: Sequence[Sequence[Message]]) -> bool:
    calls = _list_calls(messages)
    known = {call for group in earlier for call in _list_calls(group)}
    if _count_steps(messages) < FEW_STEPS:
        return not {call[:2] for call in calls} <= {call[:2] for call in known}
    return not calls <= known


def _list_calls(messages: Sequence[Message]) -> set[PastCall]:
    parts = [part for message in messages for part in message.parts]
    contents = {part.tool_call_id: part.content for part in parts if isinstance(part, ToolResult)}
    calls = (part for part in parts if isinstance(part, ToolCall))
    return {PastCall(call.name, call.input, contents.get(call.id, "").partition(_MARK)[0]) for call in calls}


def _count_steps(messages: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in messages)


def count_repeats(past_calls: Sequence[PastCall]) -> int:
    """Count how often the last call, or the last few calls together, happened in a row with the same results."""
    return max((_count_repeats(past_calls, size) for size in range(1, MAX_CYCLE_CALLS + 1)), default=0)


def _count_repeats(past_calls: Sequence[PastCall], size: int) -> int:
    cycle = past_calls[-size:]
    if len(cycle) < size:
        return 0
    count = 1
    while past_calls[-size * (count + 1) : -size * count] == cycle:
        count += 1
    return count

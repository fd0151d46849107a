"""Ids of tool calls: unique in a conversation, and translated to the format that each provider accepts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Literal

from kedge.protocol.messages import Message, ToolCall

IdRule = Literal["any", "anthropic", "mistral"]

# Servers of the chat wire accept all ids of their own; of foreign ones those that OpenAI accepts (40 characters).
_PATTERNS: dict[IdRule, re.Pattern[str]] = {
    "any": re.compile(r"[a-zA-Z0-9_-]{1,40}"),
    "anthropic": re.compile(r"[a-zA-Z0-9_-]{1,128}"),
    "mistral": re.compile(r"[a-zA-Z0-9]{9}"),
}


class CallIds:
    """Ids used so far in a conversation."""

    def __init__(self, used: frozenset[str] | set[str] = frozenset()) -> None:
        self._used = set(used)

    def copy(self) -> CallIds:
        return CallIds(self._used)

    def translate(self, call_id: str, rule: IdRule, *, is_own: bool) -> str:
        """Return the id to send for a call. Depends only on the call and those before it."""
        is_accepted = bool(call_id) if is_own and rule == "any" else _PATTERNS[rule].fullmatch(call_id) is not None
        new_id = call_id if is_accepted else make_id(call_id, rule)
        number = 0
        while new_id in self._used:
            number += 1
            new_id = make_id(f"{call_id}\n{number}", rule)
        self._used.add(new_id)
        return new_id


class StepIds:
    """Ids of the calls of one step.

    Results refer to calls by id, but some servers give no ids, or the same ones in each step. Then an id is made, which
    is the same in each attempt of the step.
    """

    def __init__(self, history: Sequence[Message]) -> None:
        self._history = history
        self._used: set[str] | None = None

    def make_unique(self, call_id: str, index: int) -> str:
        if self._used is None:  # computed only for steps with calls
            parts = (part for message in self._history for part in message.parts)
            self._used = {part.id for part in parts if isinstance(part, ToolCall)}
        if not call_id or call_id in self._used:
            last = self._history[-1].id if self._history else ""
            call_id = make_id(f"{last}\n{call_id}\n{index}")
        self._used.add(call_id)
        return call_id


def make_id(seed: str, rule: IdRule = "any") -> str:
    """Return an id that all providers with that rule accept."""
    digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:9] if rule == "mistral" else f"call_{digest[:24]}"

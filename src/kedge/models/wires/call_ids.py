"""The names of calls: what a provider gave, as another one takes it, and never the same one for two calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Literal

from kedge.protocol.messages import Message, ToolCall

IdRule = Literal["any", "anthropic", "mistral"]

# Chat's servers take their own whatever it is; of others what OpenAI takes: up to 40 characters.
_PATTERNS: dict[IdRule, re.Pattern[str]] = {
    "any": re.compile(r"[a-zA-Z0-9_-]{1,40}"),
    "anthropic": re.compile(r"[a-zA-Z0-9_-]{1,128}"),
    "mistral": re.compile(r"[a-zA-Z0-9]{9}"),
}


class CallIds:
    def __init__(self, used: frozenset[str] | set[str] = frozenset()) -> None:
        self._used = set(used)

    def copy(self) -> CallIds:
        return CallIds(self._used)

    def sent(self, call_id: str, rule: IdRule, *, is_own: bool) -> str:
        """The id under which the call goes out; the same one for the same calls before it."""
        is_taken = bool(call_id) if is_own and rule == "any" else _PATTERNS[rule].fullmatch(call_id) is not None
        made = call_id if is_taken else made_id(call_id, rule)
        turn = 0
        while made in self._used:
            turn += 1
            made = made_id(f"{call_id}\n{turn}", rule)
        self._used.add(made)
        return made


class StepIds:
    """The ids of the calls of one step. A result must find its call, also where a server gives no ids, or the same ones
    at each step: then one is made, the same at each attempt at the step."""

    def __init__(self, history: Sequence[Message]) -> None:
        self._history = history
        self._used: set[str] | None = None

    def unique(self, call_id: str, place: int) -> str:
        if self._used is None:  # nearly all steps that matter have calls; those that have none do not pay
            parts = (part for message in self._history for part in message.parts)
            self._used = {part.id for part in parts if isinstance(part, ToolCall)}
        if not call_id or call_id in self._used:
            last = self._history[-1].id if self._history else ""
            call_id = made_id(f"{last}\n{call_id}\n{place}")
        self._used.add(call_id)
        return call_id


def made_id(seed: str, rule: IdRule = "any") -> str:
    """An id that every provider of that rule takes."""
    digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:9] if rule == "mistral" else f"call_{digest[:24]}"

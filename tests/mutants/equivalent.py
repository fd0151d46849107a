"""Mutations that change nothing that anybody could notice, each with its reason: they are not counted."""

from __future__ import annotations

# (path below src/kedge, the line as it is, the line as it would be): why
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "agent/step.py",
        "super().__init__(error.text)",
        "pass",
    ): "the exception is caught in the turn, which reads `error` and never its text",
    (
        "store/sqlite/messages.py",
        "if known.size_bytes > self._max_bytes:",
        "if (known.size_bytes >= self._max_bytes):",
    ): "a history of exactly that size is read again instead of remembered, with the same result",
    (
        "client/server_process.py",
        "ready_w = -1",
        "ready_w = -2",
    ): "any number below zero says that the descriptor is closed",
}

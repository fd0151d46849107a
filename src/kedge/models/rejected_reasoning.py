"""Reasoning parts rejected by the provider (of another account, or of an expired key), omitted from later requests.

Without this the session could not continue. The rest of the conversation stays.
"""

from __future__ import annotations

import msgspec

from kedge.models.values import StepRequest
from kedge.protocol.messages import Message, Reasoning

MAX_SESSIONS = 1000  # one that is evicted is rejected once more, and then known again


class RejectedReasoning:
    def __init__(self) -> None:
        self._messages: dict[str, set[str]] = {}  # by session: ids of messages whose reasoning was rejected

    def add(self, request: StepRequest) -> bool:
        """Record that the request's reasoning was rejected. Returns False if it has none: something else is wrong."""
        rejected = {message.id for message in self.remove_from(request).history if _has_reasoning(message)}
        if not rejected:
            return False
        session_id = request.history[0].session_id
        known = self._messages.pop(session_id, set[str]())
        self._messages[session_id] = known | rejected
        if len(self._messages) > MAX_SESSIONS:
            del self._messages[next(iter(self._messages))]
        return True

    def remove_from(self, request: StepRequest) -> StepRequest:
        known = self._messages.get(request.history[0].session_id) if request.history else None
        if not known:
            return request
        history = [_without_reasoning(message) if message.id in known else message for message in request.history]
        return msgspec.structs.replace(request, history=history)


def _has_reasoning(message: Message) -> bool:
    return any(isinstance(part, Reasoning) for part in message.parts)


def _without_reasoning(message: Message) -> Message:
    parts = [part for part in message.parts if not isinstance(part, Reasoning)]
    return msgspec.structs.replace(message, parts=parts)

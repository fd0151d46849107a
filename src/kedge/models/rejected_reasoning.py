"""Thoughts that the provider does not take back: those of another account, or of a key that is no more.

A session would be lost with them, so they are left out from then on. The rest of the conversation is as it was.
"""

from __future__ import annotations

import msgspec

from kedge.models.values import StepRequest
from kedge.protocol.messages import Message, Reasoning

MAX_SESSIONS = 1000  # one that is forgotten is refused once more, and then known again


class StaleThoughts:
    def __init__(self) -> None:
        self._messages: dict[str, set[str]] = {}  # of a session: those whose thoughts were refused

    def add(self, request: StepRequest) -> bool:
        """All of this request's were refused. False: it had none, so that they are not what is wrong."""
        thoughtful = {message.id for message in self.without(request).history if _has_thoughts(message)}
        if not thoughtful:
            return False
        session_id = request.history[0].session_id
        known = self._messages.pop(session_id, set[str]())
        self._messages[session_id] = known | thoughtful
        if len(self._messages) > MAX_SESSIONS:
            del self._messages[next(iter(self._messages))]
        return True

    def without(self, request: StepRequest) -> StepRequest:
        known = self._messages.get(request.history[0].session_id) if request.history else None
        if not known:
            return request
        history = [_thoughtless(message) if message.id in known else message for message in request.history]
        return msgspec.structs.replace(request, history=history)


def _has_thoughts(message: Message) -> bool:
    return any(isinstance(part, Reasoning) for part in message.parts)


def _thoughtless(message: Message) -> Message:
    parts = [part for part in message.parts if not isinstance(part, Reasoning)]
    return msgspec.structs.replace(message, parts=parts)

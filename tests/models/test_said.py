"""A conversation is encoded once: what is sent is the same as if it were encoded each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kedge.models.chat import chat_messages
from kedge.models.said import Said
from kedge.protocol.messages import Finish, Message, Part, Text


class Wire:
    """Chat's, which notes what it was asked to encode."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def __call__(self, history: Sequence[Message]) -> list[dict[str, Any]]:
        self.encoded += [message.id for message in history]
        return chat_messages(history)


@pytest.fixture
def wire() -> Wire:
    return Wire()


def ask(i: int, text: str = "") -> Message:
    return Message(
        id=f"u{i}", session_id="s", run_id="r", role="user", parts=[Text(text or f"ask {i}")], created_at=0.0
    )


def answer(i: int) -> Message:
    parts: list[Part] = [Text(f"answer {i}"), Finish("end_turn")]
    return Message(id=f"a{i}", session_id="s", run_id="r", role="assistant", parts=parts, created_at=0.0)


def talk(turns: int) -> list[Message]:
    """A prompt after so many that were answered."""
    return [message for i in range(turns) for message in (ask(i), answer(i))] + [ask(turns)]


def sent(said: Said, history: Sequence[Message]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(said.messages(history)))


def test_each_turn_sends_the_whole_conversation(wire: Wire) -> None:
    said = Said(wire)
    for turns in range(5):
        assert sent(said, talk(turns)) == chat_messages(talk(turns))
    assert sent(said, []) == []


def test_a_message_is_encoded_as_a_turn_s_own_and_then_once_more(wire: Wire) -> None:
    said = Said(wire)
    for turns in range(5):
        sent(said, talk(turns))
    assert sorted(wire.encoded) == sorted(
        ["a0", "a1", "a2", "a3", "u0", "u1", "u2", "u3", "u4", "u0", "u1", "u2", "u3"]
    )


def test_a_step_of_the_same_turn_sends_the_steps_before_it(wire: Wire) -> None:
    said = Said(wire)
    sent(said, talk(2))
    steps = [*talk(2), answer(8), answer(9)]
    assert sent(said, steps) == chat_messages(steps)


def test_a_message_without_content_leaves_no_hole(wire: Wire) -> None:
    said = Said(wire)
    empty = Message(id="e", session_id="s", run_id="r", role="assistant", parts=[], created_at=0.0)
    for history in ([ask(0), empty, ask(1)], [empty, ask(1)], [ask(0), empty, ask(1), empty, ask(2)]):
        assert sent(said, history) == chat_messages(history)


def test_a_history_that_changed_is_sent_as_it_is_now(wire: Wire) -> None:
    said = Said(wire)
    sent(said, talk(3))
    changed = [ask(0, "something else"), *talk(3)[1:]]
    assert sent(said, changed) == chat_messages(changed)
    shorter = talk(3)[2:]
    assert sent(said, shorter) == chat_messages(shorter)


def test_no_more_is_remembered_than_allowed(wire: Wire) -> None:
    said = Said(wire, max_bytes=10_000)
    talks = [[msgspec.structs.replace(message, session_id=f"s{i}") for message in talk(3)] for i in range(20)]
    for history in talks:
        sent(said, history)
    wire.encoded.clear()
    sent(said, talks[-1])
    assert wire.encoded == ["u3"]  # the newest is remembered
    wire.encoded.clear()
    sent(said, talks[0])
    assert len(wire.encoded) == 7  # the oldest was forgotten
    large = [ask(0, "x" * 20_000), answer(0), ask(1)]
    assert sent(said, large) == chat_messages(large)

"""A conversation is encoded once: what is sent is the same as if it were encoded each time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.config.schema import WireName
from kedge.models.wires import chat
from kedge.models.wires.history import Abilities, EncodingState
from kedge.models.wires.registry import WIRES
from kedge.models.wires.requests import EncodedCache
from kedge.protocol.messages import Finish, Message, Part, Text, ToolCall, ToolResult
from tests.models.wires.conversations import histories

ALL = Abilities(provider="openai")


class Wire:
    """Chat's, which notes what it was asked to encode."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def __call__(self, history: Sequence[Message], abilities: Abilities, past: EncodingState) -> list[dict[str, Any]]:
        self.encoded += [message.id for message in history]
        return chat.encode(history, abilities, past)


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


def step(i: int) -> list[Message]:
    """A step that called a tool, and the call's result."""
    call: list[Part] = [ToolCall(f"call{i}", "view", "{}", True), Finish("tool_use")]
    result: list[Part] = [ToolResult(f"call{i}", "view", f"content {i}", False)]
    return [
        Message(id=f"c{i}", session_id="s", run_id="r", role="assistant", parts=call, created_at=0.0),
        Message(id=f"t{i}", session_id="s", run_id="r", role="tool", parts=result, created_at=0.0),
    ]


def talk(turns: int) -> list[Message]:
    """A prompt after so many that were answered."""
    return [message for i in range(turns) for message in (ask(i), answer(i))] + [ask(turns)]


def sent(cache: EncodedCache, wire: Wire, history: Sequence[Message]) -> Any:
    return json.loads(msgspec.json.encode(cache.encode_messages(wire, history, ALL)))


def plain(history: Sequence[Message]) -> Any:
    return json.loads(msgspec.json.encode(chat.encode(history, ALL, EncodingState())))


def test_each_turn_sends_the_whole_conversation(wire: Wire) -> None:
    cache = EncodedCache()
    for turns in range(5):
        assert sent(cache, wire, talk(turns)) == plain(talk(turns))
    assert sent(cache, wire, []) == []


def test_a_message_is_encoded_no_more_often_than_its_place_near_the_end_wants(wire: Wire) -> None:
    cache = EncodedCache()
    for turns in range(20):
        sent(cache, wire, talk(turns))
    assert max(wire.encoded.count(each) for each in wire.encoded) <= 4
    wire.encoded.clear()
    sent(cache, wire, talk(20))
    assert len(wire.encoded) <= 8


def test_the_steps_of_a_turn_are_remembered_too(wire: Wire) -> None:
    cache = EncodedCache()
    history = [ask(0)]
    for i in range(50):
        history += step(i)
        wire.encoded.clear()
        assert sent(cache, wire, history) == plain(history)
        assert len(wire.encoded) <= 6


def test_a_message_without_content_leaves_no_hole(wire: Wire) -> None:
    cache = EncodedCache()
    empty = Message(id="e", session_id="s", run_id="r", role="assistant", parts=[], created_at=0.0)
    for history in ([ask(0), empty, ask(1)], [empty, ask(1)], [ask(0), empty, ask(1), empty, ask(2)]):
        assert sent(cache, wire, history) == plain(history)


def test_a_history_that_changed_is_sent_as_it_is_now(wire: Wire) -> None:
    cache = EncodedCache()
    sent(cache, wire, talk(5))
    changed = [ask(0, "something else"), *talk(5)[1:]]
    assert sent(cache, wire, changed) == plain(changed)
    shorter = talk(5)[2:]
    assert sent(cache, wire, shorter) == plain(shorter)


def test_models_that_see_different_things_are_remembered_apart(wire: Wire) -> None:
    cache = EncodedCache()
    for able in (ALL, Abilities(images=False), ALL, Abilities(tools=False)):
        history = [ask(0), *step(0), *step(1), *step(2)]
        encoded = json.loads(msgspec.json.encode(cache.encode_messages(wire, history, able)))
        assert encoded == json.loads(msgspec.json.encode(chat.encode(history, able, EncodingState())))


def test_no_more_is_remembered_than_allowed(wire: Wire) -> None:
    cache = EncodedCache(max_bytes=20_000)
    talks = [[msgspec.structs.replace(message, session_id=f"s{i}") for message in talk(6)] for i in range(20)]
    for history in talks:
        sent(cache, wire, history)
    wire.encoded.clear()
    sent(cache, wire, talks[-1])
    assert len(wire.encoded) < 7  # the newest is remembered
    wire.encoded.clear()
    sent(cache, wire, talks[0])
    assert len(wire.encoded) == 13  # the oldest was forgotten
    large = [ask(0, "x" * 20_000), answer(0), *talk(3)]
    assert sent(cache, wire, large) == plain(large)


# Few messages, so that those of one role meet at every place.
PLAIN = [ask(0), answer(0), answer(1), *step(0), *step(1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WIRES))
@given(history=histories(24) | st.lists(st.sampled_from(PLAIN), max_size=12), data=st.data())
@settings(max_examples=100)
def test_any_history_is_sent_as_if_nothing_were_remembered(
    name: WireName, history: list[Message], data: st.DataObject
) -> None:
    encode = WIRES[name].encode
    cache = EncodedCache()
    for _ in range(3):
        part = history[: data.draw(st.integers(0, len(history)))]
        remembered = msgspec.json.encode(cache.encode_messages(encode, part, ALL))
        assert remembered == msgspec.json.encode(encode(part, ALL, EncodingState()))

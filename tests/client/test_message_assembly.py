"""P12: exact text from snapshots, deltas and whole messages, in any order and with overlaps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.client.errors import Dropped
from kedge.client.message_assembly import RunMessages
from tests.client.timeline import RUN, SESSION

Payload = dict[str, Any]


def whole(*texts: str, reason: str | None = None, message_id: str = "m", run_id: str = RUN, **more: Any) -> Payload:
    parts: list[Payload] = [{"type": "text", "text": text} for text in texts]
    parts += [{"type": "finish", "reason": reason}] if reason else []
    return {"id": message_id, "session_id": SESSION, "run_id": run_id, "role": "assistant", "parts": parts, **more}


def delta(
    offset: int, text: str, part: int = 0, kind: str = "text", message_id: str = "m", run_id: str = RUN
) -> Payload:
    ids = {"message_id": message_id, "session_id": SESSION, "run_id": run_id}
    return {**ids, "part": part, "kind": kind, "offset": offset, "text": text}


@pytest.fixture
def messages() -> RunMessages:
    messages = RunMessages(RUN)
    messages.take_message(whole(), is_snapshot=False)
    return messages


def text(messages: RunMessages) -> str:
    message = messages.get("m")
    assert message is not None
    return message.text


def told(messages: RunMessages) -> str:
    message = messages.get("m")
    assert message is not None
    return "".join(message.take_new_text())


def test_deltas_make_the_text(messages: RunMessages) -> None:
    assert messages.take_delta(delta(0, "ab")) == [(0, "text", 0, "ab")]
    assert messages.take_delta(delta(2, "c")) == [(0, "text", 2, "c")]
    assert text(messages) == "abc"


def test_the_overlap_of_a_delta_is_dropped(messages: RunMessages) -> None:
    messages.take_delta(delta(0, "abc"))
    assert messages.take_delta(delta(0, "ab")) == []
    assert messages.take_delta(delta(1, "bcde")) == [(0, "text", 3, "de")]
    assert text(messages) == "abcde"


def test_a_delta_beyond_the_known_text_raises_dropped(messages: RunMessages) -> None:
    messages.take_delta(delta(0, "abc"))
    with pytest.raises(Dropped):
        messages.take_delta(delta(4, "e"))
    with pytest.raises(Dropped):
        messages.take_delta(delta(1, "x", part=1))
    assert text(messages) == "abc"


def test_a_delta_of_an_unknown_message_raises_dropped(messages: RunMessages) -> None:
    with pytest.raises(Dropped):
        messages.take_delta(delta(0, "a", message_id="unheard"))


def test_a_part_before_that_has_no_text_yet_is_no_gap(messages: RunMessages) -> None:
    """The server announces no part without text: redacted reasoning, or a call whose input has not begun."""
    messages.take_delta(delta(0, "answer", part=1))
    assert text(messages) == "answer"
    redacted = {"type": "reasoning", "text": "", "redacted": True}
    messages.take_message({**whole(), "parts": [redacted, {"type": "text", "text": "answer"}]}, is_snapshot=False)
    assert text(messages) == "answer"


def test_offsets_count_code_points(messages: RunMessages) -> None:
    messages.take_delta(delta(0, "😀ä"))
    messages.take_delta(delta(2, "\u2028e\u0301"))
    messages.take_delta(delta(3, "e\u0301!"))
    assert text(messages) == "😀ä\u2028e\u0301!"


def test_deltas_continue_after_a_snapshot(messages: RunMessages) -> None:
    messages.take_delta(delta(0, "ab"))
    assert messages.take_message(whole("abcd"), is_snapshot=True) == [(0, "text", 2, "cd")]
    messages.take_delta(delta(4, "e"))
    assert text(messages) == "abcde"


def test_an_older_snapshot_removes_nothing(messages: RunMessages) -> None:
    messages.take_delta(delta(0, "abcd"))
    assert messages.take_message(whole("ab"), is_snapshot=True) == []
    messages.take_message(whole("ab", reason="interrupted"), is_snapshot=False)
    assert text(messages) == "abcd"


def test_messages_of_other_runs_are_ignored(messages: RunMessages) -> None:
    assert messages.take_message(whole("x", message_id="o", run_id="other"), is_snapshot=False) == []
    assert messages.take_delta(delta(7, "x", message_id="o", run_id="other")) == []
    assert messages.get("o") is None


def test_summaries_prompts_and_results_are_not_answers(messages: RunMessages) -> None:
    messages.take_message(whole("s", message_id="s", summary=True), is_snapshot=False)
    messages.take_message(whole("u", message_id="u") | {"role": "user"}, is_snapshot=False)
    messages.take_message(whole("t", message_id="t") | {"role": "tool"}, is_snapshot=False)
    messages.take_delta(delta(1, "more", message_id="s"))
    assert [message.id for message in messages.answers] == ["m"]


def test_reasoning_and_calls_grow_but_are_not_text(messages: RunMessages) -> None:
    messages.take_delta(delta(0, "hm", kind="reasoning"))
    messages.take_delta(delta(0, "yes", part=1))
    messages.take_delta(delta(0, '{"a', part=2, kind="tool_input"))
    parts = [
        {"type": "reasoning", "text": "hmm"},
        {"type": "text", "text": "yes"},
        {"type": "tool_call", "id": "c", "name": "ls", "input": '{"a": 1}', "finished": True},
        {"type": "finish", "reason": "tool_use"},
    ]
    grown = messages.take_message(whole() | {"parts": parts}, is_snapshot=False)
    assert grown == [(0, "reasoning", 2, "m"), (2, "tool_input", 3, '": 1}')]
    assert text(messages) == "yes"


def test_a_final_result_may_differ_from_the_streamed_output(messages: RunMessages) -> None:
    messages.take_delta(delta(0, "a long output", kind="tool_output"))
    result = {"type": "tool_result", "tool_call_id": "c", "name": "ls", "content": "a l… (cut)", "is_error": False}
    assert messages.take_message(whole() | {"parts": [result]}, is_snapshot=False) == []


def test_a_text_part_waits_for_the_text_parts_before_it(messages: RunMessages) -> None:
    messages.take_delta(delta(0, "on"))
    messages.take_delta(delta(0, "two", part=1))
    assert told(messages) == "on"
    messages.take_delta(delta(2, "e "))
    assert told(messages) == "e "
    messages.take_message(whole("one ", "tw"), is_snapshot=True)
    assert told(messages) == ""
    messages.take_message(whole("one "), is_snapshot=False)
    assert told(messages) == "two"
    messages.take_delta(delta(3, "!", part=1))
    assert told(messages) == "!"


def test_text_is_returned_once(messages: RunMessages) -> None:
    messages.take_delta(delta(0, "ab"))
    assert (told(messages), told(messages)) == ("ab", "")
    messages.take_message(whole("abc", reason="end_turn"), is_snapshot=False)
    assert (told(messages), told(messages)) == ("c", "")


@given(
    final=st.text(min_size=1, max_size=60),
    hints=st.lists(st.tuples(st.sampled_from(["delta", "snapshot"]), st.integers(0, 60), st.integers(0, 60))),
)
def test_any_order_of_deltas_and_snapshots_gives_a_growing_prefix(
    final: str, hints: list[tuple[str, int, int]]
) -> None:
    messages = RunMessages(RUN)
    messages.take_message(whole(), is_snapshot=False)
    printed = ""
    for kind, a, b in hints:
        start, end = sorted((a % (len(final) + 1), b % (len(final) + 1)))
        if kind == "snapshot":
            messages.take_message(whole(final[:end]), is_snapshot=True)
        elif start > len(printed):
            with pytest.raises(Dropped):
                messages.take_delta(delta(start, final[start:end]))
        else:
            messages.take_delta(delta(start, final[start:end]))
        printed += told(messages)
        assert printed == final[: len(printed)]
    messages.take_message(whole(final, reason="end_turn"), is_snapshot=False)
    assert printed + told(messages) == final

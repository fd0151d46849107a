"""What is left of a conversation that must be read once more: within its bound, its end kept longest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kedge.agent.history_size import MARK_CHARS, MIN_KEPT_CHARS, count_chars, cut_text, shrink_history
from kedge.models.wires.history import Abilities, valid_history
from kedge.protocol.messages import File, Finish, Image, Message, Part, Role, Text, ToolCall, ToolResult
from tests.models.wires.conversations import histories


def message(role: Role, *parts: Part, summary: bool = False) -> Message:
    return Message(id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0, summary=summary)


def round_of(number: int, output: str) -> list[Message]:
    call = ToolCall(f"c{number}", "view", '{"path": "a"}', True)
    return [
        message("assistant", call, Finish("tool_use")),
        message("tool", ToolResult(call.id, "view", output, False)),
    ]


def test_what_fits_is_left_alone() -> None:
    history = [message("user", Text("go")), *round_of(1, "x" * 100)]
    assert shrink_history(history, count_chars(history)) == history


def test_the_longest_results_are_cut_first_and_the_others_stay_whole() -> None:
    history = [
        message("user", Text("go")),
        *round_of(1, "a" * 50_000),
        *round_of(2, "b" * 300),
        *round_of(3, "c" * 9_000),
    ]
    small = shrink_history(history, 12_000)
    results = [part.content for each in small for part in each.parts if isinstance(part, ToolResult)]
    assert len(small) == len(history)
    assert results[1] == "b" * 300
    assert "characters left out" in results[0]
    assert results[0].startswith("aaa")
    assert results[0].rstrip().endswith("aaa")
    assert count_chars(small) <= 12_000


def test_an_earlier_summary_and_the_end_are_kept_when_the_rest_has_to_go() -> None:
    summary = message("assistant", Text("earlier"), Finish("end_turn"), summary=True)
    talk = [message("user", Text(f"{number} " + "x" * 500)) for number in range(100)]
    small = shrink_history([summary, *talk], 5_000)
    assert small[0] == summary
    assert small[-1] == talk[-1]
    assert 2 < len(small) < 12


def test_images_and_attached_files_become_a_word() -> None:
    history = [message("user", Text("look"), Image("image/png", b"x"), File("a.txt", "text/plain", b"y" * 90_000))]
    (small,) = shrink_history(history, 1_000)
    assert small.parts == [
        Text("look"),
        Text("[an image was here: image/png]"),
        Text("[the file a.txt was attached here: 90000 bytes]"),
    ]


@given(st.text(max_size=400), st.integers(1, 300))
def test_cut_text_keeps_both_ends(text: str, most: int) -> None:
    cut = cut_text(text, most)
    if len(text) <= most:
        assert cut == text
    else:
        assert len(cut) <= max(most, MARK_CHARS)
        before, _, after = cut.partition("\n[… ")
        assert text.startswith(before)
        assert text.endswith(after.partition(" characters left out …]\n")[2])


@given(histories(), st.integers(0, 3_000))
def test_whatever_is_left_is_still_a_conversation(history: list[Message], most: int) -> None:
    small = shrink_history(history, most)
    said = valid_history(small, Abilities())
    assert not said or said[0].role == "user"
    if count_chars(history) > most:
        assert count_chars(small) <= max(count_chars(history), most) + MIN_KEPT_CHARS * len(history)

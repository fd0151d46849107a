"""What `kedge run` may print, and where: the rules of section 5 about the answer."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.client.events import EventCursor
from kedge.client.run_output import RESTARTED, AnswerText, FinalOutput, LiveOutput
from kedge.client.run_view import RunView
from tests.client.timeline import RUN, Said, Timeline

Printed = tuple[str, str]  # standard output, standard error


def view_of(timeline: Timeline, upto: int | None = None) -> RunView:
    return play(timeline, RunView(RUN), upto)


def play(timeline: Timeline, view: RunView, upto: int | None = None) -> RunView:
    cursor = EventCursor()
    for _, event, _ in cursor.feed(b"".join(timeline.frames(0, None)[: None if upto is None else upto + 2])):
        view.take(event)
    return view


def printed(output: LiveOutput | FinalOutput, view: RunView) -> Printed:
    assert view.end is not None
    out = err = ""
    for kind, text in [*output.new_pieces(), *output.finish(view.end)]:
        if kind in ("answer", "break"):
            out += text
        else:
            err += text if kind == "aside" else f"[{text}]"
    return out, err


def live(*said: Said, **end: Any) -> Printed:
    view = view_of(Timeline.of(*said, **end))
    return printed(LiveOutput(view.messages), view)


def final(*said: Said, **end: Any) -> Printed:
    view = view_of(Timeline.of(*said, **end))
    return printed(FinalOutput(view.messages), view)


CALL = Said([["let me look"]], "tool_use")
ANSWER = Said([["the ", "answer"]])


def test_live_a_newline_is_added_if_there_is_none() -> None:
    assert live(ANSWER) == ("the answer\n", "")
    assert live(Said([["the answer\n"]])) == ("the answer\n", "")
    assert live(Said([["the answer\n\n "]])) == ("the answer\n\n \n", "")


def test_live_there_is_a_blank_line_between_messages() -> None:
    assert live(CALL, ANSWER) == ("let me look\n\nthe answer\n", "")
    assert live(Said([["let me look\n"]], "tool_use"), ANSWER) == ("let me look\n\nthe answer\n", "")


def test_live_messages_without_text_leave_no_trace() -> None:
    assert live(Said([], "tool_use"), Said([], "tool_use"), ANSWER, Said([])) == ("the answer\n", "")


def test_live_an_interrupted_attempt_is_a_newline_and_a_line_on_standard_error() -> None:
    assert live(Said([["the an"]], "interrupted"), ANSWER) == ("the an\nthe answer\n", f"[{RESTARTED}]")
    assert live(CALL, Said([["the an"]], "interrupted"), ANSWER) == (
        "let me look\n\nthe an\nthe answer\n",
        f"[{RESTARTED}]",
    )


def test_live_an_attempt_that_said_nothing_is_not_mentioned() -> None:
    assert live(CALL, Said([], "interrupted"), ANSWER) == ("let me look\n\nthe answer\n", "")


def test_live_summaries_and_other_runs_are_not_shown() -> None:
    foreign = Said([["theirs"]], run_id="other")
    assert live(Said([["so far"]], summary=True), foreign, ANSWER) == ("the answer\n", "")


@pytest.mark.parametrize("output", [live, final])
def test_empty_stays_empty(output: Any) -> None:
    assert output() == ("", "")
    assert output(Said([[""]])) == ("", "")


@pytest.mark.parametrize("output", [live, final])
def test_nothing_is_trimmed(output: Any) -> None:
    assert output(Said([[" \n\x00", "\u2028\t\n"]])) == (" \n\x00\u2028\t\n", "")


def test_at_the_end_the_answer_alone_and_the_rest_aside() -> None:
    assert final(CALL, ANSWER) == ("the answer\n", "let me look\n")


def test_at_the_end_attempts_that_failed_are_invisible() -> None:
    assert final(Said([["the an"]], "interrupted"), ANSWER) == ("the answer\n", "")


def test_at_the_end_of_a_failed_run_what_it_said_last_is_the_text() -> None:
    assert final(CALL, Said([["half an ans"]], "error"), error="no more") == ("half an ans\n", "let me look\n")


def test_a_message_goes_aside_as_soon_as_it_is_not_the_last() -> None:
    timeline = Timeline.of(CALL, ANSWER)
    view = RunView(RUN)
    output = FinalOutput(view.messages)
    heard_at: list[int] = []
    for upto in range(len(timeline.happened) + 1):
        heard_at += [upto] * len(list(FinalOutput(play(timeline, RunView(RUN), upto).messages).new_pieces()))
        assert not list(output.new_pieces())
    first_of_answer = next(i for i, h in enumerate(timeline.happened) if b"message-2" in h.frame)
    assert heard_at[0] == first_of_answer + 1


def test_live_text_is_told_while_it_comes_and_the_end_adds_only_the_rest() -> None:
    timeline = Timeline.of(ANSWER)
    for upto in range(len(timeline.happened)):
        view = view_of(timeline, upto)
        output = LiveOutput(view.messages)
        before = "".join(text for _, text in output.new_pieces())
        assert "the answer\n".startswith(before)
        end: dict[str, Any] = {"message_id": "message-1", "text": "the answer"}
        assert before + "".join(text for _, text in output.finish(end)) == "the answer\n"


def test_the_answer_of_a_message_that_was_never_seen_is_told_in_full() -> None:
    view = view_of(Timeline.of(CALL))
    output = LiveOutput(view.messages)
    end = {"message_id": "a host's message", "text": "joined"}
    assert "".join(text for _, text in [*output.new_pieces(), *output.finish(end)]) == "let me look\n\njoined\n"


def test_text_that_the_server_lost_in_a_crash_is_not_told_again() -> None:
    view = view_of(Timeline.of(Said([["long ", "answer"]], "canceled")))
    output = LiveOutput(view.messages)
    end = {"message_id": "message-1", "text": "long"}
    assert "".join(text for _, text in [*output.new_pieces(), *output.finish(end)]) == "long answer\n"


def test_a_program_gets_the_text_without_the_last_newline() -> None:
    view = view_of(Timeline.of(CALL, ANSWER))
    assert view.end is not None
    output, text = LiveOutput(view.messages), AnswerText()
    assert (
        "".join([*text.take(output.new_pieces()), *text.take(output.finish(view.end))]) == "let me look\n\nthe answer"
    )

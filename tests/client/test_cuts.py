"""The stream is cut, at every byte and as often as one likes: what is printed is the same every time (P9, P12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.client.events import EventCursor
from kedge.client.run_follower import RunTracker
from kedge.client.run_output import FinalOutput, LiveOutput
from tests.client.timeline import RUN, SESSION, Said, Timeline

TellerOf = Callable[..., LiveOutput | FinalOutput]
TELLERS: list[TellerOf] = [LiveOutput, FinalOutput]

STORY = Timeline.of(
    Said([["Let me ", "look.\n"]], "tool_use", reasoning="hmm"),
    Said([["Th"]], "interrupted"),
    Said([["so far"]], summary=True),
    Said([["not ours"]], run_id="other"),
    Said([["The ", "änswer\u2028", "is 4", "2 😀"], ["\x00 and", " more"]]),
)


class Listener:
    """A client without a network: it is handed bytes, and prints."""

    def __init__(self, output: TellerOf) -> None:
        self.tracker = RunTracker("/v1/workspaces/w", {"run_id": RUN, "session_id": SESSION})
        self.printed: list[tuple[str, str]] = []
        self._teller = output(self.tracker.view.messages)

    @property
    def cursor(self) -> int | None:
        return self.tracker.cursor.seq

    def hear(self, stream: bytes) -> None:
        self.tracker.cursor.begin_connection()
        for _, event, data in self.tracker.cursor.feed(stream):
            self.tracker.take(event, data)
            self.printed += self._teller.new_pieces()
        if self.tracker.view.end is not None:
            self.printed += self._teller.finish(self.tracker.view.end)

    @property
    def output(self) -> dict[str, str]:
        """What ended up on each stream, and in which order the streams were used."""
        kinds = {"answer": "out", "break": "out", "aside": "err", "note": "err"}
        output = {"out": "", "err": "", "order": ""}
        for kind, text in self.printed:
            output[kinds[kind]] += text
            if not output["order"].endswith(kinds[kind]):
                output["order"] += f" {kinds[kind]}"
        return output


def listen(timeline: Timeline, output: TellerOf, cuts: Iterable[tuple[int, int]] = ()) -> dict[str, str]:
    """Hear the cursor; after each cut (so many bytes) that many things happen before the client is back."""
    listener = Listener(output)
    moment = 0
    cursor: int | None = None
    for cut, away in cuts:
        stream = timeline.heard(moment, cursor)
        listener.hear(stream[:cut])
        if listener.tracker.view.end is not None:
            return listener.output
        moment = min(timeline.moment_at(moment, cursor, cut) + away, len(timeline.happened))
        # A client that was cut off before `connected` has not sent its prompt: nothing has happened yet.
        cursor = listener.cursor
        if cursor is None:
            moment = 0
    listener.hear(timeline.heard(moment, cursor))
    return listener.output


@pytest.mark.parametrize("output", TELLERS)
def test_a_cut_at_every_byte_changes_nothing(output: TellerOf) -> None:
    whole = listen(STORY, output)
    assert "änswer" in whole["out"]
    for cut in range(len(STORY.heard(0, None)) + 1):
        assert listen(STORY, output, [(cut, 0)]) == whole, f"cut at byte {cut}"


@pytest.mark.parametrize("output", TELLERS)
@pytest.mark.parametrize("away", [1, 2, 3, 5, 8, 100])
def test_what_happens_while_the_client_is_away_is_not_missed(output: TellerOf, away: int) -> None:
    whole = listen(STORY, output)
    edges = [sum(map(len, STORY.frames(0, None)[:n])) for n in range(1, len(STORY.frames(0, None)) + 1)]
    for edge in edges:
        for cut in (edge - 1, edge, edge + 1):
            assert listen(STORY, output, [(cut, away)]) == whole, f"cut at byte {cut}"


pieces = st.lists(st.text(max_size=4), max_size=4)
messages = st.builds(
    Said,
    parts=st.lists(pieces, max_size=3),
    reason=st.sampled_from(["tool_use", "end_turn", "interrupted", "max_tokens"]),
    summary=st.sampled_from([False, False, False, True]),
    run_id=st.sampled_from([RUN, RUN, RUN, "other"]),
    reasoning=st.sampled_from(["", "", "hm"]),
)


@given(
    said=st.lists(messages, max_size=5),
    cuts=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 6)), max_size=6),
    output=st.sampled_from(TELLERS),
)
def test_any_story_cut_anywhere_any_number_of_times_is_told_the_same(
    said: list[Said], cuts: list[tuple[int, int]], output: TellerOf
) -> None:
    timeline = Timeline.of(*said)
    assert listen(timeline, output, cuts) == listen(timeline, output)


def test_a_frame_that_is_heard_twice_is_told_once() -> None:
    connected, *frames = STORY.frames(0, None)
    whole = listen(STORY, LiveOutput)
    listener = Listener(LiveOutput)
    listener.hear(connected + b"".join(frame * 2 for frame in frames))
    assert listener.output == whole


def test_a_story_starts_where_it_was_left() -> None:
    cursor = EventCursor(session_id=SESSION)
    cursor.begin_connection()
    list(cursor.feed(STORY.heard(0, None)))
    assert cursor.seq == STORY.head

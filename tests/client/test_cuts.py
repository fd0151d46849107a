"""The stream is cut, at every byte and as often as one likes: what is printed is the same every time (P9, P12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.client.event_cursor import Story
from kedge.client.run_output import FinalTeller, LiveTeller
from kedge.client.run_view import RunCore
from tests.client.timeline import RUN, SESSION, Said, Timeline

TellerOf = Callable[..., LiveTeller | FinalTeller]
TELLERS: list[TellerOf] = [LiveTeller, FinalTeller]

STORY = Timeline.of(
    Said([["Let me ", "look.\n"]], "tool_use", reasoning="hmm"),
    Said([["Th"]], "interrupted"),
    Said([["so far"]], summary=True),
    Said([["not ours"]], run_id="other"),
    Said([["The ", "änswer\u2028", "is 4", "2 😀"], ["\x00 and", " more"]]),
)


class Listener:
    """A client without a network: it is handed bytes, and prints."""

    def __init__(self, teller: TellerOf) -> None:
        self.core = RunCore("/v1/workspaces/w", {"run_id": RUN, "session_id": SESSION})
        self.printed: list[tuple[str, str]] = []
        self._teller = teller(self.core.view.messages)

    @property
    def cursor(self) -> int | None:
        return self.core.story.seq

    def hear(self, stream: bytes) -> None:
        self.core.story.connect()
        for event, data in self.core.story.feed(stream):
            self.core.take(event, data)
            self.printed += self._teller.news()
        if self.core.view.end is not None:
            self.printed += self._teller.finish(self.core.view.end)

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


def listen(timeline: Timeline, teller: TellerOf, cuts: Iterable[tuple[int, int]] = ()) -> dict[str, str]:
    """Hear the story; after each cut (so many bytes) that many things happen before the client is back."""
    listener = Listener(teller)
    moment = 0
    cursor: int | None = None
    for cut, away in cuts:
        stream = timeline.heard(moment, cursor)
        listener.hear(stream[:cut])
        if listener.core.view.end is not None:
            return listener.output
        moment = min(timeline.moment_at(moment, cursor, cut) + away, len(timeline.happened))
        # A client that was cut off before `connected` has not sent its prompt: nothing has happened yet.
        cursor = listener.cursor
        if cursor is None:
            moment = 0
    listener.hear(timeline.heard(moment, cursor))
    return listener.output


@pytest.mark.parametrize("teller", TELLERS)
def test_a_cut_at_every_byte_changes_nothing(teller: TellerOf) -> None:
    whole = listen(STORY, teller)
    assert "änswer" in whole["out"]
    for cut in range(len(STORY.heard(0, None)) + 1):
        assert listen(STORY, teller, [(cut, 0)]) == whole, f"cut at byte {cut}"


@pytest.mark.parametrize("teller", TELLERS)
@pytest.mark.parametrize("away", [1, 2, 3, 5, 8, 100])
def test_what_happens_while_the_client_is_away_is_not_missed(teller: TellerOf, away: int) -> None:
    whole = listen(STORY, teller)
    edges = [sum(map(len, STORY.frames(0, None)[:n])) for n in range(1, len(STORY.frames(0, None)) + 1)]
    for edge in edges:
        for cut in (edge - 1, edge, edge + 1):
            assert listen(STORY, teller, [(cut, away)]) == whole, f"cut at byte {cut}"


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
    teller=st.sampled_from(TELLERS),
)
def test_any_story_cut_anywhere_any_number_of_times_is_told_the_same(
    said: list[Said], cuts: list[tuple[int, int]], teller: TellerOf
) -> None:
    timeline = Timeline.of(*said)
    assert listen(timeline, teller, cuts) == listen(timeline, teller)


def test_a_frame_that_is_heard_twice_is_told_once() -> None:
    connected, *frames = STORY.frames(0, None)
    whole = listen(STORY, LiveTeller)
    listener = Listener(LiveTeller)
    listener.hear(connected + b"".join(frame * 2 for frame in frames))
    assert listener.output == whole


def test_a_story_starts_where_it_was_left() -> None:
    story = Story(session_id=SESSION)
    story.connect()
    list(story.feed(STORY.heard(0, None)))
    assert story.seq == STORY.head

"""Lines are wrapped at words, counted in cells, and padded to the exact width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from rich.style import Style

from kedge.protocol.text_safety import visible
from kedge.tui.chat.lines import chop, make_strip, plain, truncate, width_of, wrap
from tests.tui.chat.support import texts

WILD = st.text(st.sampled_from("ab \n\t字漢👩\u200d🚀é\u0301☺\ufe0f\x1b\x07"), max_size=40) | st.text(max_size=40)
SEGMENTS = st.lists(st.tuples(WILD, st.sampled_from([Style(bold=True), Style.null()])), max_size=5)


def of(text: str) -> list[Segment]:
    return [Segment(text, Style.null())]


def test_lines_break_between_words() -> None:
    assert texts(wrap(of("the quick brown fox"), 10)) == ["the quick", "brown fox"]
    assert texts(wrap(of("a\n\nb"), 10)) == ["a", "", "b"]


def test_a_word_that_is_too_long_is_cut() -> None:
    assert texts(wrap(of("see abcdefghijkl now"), 5)) == ["see", "abcde", "fghij", "kl", "now"]


def test_wide_characters_count_twice() -> None:
    assert texts(wrap(of("漢字漢字"), 5)) == ["漢字", "漢字"]
    assert make_strip(of("漢字"), 3).cell_length == 3


def test_styles_survive_the_break() -> None:
    bold = Style(bold=True)
    lines = wrap([Segment("one ", Style.null()), Segment("two three", bold)], 7)
    assert [[(segment.text, segment.style == bold) for segment in line] for line in lines] == [
        [("one ", False), ("two", True)],
        [("three", True)],
    ]


def test_code_keeps_its_spaces_where_it_is_cut() -> None:
    assert [plain(each) for each in chop(of("    if x:"), 4)] == ["    ", "if x", ":"]


def test_text_that_does_not_fit_ends_with_an_ellipsis() -> None:
    assert plain(truncate(of("a long subject"), 7)) == "a long…"
    assert plain(truncate(of("short"), 7)) == "short"


@given(SEGMENTS, st.integers(1, 30))
def test_any_text_is_wrapped_without_loss_and_fits(given_segments: list[tuple[str, Style]], width: int) -> None:
    segments = [Segment(visible(text), style) for text, style in given_segments]
    lines = wrap(segments, width)
    assert "".join("".join(map(plain, lines)).split()) == "".join(plain(segments).split())
    for line in lines:
        assert make_strip(line, width).cell_length == width
    without_feeds = [Segment(segment.text.replace("\n", ""), segment.style) for segment in segments]
    assert "".join(map(plain, chop(without_feeds, width))) == plain(without_feeds)
    assert width_of(truncate(without_feeds, width)) <= width

"""What a model sees of a command's output: clean text, cut in the middle, never inside a character, exactly counted."""

from __future__ import annotations

import re
import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from kedge.tools.process.output import Cleaner, Excerpt

# Few characters, so that what must not be separated meets often: CRLF, accents, joined emoji, skin colours.
LETTERS = "ab\n\r\u0301\u0300\u200d\U0001f469\U0001f3fd\U0001f52cé世"
TEXTS = st.text(alphabet=LETTERS, max_size=120)
PIECES = st.lists(TEXTS, max_size=8)
LIMITS = st.integers(min_value=2, max_value=60)


def excerpt(pieces: list[str], limit: int) -> Excerpt:
    taken = Excerpt(limit)
    for piece in pieces:
        taken.add(piece)
    return taken


@given(PIECES, LIMITS)
def test_what_fits_is_shown_whole(pieces: list[str], limit: int) -> None:
    whole = "".join(pieces)
    taken = excerpt(pieces, limit)
    assert (taken.parts() is None) == (len(whole) <= limit // 2 * 2)
    if taken.parts() is None:
        assert taken.text() == whole


@given(PIECES, LIMITS)
def test_of_more_the_beginning_and_the_end_are_shown_within_the_bound(pieces: list[str], limit: int) -> None:
    whole = "".join(pieces)
    if (parts := excerpt(pieces, limit).parts()) is not None:
        head, tail, *_ = parts
        assert len(head) + len(tail) <= limit
        assert whole.startswith(head)
        assert whole.endswith(tail)


@given(PIECES, LIMITS)
def test_no_cut_goes_through_a_character(pieces: list[str], limit: int) -> None:
    whole = "".join(pieces)
    if (parts := excerpt(pieces, limit).parts()) is None:
        return
    head, tail, *_ = parts
    for at in (len(head), len(whole) - len(tail)):
        if 0 < at < len(whole) and not is_a_long_joke(whole, at):
            before, after = whole[at - 1], whole[at]
            if before == "\n":
                continue
            assert (before, after) != ("\r", "\n")
            assert "\u200d" not in (before, after)
            assert unicodedata.category(after) != "Mn"
            assert after != "\U0001f3fd"


def is_a_long_joke(text: str, at: int) -> bool:
    """A hundred accents on one letter are cut all the same: somewhere it must be."""
    return bool(
        re.search("[\u0301\u0300\u200d\U0001f3fd\r\n\U0001f469\U0001f52c]{16}", text[max(at - 34, 0) : at + 34])
    )


@given(PIECES, LIMITS)
@example(["a\r\n"], 2)  # the cut ends with a line although nothing of the text follows
def test_what_is_told_of_the_cut_is_exact(pieces: list[str], limit: int) -> None:
    whole = "".join(pieces)
    taken = excerpt(pieces, limit)
    if (parts := taken.parts()) is None:
        return
    head, tail, *_ = parts
    found = re.search(r"\[… ([\d,]+) characters were cut out here, from line ([\d,]+) to line ([\d,]+)\.", taken.text())
    assert found is not None
    cut, first, last = (int(number.replace(",", "")) for number in found.groups())
    assert cut == len(whole) - len(head) - len(tail)
    assert first == head.count("\n") + 1
    until = whole[: len(whole) - len(tail)]
    assert last == until.count("\n") + (not until.endswith("\n"))


@given(st.lists(st.text(alphabet="ab", max_size=9), max_size=40), st.integers(min_value=40, max_value=80))
def test_a_cut_is_between_two_lines(lines: list[str], limit: int) -> None:
    whole = "".join(f"{line}\n" for line in lines)
    if (parts := excerpt([whole], limit).parts()) is not None:
        assert parts.head.endswith("\n")
        assert whole[: len(whole) - len(parts.tail)].endswith("\n")


@given(PIECES, LIMITS)
def test_how_the_text_comes_in_pieces_makes_no_difference(pieces: list[str], limit: int) -> None:
    assert excerpt(pieces, limit).text() == excerpt(["".join(pieces)], limit).text()


def test_an_excerpt_holds_no_more_than_it_shows() -> None:
    taken = Excerpt(1000)
    for _ in range(10_000):
        taken.add("x" * 100)
    assert sum(len(piece) for piece in taken._tail) <= 1000
    assert taken.chars == 1_000_000


TERMINAL = st.text(alphabet="ab\n\x1b[]0;m\\\x07世é", max_size=60)


@given(TERMINAL, st.lists(st.integers(min_value=0, max_value=200)))
def test_text_without_returns_is_cleaned_the_same_wherever_it_is_split(text: str, cuts: list[int]) -> None:
    data = text.encode()
    places = sorted({min(cut, len(data)) for cut in cuts})
    cleaner = Cleaner()
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    split = "".join([*map(cleaner.feed, pieces), cleaner.feed(b"", is_last=True)])
    assert split == Cleaner().feed(data, is_last=True)


def clean(*pieces: bytes) -> str:
    cleaner = Cleaner()
    return "".join([*map(cleaner.feed, pieces), cleaner.feed(b"", is_last=True)])


def test_a_character_that_is_split_over_two_reads_is_one() -> None:
    euro = "€".encode()
    assert clean(b"1 " + euro[:1], euro[1:2], euro[2:] + b"\n") == "1 €\n"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert clean(b"a\xff\xfeb") == "a\ufffd\ufffdb"
    assert clean(b"end \xe2\x82") == "end \ufffd"


def test_colours_titles_and_links_of_terminals_are_taken_out() -> None:
    assert clean(b"\x1b[1;31mred\x1b[0m") == "red"
    assert clean(b"\x1b]0;a title\x07text") == "text"
    assert clean(b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\") == "link"
    assert clean(b"\x1b(Bplain\x1b=\x1b>") == "plain"
    assert clean(b"\x1b[2", b"K\x1b", b"[1Grow") == "row"
    assert clean(b"\x1b]0;a title\x1b", b"\\text") == "text"


def test_control_characters_are_taken_out_but_tabs_and_newlines_stay() -> None:
    assert clean(b"a\x00\x08\tb\x07\n") == "a\tb\n"


def test_line_ends_of_windows_become_plain() -> None:
    assert clean(b"one\r\ntwo\r", b"\nthree") == "one\ntwo\nthree"


def test_of_a_line_that_is_written_again_and_again_the_last_state_is_text() -> None:
    assert clean(b"10%\r50%\r100%\ndone\n") == "100%\ndone\n"
    assert clean(b"10%\r", b"50%\r", b"100%\r\n") == "10%\n50%\n100%\n", "what was shown is not taken back"


def test_an_escape_sequence_that_never_ends_is_not_waited_for() -> None:
    assert clean(b"\x1b]" + b"x" * 10_000, b"tail").endswith("tail")

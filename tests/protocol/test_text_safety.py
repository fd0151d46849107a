"""Nothing that a file, a tool or a model says can move the cursor, ring, or show other than it means."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.protocol import text_safety
from kedge.protocol.text_safety import (
    describe_period,
    for_terminal,
    has_control,
    inside_escape,
    json_for_terminal,
    program_output,
    visible,
    visible_line,
    without_blank_runs,
)

HUMAN = [
    "Qu'est-ce\u00a0? 1\u202f000\u00a0€",
    "全角\u3000スペース",
    "👩\u200d🚀 👁\ufe0f\u200d🗨\ufe0f 1\ufe0f\u20e3 ❤\ufe0f",
    "क्\u200dष",
    "葛\U000e0100城市",
]


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain\nlines", "plain\nlines"),
        ("ls \x1b]; touch x; #\x07", "ls ␛]; touch x; #␇"),
        ("touch x # \r$ ls", "touch x # ␍$ ls"),
        ("\x9b31mred", "\\x9b31mred"),
        ("a\tb", "a   b"),
        ("a\x00\x08\x7f", "a␀␈␡"),
        ("admin\u202etxt.exe\u2066", "admin⟨U+202E⟩txt.exe⟨U+2066⟩"),
        ("zero\u200bwidth\ufeff\u00ad", "zero⟨U+200B⟩width⟨U+FEFF⟩⟨U+00AD⟩"),
        ("x\U000e0041\u2028y\x85", "x⟨U+E0041⟩⟨U+2028⟩y\\x85"),
        ("half \ud800, byte \udc9b", "half ⟨U+D800⟩, byte \\x9b"),
        ("a\u200db é\u200c.txt 漢\u200d\u200d字", "a⟨U+200D⟩b é⟨U+200C⟩.txt 漢\u200d⟨U+200D⟩字"),
        ("a\ufe0fb 漢\ufe0f\ufe01", "a⟨U+FE0F⟩b 漢\ufe0f⟨U+FE01⟩"),
        *((text, text) for text in HUMAN),
    ],
)
def test_what_a_person_decides_about_is_shown_whole(given_text: str, shown: str) -> None:
    assert visible(given_text) == shown


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("\x1bcreset", "reset"),
        ("10%\r50%\r100%\ndone", "100%\ndone"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\tb", "a       b"),
        ("bell\x07 del\x7f", "bell␇ del␡"),
        ("admin\u202etxt.exe", "admin⟨U+202E⟩txt.exe"),
    ],
)
def test_what_a_program_printed_loses_its_colors_and_what_it_wrote_over(given_text: str, shown: str) -> None:
    assert program_output(given_text) == shown


def test_on_a_terminal_line_ends_and_tabs_stay() -> None:
    assert for_terminal("a\tb\r\n\x1b[2J\rc") == "a\tb\n␛[2J␍c"
    assert [for_terminal(text) for text in HUMAN] == HUMAN


def test_one_line_is_one_line() -> None:
    assert visible_line("a\nb\r\nc\rd\u2028e") == "a b c␍d⟨U+2028⟩e"


def test_a_title_cannot_end_the_sequence_that_it_stands_in() -> None:
    assert inside_escape(" a\x07b\x1b\\c\x9cd\u202e ") == "a b \\c d"


def test_long_runs_of_nothing_are_counted() -> None:
    assert without_blank_runs("ls" + "\n" * 60 + "touch x") == "ls\n⋯ 59 blank lines\ntouch x"
    assert without_blank_runs("ls\n" + " \u00a0\n" * 4 + "x") == "ls\n⋯ 4 blank lines\nx"
    assert without_blank_runs("ls" + " " * 500 + "; touch x") == "ls⋯ 500 spaces ⋯; touch x"
    assert without_blank_runs("a\n\n\n\nb") == "a\n\n\n\nb"


@pytest.mark.parametrize("char", ["\x00", "\x08", "\r", "\x1b", "\x7f", "\x80", "\x9b"])
def test_a_control_character_is_found(char: str) -> None:
    assert has_control(f"ls {char}")


def test_tabs_newlines_and_letters_are_no_control_characters() -> None:
    assert not has_control("if true\n\tthen echo é 漢\u00a0👩\u200d🚀; fi")


@given(st.text(st.characters(), max_size=60))
def test_nothing_is_left_that_drives_a_terminal_and_nothing_is_lost(text: str) -> None:
    for policy in (visible, visible_line, program_output, for_terminal):
        shown = policy(text)
        assert not [each for each in shown if each not in "\n\t" and unicodedata.category(each) in ("Cc", "Cs")]
        assert not set(shown) & set("\u202e\u2066\u200b\u2028\U000e0041")
        assert policy(shown) == shown
    assert "\n" not in visible_line(text)
    assert len(visible(text)) >= len(text)


@pytest.mark.slow
@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_for_a_terminal_means_the_same(value: object) -> None:
    shown = json_for_terminal(json.dumps(value, ensure_ascii=False))
    assert json.loads(shown) == value
    assert for_terminal(shown) == shown


def test_every_policy_is_named_in_the_head() -> None:
    for policy in (visible, visible_line, program_output, for_terminal, json_for_terminal, inside_escape):
        assert policy.__name__ in (text_safety.__doc__ or "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (900, "15 min"),
        (13_800, "3 h 50 min"),
        (21_600, "6 h"),
        (90_000, "25 h"),
        (187_200, "2 days 4 h"),
    ],
)
def test_a_period_has_at_most_two_units(seconds: float, text: str) -> None:
    assert describe_period(seconds) == text

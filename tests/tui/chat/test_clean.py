"""Nothing that a file, a tool or a model says can move the cursor, ring, or show other than it means."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.tui.chat.clean import clean, clean_line


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain\nlines", "plain\nlines"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("\x1bcreset", "reset"),
        ("10%\r50%\r100%\ndone", "100%\ndone"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\tb", "a   b"),
        ("bell\x07 del\x7f", "bell␇ del␡"),
        ("admin\u202etxt.exe", "admin�txt.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("half \ud800", "half �"),
        ("👩\u200d🚀", "👩\u200d🚀"),
    ],
)
def test_what_a_terminal_would_obey_is_dropped_or_shown(given_text: str, shown: str) -> None:
    assert clean(given_text) == shown


@given(st.text(st.characters(), max_size=60))
def test_no_control_character_is_left(text: str) -> None:
    cleaned = clean(text)
    assert not [each for each in cleaned if each != "\n" and unicodedata.category(each) in ("Cc", "Cs")]
    assert "\n" not in clean_line(text)
    assert clean(cleaned) == cleaned

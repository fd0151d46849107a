"""Incomplete JSON is parsed as far as it goes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.tui.chat.calls import parse_partial

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("", {}),
        ("{", {}),
        ('{"comm', {"comm": None}),
        ('{"command": "ls -l', {"command": "ls -l"}),
        ('{"command": "a\\', {"command": "a"}),
        ('{"command": "caf\\u00', {"command": "caf"}),
        ('{"a": 1, "b": tr', {"a": 1}),
        ('{"edits": [{"old": "x"}, {"new": "y', {"edits": [{"old": "x"}, {"new": "y"}]}),
        ("[1, 2", {}),
        ("no json", {}),
    ],
)
def test_incomplete_json_gives_the_members_so_far(text: str, known: dict[str, object]) -> None:
    assert parse_partial(text) == known


@given(st.dictionaries(st.text(min_size=1, max_size=5), VALUES, max_size=4), st.booleans())
def test_every_prefix_is_parsed_and_the_whole_is_exact(value: dict[str, object], is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert parse_partial(text) == value
    members = 0
    for end in range(len(text)):
        known = parse_partial(text[:end])
        assert len(known) >= members - 1
        members = max(members, len(known))


@given(st.text(max_size=80))
def test_any_text_is_accepted(text: str) -> None:
    parse_partial(text)

"""The frontmatter of real files: read as it was meant, never an error, in linear time."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.skills.frontmatter import read_frontmatter

# What YAML rejects or reads as something else, and how it was meant.
TRAPS: list[tuple[str, dict[str, Any]]] = [
    ("description: Use when: x happens", {"description": "Use when: x happens"}),
    ("argument-hint: [a] [b]", {"argument-hint": "[a] [b]"}),
    ("argument-hint: [file]", {"argument-hint": ["file"]}),
    ("name: yes", {"name": "yes"}),
    ("name: 123", {"name": "123"}),
    ("description: @x and `y`", {"description": "@x and `y`"}),
    ("tools: *", {"tools": "*"}),
    ("description: %d percent", {"description": "%d percent"}),
    ('description: "quoted: \\"text\\"\\n"', {"description": 'quoted: "text"\n'}),
    ("description: 'it''s'", {"description": "it's"}),
    ('description: "half quoted', {"description": '"half quoted'}),
    ('description: "a" and "b"', {"description": '"a" and "b"'}),
    ("description: >\n  folded\n  text\n\n  more", {"description": "folded text\nmore"}),
    ("description: |-\n  line 1\n    line 2", {"description": "line 1\n  line 2"}),
    ("description: |\n\ta tab\n\tanother", {"description": "a tab\nanother"}),
    ("description:\tafter a tab", {"description": "after a tab"}),
    ("description: wrapped\nwithout an indent", {"description": "wrapped without an indent"}),
    ("description: wrapped\n  with: one", {"description": "wrapped with: one"}),
    ("tools:\n  - Read\n  - 'Bash(git:*)'", {"tools": ["Read", "Bash(git:*)"]}),
    ("tools:\n- Read\n- Edit", {"tools": ["Read", "Edit"]}),
    ("tools:\n  write: false\n  edit: true", {"tools": {"write": "false", "edit": "true"}}),
    ("tools: {write: false}", {"tools": {"write": "false"}}),
    ("tools: [Read, 'Grep']", {"tools": ["Read", "Grep"]}),
    ("# a comment\nname: x # why", {"name": "x"}),
    ("name: x\nname: y", {"name": "y"}),
    ("name:", {"name": ""}),
    ("name: ~", {"name": ""}),
    ('"name": x', {"name": "x"}),
]


@pytest.mark.parametrize(("text", "fields"), TRAPS, ids=[text.partition("\n")[0][:30] for text, _ in TRAPS])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_field_is_read_as_it_was_meant(text: str, fields: dict[str, Any], end: str) -> None:
    whole = f"---\n{text}\n---\nThe body.\n".replace("\n", end)
    for start in ("", "\ufeff", end):
        front = read_frontmatter(start + whole)
        assert (front.fields, front.body, front.problem) == (fields, "The body.", "")


def test_a_text_without_frontmatter_is_all_body() -> None:
    assert read_frontmatter("Just --- text\n").body == "Just --- text"
    front = read_frontmatter("---\nname: x\nno end")
    assert (front.fields, front.body) == ({}, "---\nname: x\nno end")
    assert front.problem


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("Read, Grep", ["Read", "Grep"]),
        ("Bash(git add:*) Bash(git log --oneline:*) Read", ["Bash(git add:*)", "Bash(git log --oneline:*)", "Read"]),
        ("[Bash(a, b), Read]", ["Bash(a, b)", "Read"]),
        ("Read", ["Read"]),
        ("", []),
    ],
)
def test_lists_have_commas_or_spaces(text: str, items: list[str]) -> None:
    assert read_frontmatter(f"---\nallowed-tools: {text}\n---").items("allowed-tools") == items


@given(st.text(max_size=400))
@settings(max_examples=300, deadline=None)
def test_no_text_is_an_error(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\n", f"---\na: {text}\nb: |\n  {text}\n---\nx"):
        front = read_frontmatter(whole)
        for name in front.fields:
            _ = front.text(name), front.items(name), front.flag(name, default=False), front.table(name)


_WORD = st.text("abcdefgh XYZ.,;()/", min_size=1, max_size=40).map(str.strip).filter(lambda text: text[:1].isalpha())


@given(st.dictionaries(st.text("abcdxyz", min_size=1, max_size=8), _WORD | st.lists(_WORD, max_size=4), min_size=1))
@settings(max_examples=200, deadline=None)
def test_what_a_yaml_library_writes_is_read_back(fields: dict[str, Any]) -> None:
    """PyYAML is the judge of well-formed files."""
    written = yaml.safe_dump(fields, width=60)
    if yaml.safe_load(written) != fields or any(value in ("y", "n") for value in fields):
        return
    read = read_frontmatter(f"---\n{written}---\n").fields
    assert {name: value or "" for name, value in read.items()} == {
        name: " ".join(value.split()) if isinstance(value, str) else [" ".join(each.split()) for each in value] or ""
        for name, value in fields.items()
    } or any("  " in str(value) for value in fields.values())


@pytest.mark.parametrize(
    "unit", ["a: [", "'", '"\\', " #", "(,", "a: b\n", "- x\n", "|\n", "[[", "{a:", ", ", "a: 'b''c", "\t", "---\n"]
)
def test_the_time_is_linear(unit: str) -> None:
    text = f"---\nx: {unit * (400_000 // len(unit))}\n---\n"
    began = time.process_time()
    front = read_frontmatter(text)
    _ = front.items("x"), front.text("x")
    assert time.process_time() - began < 3, "a quadratic reader needs minutes"

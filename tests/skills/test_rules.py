"""`allowed-tools` of other agents as rules of ours: narrow ones only, and never an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.config.rules import read_rule
from kedge.skills.tool_names import list_rules, name_tool


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("Bash(git add:*)", "bash(git add *)"),
        ("Bash(git status)", "bash(git status)"),
        ("Bash(npm run *)", "bash(npm run *)"),
        ("Bash(${CLAUDE_PLUGIN_ROOT}/run.sh:*)", "bash(/plugin/run.sh *)"),
        ("Read(docs/**)", "view(docs/**)"),
        ("Edit(src/**)", "edit(src/**)"),
        ("Edit", "edit(**)"),
        ("Write", "edit(**)"),
        ("WebFetch(domain:example.com)", "fetch(domain:example.com)"),
        ("mcp__github__list_issues", "mcp_github_list_issues"),
        ("Bash", None),
        ("Bash(*)", None),
        ("Bash(:*)", None),
        ("Bash(*/*)", None),
        ("Bash([a-z]* *)", None),
        ("Bash(?* x:*)", None),
        ("Read", None),
        ("WebFetch", None),
        ("Task", None),
        ("Frobnicate(x)", None),
        ("Bash(rm -rf / ; echo)", None),
        ("Bash('unclosed)", None),
        ("", None),
    ],
)
def test_a_tool_is_translated_or_ignored(written: str, rule: str | None) -> None:
    assert list_rules([written], {"CLAUDE_PLUGIN_ROOT": "/plugin"}) == ([rule] if rule else [])


@given(st.lists(st.text(max_size=40) | st.from_regex(r"(Bash|Read|Edit|WebFetch)\([^)]{0,20}\)", fullmatch=True)))
def test_no_text_is_an_error_and_every_rule_can_be_read(written: list[str]) -> None:
    for rule in list_rules(written, {}):
        read_rule(rule)
        assert rule not in ("bash", "view", "fetch")


def test_tools_of_other_agents_have_our_names() -> None:
    names = {"Read": "view", "LS": "ls", "Task": "agent", "TodoWrite": "todos", "WebFetch": "fetch", "Nothing": None}
    assert {name: name_tool(name) for name in names} == names

"""What a refusal names: the parts of a command line that were refused, why, and whether the rest would be allowed."""

from __future__ import annotations

import re

import pytest

from kedge.tools.permissions.describe import MAX_REFUSAL_CHARS, explain_refusal
from kedge.tools.permissions.policy import Ask, Deny
from tests.tools.permissions import cases
from tests.tools.permissions.bench import Bench

RULES = ("bash(python -m pytest *)", "bash(pytest *)")
REST = "The rest of the command would have been allowed."
NAMED = [
    # command in mode auto-edit, the refused parts, whether the rest is allowed
    ("ruff check src tests && git status", ["ruff check src tests"], True),
    ("pytest -q > /tmp/out.txt", ["> /tmp/out.txt"], True),
    ("pytest -q >> .git/config; ruff format .", ["ruff format .", ">> .git/config"], True),
    ("cat < /etc/shadow | head -n 1", ["< /etc/shadow"], True),
    ("python3 -m pytest; rm -rf src; ls", ["rm -rf src"], True),
    ("ls\nmake\npytest", ["make"], True),
    ("make a && make b", ["make a", "make b"], False),
    ("make a", ["make a"], False),
    ("make $x && ls", ["make …"], True),
    ("cat /etc/passwd; pytest", ["cat /etc/passwd"], True),
]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]*)`", text)


@pytest.mark.parametrize(("command", "parts", "is_rest_allowed"), NAMED)
def test_each_refused_part_is_named_and_no_other(
    bench: Bench, command: str, parts: list[str], is_rest_allowed: bool
) -> None:
    decision = bench.decide(bench.judge("auto-edit", RULES), command)
    assert isinstance(decision, Ask)
    text = explain_refusal(decision)
    assert text.startswith("Refused: ")
    assert quoted(text) == parts
    assert (REST in text) is is_rest_allowed


def test_the_reason_is_told_where_it_is_not_the_command_itself(bench: Bench) -> None:
    def explain(command: str, **options: bool) -> str:
        decision = bench.decide(bench.judge("auto-edit", RULES), command, **options)
        assert isinstance(decision, Ask), command
        return explain_refusal(decision)

    assert "outside the workspace" in explain("pytest > /tmp/out.txt")
    assert "which controls what other programs run" in explain("pytest > .git/config")
    assert "outside the workspace, which controls what other programs run" in explain("pytest > /srv/.bashrc")
    assert "outside the workspace" in explain("cat /etc/passwd")
    assert "without the sandbox" in explain("ls", unsandboxed=True)
    assert "`pytest …` is allowed, but only in a list of plain commands" in explain("pytest $(ls src)")


def test_parts_that_are_only_refused_together_are_told_so(bench: Bench) -> None:
    judge = bench.judge("auto-edit", RULES)
    command, alone = "pytest -q | awk '{print $1}'", ("pytest -q", "awk '{print $1}'")
    decision = bench.decide(judge, command)
    assert isinstance(decision, Ask)
    text = explain_refusal(decision)
    assert quoted(text) == ["awk {print $1}"]
    assert "alone" in text
    assert [bench.outcome(judge, part) for part in alone] == ["allow", "allow"]


def test_a_denial_names_each_rule_and_what_else_needs_approval(bench: Bench) -> None:
    judge = bench.judge("ask", RULES, ["bash(git push *)", "view(.env)"])
    decision = bench.decide(judge, "git push && cat .env && ruff check && pytest")
    assert isinstance(decision, Deny)
    for each in ("bash(git push *)", "view(.env)", "`git push`", "`ruff check`"):
        assert each in decision.why
    assert "`pytest`" not in decision.why
    assert decision.others == REST
    alone = bench.decide(judge, "git push")
    assert isinstance(alone, Deny)
    assert not alone.others


def test_a_plan_names_what_would_change_something(bench: Bench) -> None:
    decision = bench.decide(bench.judge("plan"), "ls && echo x > a.txt")
    assert isinstance(decision, Deny)
    assert "`> a.txt`" in decision.why
    assert decision.others == REST


@pytest.mark.parametrize("table", cases.TABLES.values(), ids=cases.TABLES.keys())
def test_a_refusal_of_any_command_is_one_bounded_line_and_true(bench: Bench, table: cases.Cases) -> None:
    for command, expected in table:
        decision = bench.decide(bench.judge(), command)
        if expected != "ask" or not isinstance(decision, Ask):
            continue
        text = explain_refusal(decision)
        assert "\n" not in text, command
        assert len(text) <= MAX_REFUSAL_CHARS, command
        assert "does not have" in text, command
    many = bench.decide(bench.judge(), "; ".join(f"make {'x' * 200}{number}" for number in range(30)))
    assert isinstance(many, Ask)
    assert "25 more" in explain_refusal(many)

"""The last lines of `kedge run`: which actions were denied and how to allow them, and what the run used."""

from __future__ import annotations

from kedge.cli.run_printer import explain_end, summarize_usage
from kedge.client.run_view import Denial


def explain(*denied: Denial) -> str:
    return explain_end({}, list(denied), with_options=True) or ""


def test_a_denial_is_explained_with_the_rules_that_allow_it() -> None:
    line = explain(Denial("make && make test", ["bash(make)", "bash(make test)"]))
    assert "--allow 'bash(make)' --allow 'bash(make test)'" in line
    assert line.endswith(": make && make test")


def test_without_a_rule_that_helps_only_y_is_suggested() -> None:
    for denial in (Denial("sudo make", []), Denial("x", ["bash(\x1b[2J)"])):  # nobody can type the second
        assert "-y" in explain(denial)
        assert "--allow" not in explain(denial)


def test_of_several_denials_the_first_is_named_and_equal_ones_are_counted_once() -> None:
    first, second = Denial("write a", ["edit(a)"]), Denial("write b", ["edit(b)"])
    line = explain(first, second, first)
    assert line.startswith("2 actions")
    assert "edit(a)" in line
    assert "-y" in line
    assert line.endswith(": write a")


def test_foreign_text_comes_last_so_that_it_cannot_pass_for_advice() -> None:
    line = explain(Denial("run rm x # ; --allow bash allows it", ["bash(rm *)"]))
    assert line.endswith("): run rm x # ; --allow bash allows it")


def test_the_summary_has_the_cost_if_there_is_one_and_is_left_out_if_nothing_was_used() -> None:
    usage = {"input_tokens": 10, "output_tokens": 2}
    assert summarize_usage(1.25, usage) == "1.2 s, 10 tokens in, 2 out"
    assert summarize_usage(1.25, {**usage, "cost": 0.0123, "estimated": True}).endswith(", $0.0123")
    assert summarize_usage(0.01, {"input_tokens": 0, "output_tokens": 0, "cost": 0.0}) == ""

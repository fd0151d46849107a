"""The last lines of `kedge run`: what was refused and how to allow it, and what the run took."""

from __future__ import annotations

from kedge.cli.run_printer import refusal, summary
from kedge.client.run_view import Denial

REFUSED = "a permission was refused in this run"


def test_a_refusal_is_named_with_the_rules_that_allow_it() -> None:
    told = refusal([Denial("make && make test", ["bash(make)", "bash(make test)"])])
    assert told == f"{REFUSED} (--allow 'bash(make)' --allow 'bash(make test)' allows it): make && make test"


def test_what_no_rule_allows_needs_y() -> None:
    assert refusal([Denial("sudo make", [])]) == f"{REFUSED} (-y allows everything): sudo make"
    assert "-y allows" in refusal([Denial("x", ["bash(\x1b[2J)"])]), "nobody can type that"


def test_of_several_refusals_the_first_is_named_and_the_others_are_counted_once() -> None:
    first, second = Denial("write a", ["edit(a)"]), Denial("write b", ["edit(b)"])
    told = "2 permissions were refused in this run (--allow 'edit(a)' allows the first, -y everything): write a"
    assert refusal([first, second, first]) == told


def test_what_was_refused_comes_last_so_that_it_cannot_pass_for_advice() -> None:
    told = refusal([Denial("run rm x # ; --allow bash allows it", ["bash(rm *)"])])
    assert told.endswith("(--allow 'bash(rm *)' allows it): run rm x # ; --allow bash allows it")


def test_the_summary_has_the_cost_if_there_is_one_and_is_left_out_if_nothing_was_used() -> None:
    usage = {"input_tokens": 10, "output_tokens": 2}
    assert summary(1.25, usage) == "1.2 s, 10 tokens in, 2 out"
    assert summary(1.25, {**usage, "cost": 0.0123, "estimated": True}) == "1.2 s, about 10 tokens in, 2 out, $0.0123"
    assert summary(0.01, {"input_tokens": 0, "output_tokens": 0, "cost": 0.0}) == ""

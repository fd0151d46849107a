"""The last lines of `kedge run`: which actions were denied and how to allow them, and what the run used."""

from __future__ import annotations

import re
import shlex

from kedge.cli.run_printer import explain_end, summarize_usage
from kedge.client.run_view import Denial


def explain(*denied: Denial) -> str:
    return explain_end({}, list(denied)) or ""


def options_of(text: str) -> list[str]:
    """The suggested options, as a shell reads them."""
    return shlex.split(re.split(r"\. (?:It was|They were): ", text)[0].partition(" with ")[2])


def test_denials_are_explained_with_the_rules_that_allow_them_ready_to_paste() -> None:
    both = Denial("run make && make test", ["bash(make)", "bash(make test)"])
    quoted = Denial("run echo", ["bash(echo 'it'\\''s')"])
    text = explain(both, Denial("run make", ["bash(make)"]), quoted, both)
    assert text.startswith(
        "3 actions were denied; allow them with --allow 'bash(make)' --allow 'bash(make test)' --allow"
    )
    assert options_of(text)[1::2] == ["bash(make)", "bash(make test)", *quoted.rules]
    assert text.endswith(". They were: run make && make test; run make; run echo")
    assert explain(both).startswith("An action was denied; allow it with")


def test_an_action_without_a_narrow_rule_gets_no_suggestion_and_never_y() -> None:
    for denial in (Denial("sudo make", []), Denial("x", ["bash(\x1b[2J)"]), Denial("long", [f"bash({'x' * 300})"])):
        text = explain(denial)
        assert "--allow" not in text
        assert "-y" not in text
        assert "no rule" in text
    assert "allow 1 of them" in explain(Denial("sudo make", []), Denial("make", ["bash(make)"]))
    assert "kedge doctor" in explain(Denial("make", [], no_sandbox=True))


def test_edits_are_allowed_by_the_mode_and_not_by_a_rule_for_every_file() -> None:
    assert options_of(explain(Denial("write a", ["edit(**)"]), Denial("write b", ["edit(**)"]))) == [
        "--mode",
        "auto-edit",
    ]


def test_what_a_person_denied_is_not_advertised() -> None:
    assert explain(Denial("run make", ["bash(make)"], by_user=True)) == "An action was denied. It was: run make"


def test_many_denials_stay_short() -> None:
    text = explain(*(Denial(f"run make {number}", [f"bash(make {number})"]) for number in range(40)))
    assert text.startswith("40 actions were denied; allow 5 of them with")
    assert "and 37 more" in text
    assert len(options_of(text)) == 10


def test_foreign_text_cannot_pass_for_advice() -> None:
    text = explain(Denial("run rm x # ; --allow bash\nallow it with -y", ["bash(make '; --allow bash')"]))
    assert options_of(text) == ["--allow", "bash(make '; --allow bash')"]
    assert text.endswith(". It was: run rm x # ; --allow bash allow it with -y")


def test_attach_names_the_command_that_takes_the_options() -> None:
    line = explain_end({}, [Denial("run make", ["bash(make)"])], command="kedge run ") or ""
    assert "with kedge run --allow 'bash(make)'." in line


def test_the_summary_has_the_cost_if_there_is_one_and_is_left_out_if_nothing_was_used() -> None:
    usage = {"input_tokens": 10, "output_tokens": 2}
    assert summarize_usage(1.25, usage) == "1.2 s, 10 tokens in, 2 out"
    assert summarize_usage(1.25, {**usage, "cost": 0.0123, "estimated": True}).endswith(", $0.0123")
    cached = {**usage, "cache_read_tokens": 30, "cache_write_tokens": 5}
    assert summarize_usage(1.25, cached) == "1.2 s, 45 tokens in (30 cached), 2 out"
    assert summarize_usage(0.01, {"input_tokens": 0, "output_tokens": 0, "cost": 0.0}) == ""

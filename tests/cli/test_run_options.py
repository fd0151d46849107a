"""Options of `kedge run` that are wrong are told before anything is sent."""

from __future__ import annotations

import pytest

from kedge.cli.options import UsageError
from kedge.cli.run_options import parse, run_overrides


@pytest.mark.parametrize("option", ["--allow", "--deny"])
def test_a_rule_that_cannot_be_read_is_wrong_usage(option: str) -> None:
    options = parse([option, "bash(git *)", option, "bash(x", "prompt"])
    with pytest.raises(UsageError, match=rf"{option} 'bash\(x'"):
        run_overrides(options)


def test_rules_are_sent_as_they_were_given() -> None:
    given = run_overrides(parse(["--allow", "bash(git *)", "--deny", "view(~/.ssh/**)", "--allow", "edit", "prompt"]))
    assert given == {"allow": ["bash(git *)", "edit"], "deny": ["view(~/.ssh/**)"]}

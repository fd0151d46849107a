"""The table of cases: how each command runs, with and without a sandbox."""

from __future__ import annotations

import pytest

from kedge.tools.permissions.policy import Allow, Ask
from tests.tools.permissions import cases
from tests.tools.permissions.bench import Bench


@pytest.mark.parametrize(("command", "expected"), cases.ALL, ids=lambda text: repr(text)[:60])
def test_a_command_runs_as_the_table_says(bench: Bench, command: str, expected: str) -> None:
    judge = bench.judge()
    sandboxed, alone = bench.decides(judge, command), bench.decides(judge, command, has_sandbox=False)
    if expected == "ask":
        assert isinstance(sandboxed, Ask)
        assert isinstance(alone, Ask)
        return
    assert isinstance(sandboxed, Allow)
    reads_proc = command.startswith(("ps", "df"))  # which the sandbox hides
    assert sandboxed.run_as == ("unapproved" if reads_proc else "sandboxed")  # nobody approved it
    if expected == "runs":
        assert isinstance(alone, Allow)
        assert alone.run_as == "unapproved"
    else:
        assert isinstance(alone, Ask)


@pytest.mark.parametrize("command", [command for command, expected in cases.ALL if expected == "ask"], ids=repr)
def test_what_is_asked_is_refused_in_a_plan_unless_it_only_reads_elsewhere(bench: Bench, command: str) -> None:
    assert bench.says(bench.judge("plan"), command) in ("deny", "ask")


@pytest.mark.parametrize("command", [command for command, expected in cases.ALL if expected != "ask"], ids=repr)
def test_a_command_that_asks_to_leave_the_sandbox_always_needs_approval(bench: Bench, command: str) -> None:
    if command:
        assert bench.says(bench.judge(), command, unsandboxed=True) == "ask"
    assert bench.says(bench.judge(allow=["bash"]), command, unsandboxed=True) == "allow"


@pytest.mark.parametrize(("command", "expected"), cases.ALL, ids=lambda text: repr(text)[:60])
def test_the_user_can_have_everything_asked_that_is_not_plain(bench: Bench, command: str, expected: str) -> None:
    said = bench.says(bench.judge(unapproved="ask"), command)
    assert said == ("allow" if expected == "runs" else "ask")

"""The table of cases: how each command runs, with and without a sandbox. A failure lists the commands that differ."""

from __future__ import annotations

import pytest

from kedge.tools.permissions.policy import Allow, Ask, Decision
from tests.tools.permissions import cases
from tests.tools.permissions.bench import Bench

with_tables = pytest.mark.parametrize("table", cases.TABLES.values(), ids=cases.TABLES.keys())


@with_tables
def test_a_command_runs_as_the_table_says(bench: Bench, table: cases.Cases) -> None:
    judge = bench.judge()
    assert table == [
        (command, run_of(command, bench.decide(judge, command), bench.decide(judge, command, has_sandbox=False)))
        for command, _ in table
    ]


def run_of(command: str, sandboxed: Decision, alone: Decision) -> str:
    """The column of the table, from the decisions with and without a sandbox."""
    if isinstance(sandboxed, Ask) and isinstance(alone, Ask):
        return "ask"
    reads_proc = command.startswith(("ps", "df"))  # which the sandbox hides
    is_contained = isinstance(sandboxed, Allow) and sandboxed.run_as == ("unapproved" if reads_proc else "sandboxed")
    if is_contained and isinstance(alone, Allow) and alone.run_as == "unapproved":
        return "runs"
    return "sandbox" if is_contained and isinstance(alone, Ask) else f"{sandboxed}, without a sandbox {alone}"


@with_tables
def test_mode_plan_allows_no_command_that_mode_ask_asks_about(bench: Bench, table: cases.Cases) -> None:
    judge = bench.judge("plan")
    asked = [command for command, expected in table if expected == "ask"]
    assert [command for command in asked if bench.outcome(judge, command) not in ("deny", "ask")] == []


@with_tables
def test_running_unsandboxed_always_needs_approval(bench: Bench, table: cases.Cases) -> None:
    judge, approving = bench.judge(), bench.judge(allow=["bash"])
    commands = [command for command, expected in table if expected != "ask"]
    assert [each for each in commands if each and bench.outcome(judge, each, unsandboxed=True) != "ask"] == []
    assert [each for each in commands if bench.outcome(approving, each, unsandboxed=True) != "allow"] == []


@with_tables
def test_with_unapproved_ask_only_plain_reads_run(bench: Bench, table: cases.Cases) -> None:
    judge = bench.judge(unapproved="ask")
    assert [(command, bench.outcome(judge, command)) for command, _ in table] == [
        (command, "allow" if expected == "runs" else "ask") for command, expected in table
    ]

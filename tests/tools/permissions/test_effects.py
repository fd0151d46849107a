"""What a command does when it runs as it was decided: nothing that nobody approved. Every shape is really run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.tools.permissions.policy import Allow
from kedge.tools.sandbox.sandbox import can_sandbox_read_only
from tests.tools.permissions import cases
from tests.tools.permissions.bench import Bench
from tests.tools.permissions.runner import Runner
from tests.tools.permissions.shapes import hostile

pytestmark = pytest.mark.skipif(not can_sandbox_read_only(), reason="this machine has no sandbox")
SECRET = "PRIVATE-KEY-OF-THE-USER"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    bench = Bench(tmp_path_factory.mktemp("effects"))
    (bench.home / ".ssh" / "id_rsa").write_text(SECRET)
    (bench.workspace / "bin").mkdir()
    for program in (bench.workspace / "evil", bench.workspace / "bin" / "evil", bench.workspace / "bin" / "pip"):
        program.write_text("#!/bin/sh\ntouch pwned ../pwned\n")
        program.chmod(0o755)
    subprocess.run(["git", "init", "-q", str(bench.workspace)], check=True, capture_output=True)
    return Runner(bench)


def check(runner: Runner, command: str, *, has_sandbox: bool = True) -> None:
    bench = runner.bench
    for mode in ("ask", "auto-edit") if has_sandbox else ("ask",):
        decision = bench.decide(bench.judge(mode, env=runner.env), command, has_sandbox=has_sandbox)
        if not isinstance(decision, Allow) or decision.by == "mode":
            continue  # asked, or an edit that the mode allows
        before = runner.snapshot()
        try:
            output = runner.run(command, decision)
        except subprocess.TimeoutExpired:
            output = ""
        assert runner.snapshot() == before, (command, decision)
        assert SECRET not in output, command
        assert "hush" not in output, command


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(command=hostile(), has_sandbox=st.booleans())
def test_a_hostile_shape_changes_nothing_without_approval(runner: Runner, command: str, has_sandbox: bool) -> None:
    check(runner, command, has_sandbox=has_sandbox)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(command=hostile(), has_sandbox=st.booleans())
def test_many_hostile_shapes_change_nothing_without_approval(runner: Runner, command: str, has_sandbox: bool) -> None:
    check(runner, command, has_sandbox=has_sandbox)


SLOW = ("watch", "sleep", "select")


@pytest.mark.slow
def test_no_case_of_the_table_changes_anything(runner: Runner) -> None:
    """All of them in a few shells: what one of them left behind would be seen."""
    for command, expected in cases.ALL:
        if expected == "ask" or any(name in command for name in SLOW):
            continue
        decision = runner.bench.decide(runner.bench.judge(env=runner.env), command)
        if isinstance(decision, Allow):
            before = runner.snapshot()
            runner.run(command.replace("SCRATCH", str(runner.bench.scratch)), decision)
            assert runner.snapshot() == before, command


@pytest.mark.parametrize(
    "command",
    [
        "RANDOM='a[$(cat ../home/.ssh/id_rsa >&2)]'",
        "cat ../home/.ss*/id_rsa",
        'f=../home/.ssh/id_rsa; cat "$f"',
        "cd ..; cat home/.ssh/id_rsa",
        "cat link-dir/.ssh/id_rsa",
        "cat < $(echo ../home/.ssh/id_rsa)",
        "find .. -name id_rsa -exec cat {} +",
        "grep -R PRIVATE ..",
        "x=/etc/sha; cat ${x}dow",
        "cat /proc/[0-9]*/environ",
        "cat /proc/self/environ",
        "env",
        "echo $SECRET_TOKEN",
        "awk 'BEGIN { print ENVIRON[\"SECRET_TOKEN\"] }'",
    ],
)
def test_a_sandboxed_command_reads_no_secret(runner: Runner, command: str) -> None:
    os.environ["OUTSIDE_TOKEN"] = "hush"
    try:
        decision = runner.bench.decide(runner.bench.judge(env=runner.env), command)
        output = runner.run(command, decision)
    finally:
        del os.environ["OUTSIDE_TOKEN"]
    assert SECRET not in output
    assert "hush" not in output
    assert "root:$" not in output
    assert "root:*" not in output


def test_what_worked_without_a_question_still_does(runner: Runner) -> None:
    for command, expected in {
        "git status --short": "??",
        "git log --oneline 2>&1 || true": "",
        "python3 --version": "Python 3",
        "cat <<END\nhello $HOME\nEND": "hello",
        "diff <(echo a) <(echo b)": "< a",
        "grep -rn text . | head -n 3": "text",
        "find . -name '*.py' | xargs wc -l": "main.py",
        "awk '{print $1}' a.txt": "text",
        "sed -n 1p a.txt | tr a-z A-Z": "TEXT",
        "for f in *.txt; do wc -l $f; done": "a.txt",
        "sort a.txt | uniq -c": "text",
        "ls -la && pwd": "a.txt",
    }.items():
        decision = runner.bench.decide(runner.bench.judge(env=runner.env), command)
        assert isinstance(decision, Allow), command
        assert decision.run_as == "sandboxed"
        assert expected in runner.run(command, decision), command


def test_a_program_that_the_workspace_brings_is_never_read_only(runner: Runner, tmp_path: Path) -> None:
    bench = runner.bench
    assert bench.outcome(bench.judge(env=runner.env), "pip --version") == "ask"
    assert bench.outcome(bench.judge(env={"PATH": f"{os.defpath}:."}), "unheard-of --version") == "ask"
    venv = bench.workspace / "bin"
    link = tmp_path / "linked"
    link.symlink_to(venv)
    assert bench.outcome(bench.judge(env={"PATH": f"{link}:{os.defpath}"}), "pip --version") == "ask"
    assert bench.outcome(bench.judge(env={"PATH": os.defpath}), "python3 --version") == "allow"

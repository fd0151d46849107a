"""Command lines: where an allow rule applies, which lines only read, and what the user is asked."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kedge.tools.permissions.policy import Allow, Ask
from kedge.tools.port import Access
from tests.tools.permissions import cases
from tests.tools.permissions.bench import Bench, kind_of


def test_an_allowed_command_needs_permission_for_its_files_and_neighbors(bench: Bench) -> None:
    judge = bench.judge(allow=["bash(npm test *)", "edit(logs/**)", "view(//etc/hosts)"])
    assert bench.outcome(judge, "npm test -- -x") == "allow"
    assert bench.outcome(judge, "npm test $x") == "allow"
    assert bench.outcome(judge, "npm test > logs/out.txt") == "allow"
    assert bench.outcome(judge, "npm test > out.txt") == "ask"
    assert bench.outcome(judge, "npm test && rm a.txt") == "ask"
    assert bench.outcome(judge, "npm test $(rm a.txt)") == "ask"
    assert bench.outcome(judge, "npm test | tail -5") == "allow"
    assert bench.outcome(judge, "timeout 60 npm test") == "allow"
    assert bench.outcome(judge, "PATH=. npm test") == "ask"
    assert bench.outcome(judge, "./npm test") == "ask"
    assert bench.outcome(judge, "cat /etc/hosts") == "allow"


@pytest.mark.parametrize("rule", ["bash(python -m pytest *)", "bash(python3.11 -m pytest *)", "bash(pytest *)"])
def test_a_rule_for_a_python_module_covers_its_equal_forms_and_nothing_beside_them(bench: Bench, rule: str) -> None:
    judge = bench.judge(allow=[rule])
    for command in ("python -m pytest", "python3 -m pytest -q", "python3.12 -mpytest tests", "pytest -x | tail -n 3"):
        assert bench.outcome(judge, command) == "allow", command
    assert bench.outcome(judge, "timeout 60 python3 -m 'py'test") == "allow"
    for command in (
        "python3 -m pytest; rm -rf src",
        "python3 -m pytest\nrm -rf src",
        "python3 -m pytest $(rm -rf src)",
        "python3 -m pytest `rm -rf src`",
        "python3 -m pytest & rm -rf src",
        "python3 -m pytest > .git/config",
        "python3 -m 'pytest; rm'",
        "PYTHONPATH=/tmp python3 -m pytest",
        "python3 -I -m pytest",
        "python3 -c pytest",
        "python3 pytest",
        "./python3 -m pytest",
        "PYTHON3 -m pytest",
        "python3 -m pytest.__main__",
        "sudo python3 -m pytest",
    ):
        assert bench.outcome(judge, command) == "ask", command


def test_changes_nothing_is_true_only_for_commands_that_read(bench: Bench) -> None:
    lax = bench.judge("yolo", ["bash", "edit"])
    for command, expected in cases.ALL:
        access = Access(kind="execute", subject=command.replace("SCRATCH", str(bench.scratch)), description="run it")
        if expected == "runs":
            assert lax.changes_nothing("bash", [access]), command
        elif expected == "ask" and lax.changes_nothing("bash", [access]):
            decision = bench.decide(bench.judge(), command)
            assert isinstance(decision, Ask), command
            assert all(note.startswith("reads ") for note in decision.notes), command
    assert not lax.changes_nothing("mcp_ls", [Access(kind="execute", subject="ls", description="not a command")])


MIXED = [
    # with the rule bash(pytest *): what may stand beside it
    ("cd src && pytest -q | tail -n 5", "allow"),
    ("cd src && pytest -q 2>&1 | tail", "allow"),
    ("timeout 60 pytest -q; git status", "allow"),
    ("for i in 1 2; do pytest -q; done", "allow"),
    ("if pytest -q; then pytest -x; fi", "allow"),
    ("pytest 'a b' $x *.py", "allow"),
    ("pytest -q | awk '{print $1}'", "ask"),
    ("pytest -q && ls $x", "ask"),
    ("pytest $(ls)", "ask"),
    ("x=1; pytest -q", "ask"),
    ("RANDOM='a[$(touch pwned)]' pytest -q", "ask"),
    ("RANDOM='a[$(touch pwned)]'; pytest -q", "ask"),
    ("pytest -q; [ a = b || touch pwned ]", "ask"),
    ("touch() { :; } & pytest -q", "ask"),
    ("for RANDOM in 'a[$(touch pwned)]'; do pytest; done", "ask"),
    ("pytest -q > /dev/tcp/127.0.0.1/80", "ask"),
    ("pytest <(touch pwned)", "ask"),
    ("PATH=. pytest -q", "ask"),
    ("env -u x pytest -q", "ask"),
    ("xargs pytest < a.txt", "ask"),
    ("sh -c 'pytest -q'", "ask"),
    ("cd ..; pytest -q", "ask"),
    ("cd -; pytest -q", "ask"),
    ("LC_ALL=C pytest -q", "allow"),
    ("LC_ALL=C sort a.txt; pytest -q", "ask"),
    ('pytest -q; echo "$\\\n(touch pwned)"', "ask"),
    ('pytest -q; echo "$\\\nHOME"', "ask"),
    ("for f in a # 'b\ndo touch pwned; done #'\npytest -q", "ask"),
    ("for http_proxy in http://evil; do pytest -q; done", "ask"),
    ("pytest -q; cat 99999999999</dev/null", "ask"),
    ("pytest -q; cat \u0663</dev/null", "ask"),
    ("pytest -q; git log '--format=%G?'", "ask"),
    ("pytest -q; printf 'abc%ln' PATH", "ask"),
    ("pytest -q; git branch -r -qd origin/x", "ask"),
    ("pytest -q; time ls", "allow"),
    ("pytest -q > #x\ntouch pwned", "ask"),
    ("pytest -q; find -- src -exec touch pwned ';'", "ask"),
    ("pytest -q; find . -name -- -o -delete", "ask"),
    ("pytest -q; test -- -o -v 'a[$(touch pwned)]'", "ask"),
    ("pytest -q; grep --exclude-dir -- /etc/shadow -e.", "ask"),
    ("pytest -q; du --exclude -- --files0-from=/etc/shadow", "ask"),
    ("pytest -q; echo x <a.txt >/dev/stdin", "ask"),
    ("pytest -q; echo x 3<a.txt >/dev/fd/3", "ask"),
    ("pytest -q; echo x 1<a.txt >/dev/stdout", "ask"),
    ("pytest -q >/dev/null 2>/dev/stderr", "allow"),
    ("pytest -q; git stash -m list", "ask"),
    ("pytest -q; git branch --format --list newb", "ask"),
    ("pytest -q; git tag --format --list newt", "ask"),
    ("pytest -q; git branch -a", "allow"),
    ('pytest -q; echo "exit: $?"', "allow"),
    ("pytest -q; echo $?", "allow"),
    ('pytest -q; echo "$OPENAI_API_KEY"', "ask"),
    ("pytest -q; git branch --list 'x*'", "allow"),
    ("pytest -q; git stash list", "allow"),
    ("for npm_config_registry in http://evil; do pytest; done", "ask"),
]


@pytest.mark.parametrize(("command", "expected"), MIXED)
def test_an_allowed_command_may_be_combined_with_commands_that_only_read(
    bench: Bench, command: str, expected: str
) -> None:
    decision = bench.decide(bench.judge(allow=["bash(pytest *)"]), command)
    assert kind_of(decision) == expected
    assert not isinstance(decision, Allow) or decision.run_as == "approved"


def test_a_wrapper_from_the_workspace_is_not_unwrapped(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.workspace / "bin").mkdir()
    (bench.workspace / "bin" / "nice").write_text("#!/bin/sh\n")
    (bench.workspace / "bin" / "nice").chmod(0o755)
    env = {"PATH": f"{bench.workspace}/bin:{os.defpath}"}
    judge = bench.judge(allow=["bash(make *)"], env=env)
    assert bench.outcome(judge, "make x; timeout 5 nice ls") == "ask"
    assert bench.outcome(bench.judge(allow=["bash(make *)"]), "make x; timeout 5 nice ls") == "allow"


def test_the_question_names_the_command_that_needs_approval(bench: Bench) -> None:
    judge = bench.judge(allow=["bash(pytest *)"])
    decision = bench.decide(judge, "pytest -q | awk 1")
    assert isinstance(decision, Ask)
    assert len(decision.notes) == 1
    assert "`awk 1`" in decision.notes[0]
    decision = bench.decide(bench.judge(), "ls", unsandboxed=True)
    assert isinstance(decision, Ask)
    assert "without the sandbox" in decision.label


def test_git_is_asked_about_in_a_line_that_writes(bench: Bench) -> None:
    judge = bench.judge("auto-edit")
    assert bench.outcome(judge, "echo x > src/HEAD; git -C src status") == "ask"
    decision = bench.decide(judge, "echo x > src/new.txt")
    assert isinstance(decision, Allow)
    assert decision.run_as == "unapproved"  # the edit is allowed, the command was not approved


@pytest.mark.parametrize(
    "command",
    [
        "cat " + "a" * 300,
        "git -C " + "a" * 300 + " status",
        "cat /nowhere/x/y",
        "ls \udc80",
        "cat " + "a/" * 3000 + "b",
    ],
    ids=lambda text: repr(text)[:20],
)
def test_an_impossible_file_name_is_not_an_error(bench: Bench, command: str) -> None:
    for judge in (bench.judge(), bench.judge(allow=["bash(pytest *)"], deny=["view(.env)", "bash(git push *)"])):
        assert bench.outcome(judge, command) in ("ask", "allow")
        assert bench.outcome(judge, command, has_sandbox=False) in ("ask", "allow")


@pytest.mark.parametrize(
    "command",
    [
        "df; find -- src -exec touch pwned ';'",
        "ps; test -- -o -v 'a[$(touch pwned)]'",
        "df; grep -e x a.txt",
        "df; cat a.txt",
        "ps aux > out.txt",
        "df; git stash -m list",
        "df; echo x <a.txt >/dev/stdin",
        "df; git show-ref",
    ],
)
def test_commands_that_need_proc_do_not_unsandbox_the_rest_of_the_line(bench: Bench, command: str) -> None:
    decision = bench.decide(bench.judge(), command)
    assert not isinstance(decision, Allow) or decision.run_as == "sandboxed"
    shown = bench.decide(bench.judge(), "ps aux | grep python | head -n 5")
    assert isinstance(shown, Allow)
    assert shown.run_as == "unapproved"


def test_a_secret_that_a_rule_allows_is_read_outside_the_sandbox(bench: Bench) -> None:
    for path, run_as in (("/etc/hosts", "sandboxed"), ("/etc/shadow", "unapproved"), (str(bench.home), "unapproved")):
        decision = bench.decide(bench.judge(allow=[f"view({path})"]), f"ls {path}")
        assert isinstance(decision, Allow)
        assert decision.run_as == run_as, path
    assert bench.outcome(bench.judge("plan", ["view(/etc/shadow)"]), "cat /etc/shadow") == "allow"  # and hidden there


def test_wildcards_through_links_take_bounded_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(10):
        (bench.workspace / f"loop{number}").symlink_to(".")
    started = time.process_time()
    assert bench.outcome(bench.judge(), "cat " + "*/" * 9 + "zz*") in ("ask", "allow")
    assert time.process_time() - started < 3


def test_without_bash_commands_run_only_in_the_sandbox(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_bash(*_: object) -> str:
        return "/bin/sh"

    monkeypatch.setattr("kedge.tools.permissions.judge.find_shell", find_no_bash)
    assert bench.outcome(bench.judge(), "ls", has_sandbox=False) == "ask"
    assert bench.outcome(bench.judge(allow=["bash(ls)"]), "ls", has_sandbox=False) == "ask"
    assert bench.outcome(bench.judge(), "[[ a > b ]]") == "allow"  # in the sandbox


def test_sudo_is_allowed_only_by_its_own_name(bench: Bench) -> None:
    assert bench.outcome(bench.judge(allow=["bash(ls *)"]), "sudo ls") == "ask"
    assert bench.outcome(bench.judge(allow=["bash(sudo ls *)"]), "sudo ls") == "allow"
    assert bench.outcome(bench.judge(allow=["bash(*)"]), "sudo ls") == "allow"


def test_a_rule_for_bash_without_a_pattern_allows_any_text(bench: Bench) -> None:
    assert bench.outcome(bench.judge(allow=["bash"]), "rm 'x") == "allow"
    assert bench.outcome(bench.judge(allow=["bash(*)"]), "rm 'x") == "ask"
    assert bench.outcome(bench.judge(deny=["bash"]), "ls") == "deny"


def test_paths_are_relative_to_the_working_directory(bench: Bench) -> None:
    judge = bench.judge()
    assert bench.outcome(judge, "cat ../a.txt", working_dir="src") == "allow"
    assert bench.outcome(judge, "cat ../../outside.txt", working_dir="src") == "ask"
    assert bench.outcome(judge, "git status", working_dir="planted", has_sandbox=False) == "ask"


def test_the_question_names_each_thing_that_needs_approval_and_nothing_else(bench: Bench) -> None:
    decision = bench.decide(bench.judge(), "ls && npm test | tee /tmp/log; cat /etc/shadow")
    assert isinstance(decision, Ask)
    assert [next(name for name in ("npm test", "tee", "shadow") if name in note) for note in decision.notes] == [
        "npm test",
        "tee",
        "shadow",
    ]
    assert decision.label == "; ".join(decision.notes)

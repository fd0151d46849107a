"""Modes, the order of rules, hooks and grants, and what is suggested to be remembered."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.protocol.requests import PermissionRequest
from kedge.protocol.runs import Mode
from kedge.tools.permissions.judge import effective_mode
from kedge.tools.permissions.policy import Allow, Ask, Deny, read_grants
from kedge.tools.port import Access
from tests.tools.permissions import cases
from tests.tools.permissions.bench import Bench, said

MODES: list[tuple[Mode, str, str, str, str, str]] = [
    # mode, a read inside, an edit inside, an edit outside, a harmless command, another
    ("plan", "allow", "deny", "deny", "allow", "deny"),
    ("ask", "allow", "ask", "ask", "allow", "ask"),
    ("auto-edit", "allow", "allow", "ask", "allow", "ask"),
    ("yolo", "allow", "allow", "allow", "allow", "allow"),
]


@pytest.mark.parametrize(("mode", "read", "edit", "edit_outside", "harmless", "other"), MODES)
def test_what_each_mode_lets_through(
    bench: Bench, mode: Mode, read: str, edit: str, edit_outside: str, harmless: str, other: str
) -> None:
    judge = bench.judge(mode)
    assert bench.path(judge, "view", "read", bench.workspace / "a.txt") == read
    assert bench.path(judge, "edit", "write", bench.workspace / "a.txt") == edit
    assert bench.path(judge, "write", "write", bench.outside) == edit_outside
    assert bench.says(judge, "ls") == harmless
    assert bench.says(judge, "npm test") == other


def test_auto_edit_writes_by_redirection_too_but_never_what_other_programs_obey(bench: Bench) -> None:
    judge = bench.judge("auto-edit")
    assert bench.says(judge, "echo x > src/new.py") == "allow"
    assert bench.says(judge, "echo x > ../new.py") == "ask"
    assert bench.says(judge, "echo x > link-out") == "ask"
    switches = (".git/config", ".git/hooks/pre-commit", "src/.GIT/config", "kedge.toml", ".envrc")
    of_a_home = (".gitconfig", ".config/git/config", ".ssh/authorized_keys", ".zshenv")
    instructions = (
        "AGENTS.md",
        "src/CLAUDE.md",
        "GEMINI.md",
        ".cursor/rules/a.mdc",
        ".mcp.json",
        ".claude/settings.json",
    )
    machines = (".github/workflows/ci.yml", ".gitlab-ci.yml", ".vscode/tasks.json", ".devcontainer/devcontainer.json")
    managers = (".npmrc", ".yarnrc.yml", ".cargo/config.toml", ".tool-versions", "mise.toml", ".gitattributes")
    python = ("conftest.py", "src/sitecustomize.py", "x.pth", ".pre-commit-config.yaml")
    installed = (".venv/bin/pip", "venv/lib/python3.11/site-packages/x.py", "web/node_modules/.bin/tsc", ".direnv/x")
    for protected in (*switches, *of_a_home, *instructions, *machines, *managers, *python, *installed):
        assert bench.path(judge, "edit", "write", bench.workspace / protected) == "ask", protected
        assert bench.says(judge, f"echo x >> {protected}") == "ask", protected


def test_auto_edit_edits_what_is_only_run_when_somebody_runs_it(bench: Bench) -> None:
    judge = bench.judge("auto-edit")
    for free in ("Makefile", "package.json", "README.md", ".github/ISSUE_TEMPLATE/a.md", "tests/test_a.py", "env.py"):
        assert bench.path(judge, "edit", "write", bench.workspace / free) == "allow", free


def test_a_workspace_inside_a_directory_of_switches_is_edited_like_any_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path / ".claude" / "worktrees")
    judge = bench.judge("auto-edit")
    assert bench.path(judge, "edit", "write", bench.workspace / "src/a.py") == "allow"
    assert bench.path(judge, "edit", "write", bench.workspace / ".claude/a.md") == "ask"


def test_the_outputs_of_commands_are_free_to_read_and_not_to_edit(bench: Bench) -> None:
    judge = bench.judge("auto-edit")
    assert bench.path(judge, "view", "read", bench.scratch / "output.txt") == "allow"
    assert bench.path(judge, "write", "write", bench.scratch / "repo/HEAD") == "ask"
    assert bench.says(judge, "echo x > SCRATCH/HEAD") == "ask"


def test_a_plan_stays_a_plan_whoever_would_allow_more(bench: Bench) -> None:
    judge = bench.judge("plan", ["edit", "bash"], permissions="allow", is_skipped=True, grants=["edit(**)"])
    assert bench.path(judge, "edit", "write", bench.workspace / "a.txt") == "deny"
    assert bench.says(judge, "npm test") == "deny"
    assert bench.says(judge, "ls") == "allow"
    refusal = bench.decides(judge, "npm test")
    assert isinstance(refusal, Deny)
    assert "mode plan" in refusal.why
    assert "npm test" in refusal.why


def test_a_plan_may_read_elsewhere_when_a_person_allows_it(bench: Bench) -> None:
    assert bench.says(bench.judge("plan"), "cat /etc/passwd") == "ask"
    assert bench.path(bench.judge("plan"), "view", "read", bench.outside) == "ask"


@pytest.mark.parametrize(
    ("configured", "chosen", "permissions", "is_skipped", "expected"),
    [
        ("ask", None, "ask", False, "ask"),
        ("ask", "auto-edit", "ask", False, "auto-edit"),
        ("auto-edit", None, "deny", False, "auto-edit"),
        ("ask", None, "allow", False, "yolo"),
        ("ask", None, "ask", True, "yolo"),
        ("plan", None, "allow", True, "plan"),
        ("yolo", "plan", "ask", False, "plan"),
    ],
)
def test_which_mode_holds(
    configured: Mode, chosen: Mode | None, permissions: str, is_skipped: bool, expected: Mode
) -> None:
    assert permissions in ("ask", "deny", "allow")
    assert effective_mode(configured, chosen, permissions, is_skipped=is_skipped) == expected


def test_yolo_comes_before_deny_and_deny_before_allow(bench: Bench) -> None:
    deny = ["bash(git push *)", "edit(src/**)"]
    judge = bench.judge("ask", ["bash", "edit"], deny)
    assert bench.says(judge, "git push origin") == "deny"
    assert bench.says(judge, "git pull") == "allow"
    assert bench.path(judge, "write", "write", bench.workspace / "src/main.py") == "deny"
    assert bench.says(judge, "echo x > src/main.py") == "deny"
    assert bench.says(bench.judge("yolo", deny=deny), "git push origin") == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "git -C . push",
        "git -c a=b push -f",
        "/usr/bin/git push",
        "ls && git push",
        "echo $(git push)",
        "timeout 5 git push",
        "sudo git push",
        "sudo -u me git push",
        "sh -c 'git push'",
        "sudo sh -c 'git push'",
        "ssh host git push",
        r"find . -exec git push \;",
        "echo x | xargs git push",
        "f() { git push; }",
        "g\\it p'u'sh",
        "zsh -c 'git push'",
        "flock x git push",
        "watch git push",
        "./env git push",
        "coproc git push",
    ],
)
def test_what_is_forbidden_is_found_wherever_it_stands(bench: Bench, command: str) -> None:
    decision = bench.decides(bench.judge(allow=["bash"], deny=["bash(git push *)"]), command)
    assert isinstance(decision, Deny)
    assert decision.rule == "bash(git push *)"
    assert "bash(git push *)" in decision.why


@pytest.mark.parametrize("command", ["git $x", "git p* origin", "$x push"])
def test_what_may_be_forbidden_is_asked_although_a_rule_would_allow_it(bench: Bench, command: str) -> None:
    judge = bench.judge(allow=["bash(git *)"], deny=["bash(git push *)"], grants=["bash(git *)"])
    assert bench.says(judge, command) == "ask"


def test_files_that_are_forbidden_are_so_for_every_tool_and_for_commands(bench: Bench) -> None:
    judge = bench.judge(allow=["bash(cat *)"], deny=["view(.env)", "view(//etc/**)"])
    assert bench.path(judge, "view", "read", bench.workspace / ".env") == "deny"
    assert bench.path(judge, "grep", "read", bench.workspace / ".env") == "deny"
    for command in (
        "cat .env",
        "cat < .env",
        "cat src/../.env",
        "head -1 ./.e''nv",
        "cat /etc/passwd",
    ):
        assert bench.says(judge, command) == "deny", command
    for command in ("for f in .env; do cat $f; done", "cat $x", "python3 tool.py .env", "grep -r a ."):
        assert bench.says(judge, command) == "ask", command
    assert bench.says(judge, "cat a.txt") == "allow"


def test_an_allowed_command_needs_leave_for_its_files_and_its_neighbours(bench: Bench) -> None:
    judge = bench.judge(allow=["bash(npm test *)", "edit(logs/**)", "view(//etc/hosts)"])
    assert bench.says(judge, "npm test -- -x") == "allow"
    assert bench.says(judge, "npm test $x") == "allow"
    assert bench.says(judge, "npm test > logs/out.txt") == "allow"
    assert bench.says(judge, "npm test > out.txt") == "ask"
    assert bench.says(judge, "npm test && rm a.txt") == "ask"
    assert bench.says(judge, "npm test $(rm a.txt)") == "ask"
    assert bench.says(judge, "npm test | tail -5") == "allow"
    assert bench.says(judge, "timeout 60 npm test") == "allow"
    assert bench.says(judge, "PATH=. npm test") == "ask"
    assert bench.says(judge, "./npm test") == "ask"
    assert bench.says(judge, "cat /etc/hosts") == "allow"


def test_what_certainly_reads_only_is_known_whatever_allows_it(bench: Bench) -> None:
    lax = bench.judge("yolo", ["bash", "edit"])
    for command, expected in cases.ALL:
        access = Access(kind="execute", subject=command.replace("SCRATCH", str(bench.scratch)), description="run it")
        if expected == "runs":
            assert lax.changes_nothing("bash", [access]), command
        elif expected == "ask" and lax.changes_nothing("bash", [access]):
            decision = bench.decides(bench.judge(), command)
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
def test_a_rule_holds_beside_what_certainly_only_reads(bench: Bench, command: str, expected: str) -> None:
    decision = bench.decides(bench.judge(allow=["bash(pytest *)"]), command)
    assert said(decision) == expected
    assert not isinstance(decision, Allow) or decision.run_as == "approved"


@pytest.mark.parametrize(
    "command",
    [
        "git $x",
        "git p*",
        "{git,push}",
        "gi\\\nt push",
        "git --exec-path push",
        "git --attr-source HEAD push",
        "su -c 'git push'",
        "script -c 'git push' x",
        "$(echo git) push",
        "echo push | xargs git",
        'eval "gi""t push"',
        "[ a || git push ]",
        "RANDOM='a[$(git push)]'",
        "x=push; git $x",
        "git\u00a0push; git push",
        'eval "$x"',
        'sh -c "$x"',
        'bash <<< "$x"',
        "bash script.sh",
        ". ./script.sh",
        "echo x | sh",
        "git -c alias.p=push p",
        "bash <<'EOF'\ngit push\nEOF",
        "xargs -I{} git {} <<< push",
        "env -S'git push'",
        "env " + "A=1 " * 220 + "git push",
        "sg root -c 'git push'",
        "git " + "- " * 3000 + "push",
    ],
)
def test_a_deny_rule_holds_for_what_cannot_be_read(bench: Bench, command: str) -> None:
    assert bench.says(bench.judge(allow=["bash"], deny=["bash(git push *)"]), command) in ("ask", "deny")


@pytest.mark.parametrize("command", ["ls", "git status", "git log --grep=push", "for i in 1; do make; done", "echo $x"])
def test_a_deny_rule_does_not_stand_in_the_way_of_other_commands(bench: Bench, command: str) -> None:
    assert bench.says(bench.judge(allow=["bash"], deny=["bash(git push *)"]), command) == "allow"


HOSTILE_SETTINGS = {
    "a section behind another": "[core][include]\n\tpath = ../evil\n",
    "a byte order mark": "\ufeff[include]\n\tpath = ../evil\n",
    "fsmonitor": "[core]\n\tfsmonitor = ./evil\n",
    "a filter": '[filter "x"]\n\tclean = ./evil\n',
    "a promisor": '[remote "o"]\n\turl = ext::./evil\n\tpromisor = true\n',
    "a continued line": "[core]\n\tbare = false\\\n\tfsmonitor = x\n",
    "a transport": '[remote "o"]\n\turl = ext::sh\n',
}


@pytest.mark.parametrize("settings", HOSTILE_SETTINGS.values(), ids=HOSTILE_SETTINGS.keys())
def test_git_is_not_free_where_the_repository_could_choose_a_program(tmp_path: Path, settings: str) -> None:
    bench = Bench(tmp_path)
    config = bench.workspace / ".git" / "config"
    judge = bench.judge(allow=["bash(make *)"])
    config.write_text('[core]\n\tbare = false\n[remote "origin"]\n\turl = git@example.com:a/b.git\n')
    assert bench.says(judge, "git status", has_sandbox=False) == "allow"
    assert bench.says(judge, "make x; git status") == "allow"
    config.write_text(settings)
    assert bench.says(judge, "git status", has_sandbox=False) == "ask"
    assert bench.says(judge, "make x; git status") == "ask"
    assert bench.says(judge, "git status") == "allow"  # in the sandbox


def test_git_is_not_free_with_hooks_submodules_and_odd_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    repository = bench.workspace / ".git"
    judge = bench.judge()
    assert bench.says(judge, "git status", has_sandbox=False) == "allow"
    (repository / "index").write_bytes(b"DIRC" + b"\x00\x00\xe0\x00")
    assert bench.says(judge, "git status", has_sandbox=False) == "ask"
    (repository / "index").unlink()
    (repository / "hooks").mkdir()
    (repository / "hooks" / "post-index-change").write_text("#!/bin/sh\n")
    assert bench.says(judge, "git status", has_sandbox=False) == "ask"
    (repository / "hooks" / "post-index-change").unlink()
    os.mkfifo(repository / "config")
    assert bench.says(judge, "git status", has_sandbox=False) == "ask"


def test_a_path_that_may_not_be_read_is_not_read_by_nested_shells(bench: Bench) -> None:
    judge = bench.judge(deny=["view(.env)"])
    nested = ('bash -c "cat .env"', 'eval "cat .env"', "timeout 5 bash -c 'cat .env'", "sed 'r .env' a.txt")
    for command in (*nested, "find . -exec sh -c 'cat .env' \\;", "wc --files0-from=list", "awk 1 $x"):
        assert bench.says(judge, command) in ("ask", "deny"), command
    assert bench.says(judge, "cat a.txt | head -n 5") == "allow"


def test_a_wrapper_that_the_workspace_brings_is_not_looked_through(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.workspace / "bin").mkdir()
    (bench.workspace / "bin" / "nice").write_text("#!/bin/sh\n")
    (bench.workspace / "bin" / "nice").chmod(0o755)
    env = {"PATH": f"{bench.workspace}/bin:{os.defpath}"}
    judge = bench.judge(allow=["bash(make *)"], env=env)
    assert bench.says(judge, "make x; timeout 5 nice ls") == "ask"
    assert bench.says(bench.judge(allow=["bash(make *)"]), "make x; timeout 5 nice ls") == "allow"


def test_the_question_names_what_keeps_a_line_from_running_freely(bench: Bench) -> None:
    judge = bench.judge(allow=["bash(pytest *)"])
    decision = bench.decides(judge, "pytest -q | awk 1")
    assert isinstance(decision, Ask)
    assert decision.notes == ("`awk 1`: not known to be read-only",)
    decision = bench.decides(bench.judge(), "ls", unsandboxed=True)
    assert isinstance(decision, Ask)
    assert "without the sandbox" in decision.label


def test_a_line_that_writes_a_repository_does_not_use_it(bench: Bench) -> None:
    judge = bench.judge("auto-edit")
    assert bench.says(judge, "echo x > src/HEAD; git -C src status") == "ask"
    decision = bench.decides(judge, "echo x > src/new.txt")
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
def test_a_name_that_no_file_can_have_is_no_error(bench: Bench, command: str) -> None:
    for judge in (bench.judge(), bench.judge(allow=["bash(pytest *)"], deny=["view(.env)", "bash(git push *)"])):
        assert bench.says(judge, command) in ("ask", "allow")
        assert bench.says(judge, command, has_sandbox=False) in ("ask", "allow")


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
def test_what_needs_processes_or_mounts_does_not_lift_the_sandbox_from_the_rest(bench: Bench, command: str) -> None:
    decision = bench.decides(bench.judge(), command)
    assert not isinstance(decision, Allow) or decision.run_as == "sandboxed"
    shown = bench.decides(bench.judge(), "ps aux | grep python | head -n 5")
    assert isinstance(shown, Allow)
    assert shown.run_as == "unapproved"


@pytest.mark.parametrize("name", ["packed-refs", "shallow", "index", "objects/info/alternates", "refs/heads/x"])
def test_git_is_not_free_where_its_files_lead_elsewhere(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path)
    (bench.workspace / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
    (bench.workspace / ".git" / name).symlink_to(bench.outside)
    assert bench.says(bench.judge(), "git log", has_sandbox=False) == "ask"


def test_a_denied_path_is_found_wherever_it_may_be_written(bench: Bench) -> None:
    judge = bench.judge(allow=["bash"], deny=["view(**/.env)", "edit(a.txt)"])
    read = ("eval :; cp .env x", "f=.env; cp $f x", "cp $'.env' x", "cp .en[v] x", "dd if=.env", "cp {.env,x}")
    write = ("cd -- .; rm a.txt", 'cd "$PWD" && rm a.txt', "sort -oa.txt x", "sort --output=a.txt x", "dd of=a.txt")
    reopened = ("echo x <a.txt >/dev/stdin",)
    for command in (*read, *write, *reopened):
        assert bench.says(judge, command) in ("ask", "deny"), command
    assert bench.says(judge, "make x") == "allow"


def test_a_secret_that_a_rule_allows_to_read_is_read_outside_the_sandbox_that_hides_it(bench: Bench) -> None:
    for path, run_as in (("/etc/hosts", "sandboxed"), ("/etc/shadow", "unapproved"), (str(bench.home), "unapproved")):
        decision = bench.decides(bench.judge(allow=[f"view({path})"]), f"ls {path}")
        assert isinstance(decision, Allow)
        assert decision.run_as == run_as, path
    assert bench.says(bench.judge("plan", ["view(/etc/shadow)"]), "cat /etc/shadow") == "allow"  # and hidden there


def test_a_decoy_does_not_hide_the_repository_around_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.workspace / "decoy" / ".git" / "objects").mkdir(parents=True)
    (bench.workspace / "decoy" / ".git" / "HEAD").write_text("garbage")
    (bench.workspace / ".git" / "config").write_text("[core]\n\tfsmonitor = ./evil\n")
    assert bench.says(bench.judge(), "git -C decoy status", has_sandbox=False) == "ask"


def test_what_a_tracked_file_held_is_not_shown_where_reading_it_is_forbidden(bench: Bench) -> None:
    judge = bench.judge(deny=["view(**/.env)"])
    for command in ("git show HEAD:.env", "git log -p", "git cat-file -p HEAD:.env", "git diff", "git blame a.txt"):
        assert bench.says(judge, command) == "ask", command
    assert bench.says(judge, "git status") == "allow"


def test_wildcards_through_links_are_not_followed_for_long(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(10):
        (bench.workspace / f"loop{number}").symlink_to(".")
    started = time.process_time()
    assert bench.says(bench.judge(), "cat " + "*/" * 9 + "zz*") in ("ask", "allow")
    assert time.process_time() - started < 3


def test_without_bash_only_rules_and_the_sandbox_let_a_command_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_bash(*_: object) -> str:
        return "/bin/sh"

    monkeypatch.setattr("kedge.tools.permissions.judge.find_shell", find_no_bash)
    assert bench.says(bench.judge(), "ls", has_sandbox=False) == "ask"
    assert bench.says(bench.judge(allow=["bash(ls)"]), "ls", has_sandbox=False) == "ask"
    assert bench.says(bench.judge(), "[[ a > b ]]") == "allow"  # in the sandbox


def test_sudo_is_allowed_only_by_its_own_name(bench: Bench) -> None:
    assert bench.says(bench.judge(allow=["bash(ls *)"]), "sudo ls") == "ask"
    assert bench.says(bench.judge(allow=["bash(sudo ls *)"]), "sudo ls") == "allow"
    assert bench.says(bench.judge(allow=["bash(*)"]), "sudo ls") == "allow"


def test_a_rule_for_bash_alone_lets_even_the_unreadable_through(bench: Bench) -> None:
    assert bench.says(bench.judge(allow=["bash"]), "rm 'x") == "allow"
    assert bench.says(bench.judge(allow=["bash(*)"]), "rm 'x") == "ask"
    assert bench.says(bench.judge(deny=["bash"]), "ls") == "deny"


def test_a_command_starts_where_its_tool_says(bench: Bench) -> None:
    judge = bench.judge()
    assert bench.says(judge, "cat ../a.txt", working_dir="src") == "allow"
    assert bench.says(judge, "cat ../../outside.txt", working_dir="src") == "ask"
    assert bench.says(judge, "git status", working_dir="planted", has_sandbox=False) == "ask"


def test_a_hook_decides_before_grants_and_after_rules(bench: Bench) -> None:
    no, yes = Deny(why="the hook says no"), Allow(why="the hook says yes", by="hook")
    assert bench.says(bench.judge(hook=lambda tool, access: no), "ls") == "deny"
    assert bench.says(bench.judge(hook=lambda tool, access: no, grants=["bash(make)"]), "make") == "deny"
    assert bench.says(bench.judge(allow=["bash(make)"], hook=lambda tool, access: no), "make") == "allow"
    assert bench.says(bench.judge(hook=lambda tool, access: yes), "make") == "allow"
    assert bench.says(bench.judge(deny=["bash(make)"], hook=lambda tool, access: yes), "make") == "deny"
    assert bench.says(bench.judge("plan", hook=lambda tool, access: yes), "make") == "deny"
    assert bench.says(bench.judge(hook=lambda tool, access: None), "make") == "ask"


def test_addresses_and_other_tools(bench: Bench) -> None:
    judge = bench.judge(
        allow=["fetch(domain:example.com)", "mcp_github_*"], deny=["fetch(domain:evil.org)", "mcp_x_drop"]
    )
    assert bench.path(judge, "fetch", "fetch", "https://example.com/a") == "allow"
    assert bench.path(judge, "download", "fetch", "https://evil.org/a") == "deny"
    assert bench.path(judge, "fetch", "fetch", "https://other.org/a") == "ask"
    assert bench.path(judge, "mcp_github_list", "execute", "list") == "allow"
    assert bench.path(judge, "mcp_x_drop", "execute", "drop") == "deny"
    assert bench.path(judge, "mcp_x_add", "execute", "add") == "ask"


SUGGESTED = [
    ("npm test", ("bash(npm test *)",)),
    ("npm run build --watch", ("bash(npm run build *)",)),
    ("python -m pytest -q tests", ("bash(python -m pytest *)",)),
    ("python3 -m unittest tests.test_price", ("bash(python3 -m unittest *)",)),
    ("make all", ("bash(make all)",)),
    ("git push origin main", ("bash(git push origin main)",)),
    ("git commit -m 'a b'", ("bash(git commit *)",)),
    ("echo x > out.txt; make all", ("edit(**)", "bash(make all)")),
    ("make 'a (b)' '*'", ("bash(make 'a (b)' '*')",)),
    ("python x.py", ("bash(python x.py)",)),
    ("python -c 'x'", ()),
    ("node -e 1", ()),
    ("bash script.sh", ("bash(bash script.sh)",)),
    ("ls | bash", ()),
    ("awk '{print}' a.txt | make", ()),
    ("timeout 60 npm test", ("bash(npm test *)",)),
    ("npm test | column -t", ("bash(npm test *)", "bash(column -t)")),
    ("sudo ls", ()),
    ("rm a.txt", ()),
    ("make $x", ()),
    ("make *.c", ()),
    ("eval $x", ()),
    ("make all; python -c 1", ()),
    ("X=1 make", ()),
    ("echo x > .git/config", ("edit(WORKSPACE/.git/config)",)),
    ("cat /etc/passwd", ("view(/etc/passwd)",)),
]


@pytest.mark.parametrize(("command", "rules"), SUGGESTED)
def test_what_is_suggested_to_be_remembered(bench: Bench, command: str, rules: tuple[str, ...]) -> None:
    decision = bench.decides(bench.judge(), command)
    assert isinstance(decision, Ask)
    assert decision.rules == tuple(rule.replace("WORKSPACE", str(bench.workspace)) for rule in rules)


@pytest.mark.parametrize("command", [command for command, expected in cases.ALL if expected == "ask"], ids=repr)
def test_a_grant_lets_the_same_command_through_and_not_another(bench: Bench, command: str) -> None:
    decision = bench.decides(bench.judge(), command)
    assert isinstance(decision, Ask)
    assert not {"bash", "bash(*)", "edit", "view", "fetch"} & set(decision.rules)
    if decision.rules:
        judge = bench.judge(grants=decision.rules)
        assert bench.says(judge, command) == "allow"
        assert bench.says(judge, f"{command}\nrm -rf src") == "ask"
        assert bench.says(judge, "python -c 1") == "ask"


def test_a_grant_for_the_workspace_does_not_cover_what_other_programs_obey(bench: Bench) -> None:
    judge = bench.judge(grants=["edit(**)"])
    assert bench.path(judge, "write", "write", bench.workspace / "src/main.py") == "allow"
    assert bench.path(judge, "write", "write", bench.workspace / ".git/config") == "ask"


def test_a_grant_holds_at_once_and_one_that_cannot_be_read_is_forgotten(bench: Bench) -> None:
    judge = bench.judge(grants=["no such rule"])
    assert bench.says(judge, "make") == "ask"
    judge.grant(["bash(make)"])
    assert bench.says(judge, "make") == "allow"


def test_grants_are_read_back_from_the_requests_that_were_answered_so(bench: Bench) -> None:
    asked = bench.decides(bench.judge(), "make all")
    assert isinstance(asked, Ask)
    request = PermissionRequest(
        id="1", session_id="s", run_id="r", tool_call_id="c", tool="bash", action="execute", description="",
        params=asked.params({"command": "make all"}),
    )  # fmt: skip
    assert request.params["command"] == "make all"
    assert read_grants([request, request]) == ("bash(make all)",)
    broken = PermissionRequest(
        id="2", session_id="s", run_id="r", tool_call_id="c", tool="bash", action="execute", description="",
        params={"rules": [1, None, "bash(x)"]},
    )  # fmt: skip
    assert read_grants([broken]) == ("bash(x)",)
    assert bench.says(bench.judge(grants=read_grants([request])), "make all") == "allow"


def test_the_question_names_what_is_in_the_way_and_only_that(bench: Bench) -> None:
    decision = bench.decides(bench.judge(), "ls && npm test | tee /tmp/log; cat /etc/shadow")
    assert isinstance(decision, Ask)
    assert decision.notes == (
        "`npm test`: not known to be read-only",
        "`tee /tmp/log`: not known to be read-only",
        "reads /etc/shadow, a file that may hold secrets",
    )
    assert decision.label == "; ".join(decision.notes)


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.text(max_size=6), min_size=1, max_size=4))
def test_a_remembered_command_is_that_command_whatever_its_words_hold(bench: Bench, words: list[str]) -> None:
    command = shlex.join(["make", *words])
    decision = bench.decides(bench.judge(), command)
    assert isinstance(decision, Ask)
    if decision.rules:
        judge = bench.judge(grants=decision.rules)
        assert said(judge.judge("bash", Access(kind="execute", subject=command, description=""))) == "allow"
        assert bench.says(judge, command + " x") == "ask"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("grep -rn a .", "ask"),
        ("grep -rn a", "ask"),
        ("rg --hidden a", "ask"),
        ("git grep --untracked a", "ask"),
        ("find . -type f -exec cat {} +", "ask"),
        ("cat .e*", "deny"),
        ("grep a a.txt", "allow"),
        ("ls -R", "allow"),
        ("find . -type f -exec basename {} \\;", "ask"),
        ("git status", "allow"),
    ],
)
def test_what_may_not_be_read_is_not_read_with_the_directory_it_is_in(
    bench: Bench, command: str, expected: str
) -> None:
    assert bench.says(bench.judge(deny=["view(.env)"]), command) == expected

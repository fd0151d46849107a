"""Deny rules: they apply to commands inside wrappers, nested shells and lines that cannot be parsed exactly."""

from __future__ import annotations

import pytest

from kedge.tools.permissions.policy import Deny
from tests.tools.permissions.bench import Bench


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
def test_a_denied_command_is_found_inside_other_commands(bench: Bench, command: str) -> None:
    decision = bench.decide(bench.judge(allow=["bash"], deny=["bash(git push *)"]), command)
    assert isinstance(decision, Deny)
    assert decision.rule == "bash(git push *)"
    assert "bash(git push *)" in decision.why


@pytest.mark.parametrize("rule", ["bash(python -m pip *)", "bash(python3 -m pip *)", "bash(python3.9 -m pip *)"])
@pytest.mark.parametrize(
    "command",
    [
        "python -m pip install x",
        "python3 -m pip install x",
        "python3.12 -mpip install x",
        "/usr/bin/python3 -m pip install x",
        "./.venv/bin/python -I -m pip install x",
        "python -ISm pip install x",
        "python3 -W ignore -X dev -m pip install x",
        "python3 -Wignore -u -mpip install x",
        "sudo python3 -m pip install x",
        "sh -c 'python3 -m pip install x'",
        "echo $(python3 -m pip install x)",
        "ls\npython3 -m pip install x",
    ],
)
def test_a_denied_module_is_found_under_each_name_of_python(bench: Bench, rule: str, command: str) -> None:
    assert bench.outcome(bench.judge(allow=["bash"], deny=[rule]), command) == "deny"


def test_a_denied_program_is_denied_as_a_python_module(bench: Bench) -> None:
    judge = bench.judge(allow=["bash"], deny=["bash(pip install *)", "bash(pytest *)"])
    assert bench.outcome(judge, "python3 -I -m pip install x") == "deny"
    assert bench.outcome(judge, "python3 -m pip list") == "allow"
    assert bench.outcome(judge, "python3 -m pytest") == "deny"


@pytest.mark.parametrize(
    "command",
    ["python3 $x pip install y", 'python3 "$x" pip install y', 'run() { python3 "$@"; }; run -m pip install y'],
)
def test_a_module_that_may_be_denied_is_asked_about(bench: Bench, command: str) -> None:
    judge = bench.judge(allow=["bash"], deny=["bash(python -m pip install *)"])
    assert bench.outcome(judge, command) in ("ask", "deny")
    assert bench.outcome(judge, "python3 $x") == "ask"
    assert bench.outcome(judge, "python3 x.py") == "allow"


@pytest.mark.parametrize("command", ["git $x", "git p* origin", "$x push"])
def test_a_command_that_may_be_denied_is_asked_about_despite_an_allow_rule(bench: Bench, command: str) -> None:
    judge = bench.judge(allow=["bash(git *)"], deny=["bash(git push *)"], grants=["bash(git *)"])
    assert bench.outcome(judge, command) == "ask"


def test_a_denied_file_is_denied_to_every_tool_and_to_commands(bench: Bench) -> None:
    judge = bench.judge(allow=["bash(cat *)"], deny=["view(.env)", "view(//etc/**)"])
    assert bench.path_outcome(judge, "view", "read", bench.workspace / ".env") == "deny"
    assert bench.path_outcome(judge, "grep", "read", bench.workspace / ".env") == "deny"
    for command in (
        "cat .env",
        "cat < .env",
        "cat src/../.env",
        "head -1 ./.e''nv",
        "cat /etc/passwd",
    ):
        assert bench.outcome(judge, command) == "deny", command
    for command in ("for f in .env; do cat $f; done", "cat $x", "python3 tool.py .env", "grep -r a ."):
        assert bench.outcome(judge, command) == "ask", command
    assert bench.outcome(judge, "cat a.txt") == "allow"


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
def test_a_deny_rule_applies_to_lines_that_cannot_be_parsed(bench: Bench, command: str) -> None:
    assert bench.outcome(bench.judge(allow=["bash"], deny=["bash(git push *)"]), command) in ("ask", "deny")


@pytest.mark.parametrize("command", ["ls", "git status", "git log --grep=push", "for i in 1; do make; done", "echo $x"])
def test_a_deny_rule_does_not_affect_other_commands(bench: Bench, command: str) -> None:
    assert bench.outcome(bench.judge(allow=["bash"], deny=["bash(git push *)"]), command) == "allow"


def test_nested_shells_do_not_read_a_denied_path(bench: Bench) -> None:
    judge = bench.judge(deny=["view(.env)"])
    nested = ('bash -c "cat .env"', 'eval "cat .env"', "timeout 5 bash -c 'cat .env'", "sed 'r .env' a.txt")
    for command in (*nested, "find . -exec sh -c 'cat .env' \\;", "wc --files0-from=list", "awk 1 $x"):
        assert bench.outcome(judge, command) in ("ask", "deny"), command
    assert bench.outcome(judge, "cat a.txt | head -n 5") == "allow"


def test_a_denied_path_is_found_in_options_variables_and_redirections(bench: Bench) -> None:
    judge = bench.judge(allow=["bash"], deny=["view(**/.env)", "edit(a.txt)"])
    read = ("eval :; cp .env x", "f=.env; cp $f x", "cp $'.env' x", "cp .en[v] x", "dd if=.env", "cp {.env,x}")
    write = ("cd -- .; rm a.txt", 'cd "$PWD" && rm a.txt', "sort -oa.txt x", "sort --output=a.txt x", "dd of=a.txt")
    reopened = ("echo x <a.txt >/dev/stdin",)
    for command in (*read, *write, *reopened):
        assert bench.outcome(judge, command) in ("ask", "deny"), command
    assert bench.outcome(judge, "make x") == "allow"


def test_git_does_not_show_past_contents_of_a_denied_file(bench: Bench) -> None:
    judge = bench.judge(deny=["view(**/.env)"])
    for command in ("git show HEAD:.env", "git log -p", "git cat-file -p HEAD:.env", "git diff", "git blame a.txt"):
        assert bench.outcome(judge, command) == "ask", command
    assert bench.outcome(judge, "git status") == "allow"


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
def test_a_denied_file_is_not_read_through_its_directory(bench: Bench, command: str, expected: str) -> None:
    assert bench.outcome(bench.judge(deny=["view(.env)"]), command) == expected


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ('f() { wc -l "$@"; }; f a.txt', "allow"),
        ('f() { wc -l "$@"; }; f git', "allow"),
        ('f() { "$@" push; }; f git', "ask"),
    ],
)
def test_a_line_that_cannot_be_read_exactly_is_doubted_only_if_it_has_the_words_of_a_rule(
    bench: Bench, command: str, outcome: str
) -> None:
    assert bench.outcome(bench.judge(allow=["bash"], deny=["bash(git push *)"]), command) == outcome

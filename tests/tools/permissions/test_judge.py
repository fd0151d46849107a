"""Modes, the order of rules and hooks, and the files that mode auto-edit does not write."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.protocol.runs import Mode
from kedge.tools.permissions.judge import effective_mode
from kedge.tools.permissions.policy import Deny
from tests.tools.permissions.bench import Bench

MODES: list[tuple[Mode, str, str, str, str, str]] = [
    # mode, a read inside, an edit inside, an edit outside, a harmless command, another
    ("plan", "allow", "deny", "deny", "allow", "deny"),
    ("ask", "allow", "ask", "ask", "allow", "ask"),
    ("auto-edit", "allow", "allow", "ask", "allow", "ask"),
    ("yolo", "allow", "allow", "allow", "allow", "allow"),
]


@pytest.mark.parametrize(("mode", "read", "edit", "edit_outside", "harmless", "other"), MODES)
def test_each_mode_allows_asks_and_denies_what_its_row_says(
    bench: Bench, mode: Mode, read: str, edit: str, edit_outside: str, harmless: str, other: str
) -> None:
    judge = bench.judge(mode)
    assert bench.path_outcome(judge, "view", "read", bench.workspace / "a.txt") == read
    assert bench.path_outcome(judge, "edit", "write", bench.workspace / "a.txt") == edit
    assert bench.path_outcome(judge, "write", "write", bench.outside) == edit_outside
    assert bench.outcome(judge, "ls") == harmless
    assert bench.outcome(judge, "npm test") == other


def test_auto_edit_allows_redirections_but_asks_about_files_that_other_programs_obey(bench: Bench) -> None:
    judge = bench.judge("auto-edit")
    assert bench.outcome(judge, "echo x > src/new.py") == "allow"
    assert bench.outcome(judge, "echo x > ../new.py") == "ask"
    assert bench.outcome(judge, "echo x > link-out") == "ask"
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
        assert bench.path_outcome(judge, "edit", "write", bench.workspace / protected) == "ask", protected
        assert bench.outcome(judge, f"echo x >> {protected}") == "ask", protected


def test_auto_edit_allows_files_that_only_run_on_request(bench: Bench) -> None:
    judge = bench.judge("auto-edit")
    for free in ("Makefile", "package.json", "README.md", ".github/ISSUE_TEMPLATE/a.md", "tests/test_a.py", "env.py"):
        assert bench.path_outcome(judge, "edit", "write", bench.workspace / free) == "allow", free


def test_a_workspace_inside_a_protected_directory_is_edited_like_any_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path / ".claude" / "worktrees")
    judge = bench.judge("auto-edit")
    assert bench.path_outcome(judge, "edit", "write", bench.workspace / "src/a.py") == "allow"
    assert bench.path_outcome(judge, "edit", "write", bench.workspace / ".claude/a.md") == "ask"


def test_outputs_of_commands_may_be_read_but_not_edited(bench: Bench) -> None:
    judge = bench.judge("auto-edit")
    assert bench.path_outcome(judge, "view", "read", bench.scratch / "output.txt") == "allow"
    assert bench.path_outcome(judge, "write", "write", bench.scratch / "repo/HEAD") == "ask"
    assert bench.outcome(judge, "echo x > SCRATCH/HEAD") == "ask"


def test_mode_plan_denies_changes_despite_rules_grants_and_skipped_permissions(bench: Bench) -> None:
    judge = bench.judge("plan", ["edit", "bash"], permissions="allow", is_skipped=True, grants=["edit(**)"])
    assert bench.path_outcome(judge, "edit", "write", bench.workspace / "a.txt") == "deny"
    assert bench.outcome(judge, "npm test") == "deny"
    assert bench.outcome(judge, "ls") == "allow"
    refusal = bench.decide(judge, "npm test")
    assert isinstance(refusal, Deny)
    assert "mode plan" in refusal.why
    assert "npm test" in refusal.why


def test_mode_plan_asks_about_reading_outside_the_workspace(bench: Bench) -> None:
    assert bench.outcome(bench.judge("plan"), "cat /etc/passwd") == "ask"
    assert bench.path_outcome(bench.judge("plan"), "view", "read", bench.outside) == "ask"


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
def test_the_effective_mode(
    configured: Mode, chosen: Mode | None, permissions: str, is_skipped: bool, expected: Mode
) -> None:
    assert permissions in ("ask", "deny", "allow")
    assert effective_mode(configured, chosen, permissions, is_skipped=is_skipped) == expected


def test_yolo_comes_before_deny_and_deny_before_allow(bench: Bench) -> None:
    deny = ["bash(git push *)", "edit(src/**)"]
    judge = bench.judge("ask", ["bash", "edit"], deny)
    assert bench.outcome(judge, "git push origin") == "deny"
    assert bench.outcome(judge, "git pull") == "allow"
    assert bench.path_outcome(judge, "write", "write", bench.workspace / "src/main.py") == "deny"
    assert bench.outcome(judge, "echo x > src/main.py") == "deny"
    assert bench.outcome(bench.judge("yolo", deny=deny), "git push origin") == "allow"


def test_rules_for_urls_and_other_tools(bench: Bench) -> None:
    judge = bench.judge(
        allow=["fetch(domain:example.com)", "mcp_github_*"], deny=["fetch(domain:evil.org)", "mcp_x_drop"]
    )
    assert bench.path_outcome(judge, "fetch", "fetch", "https://example.com/a") == "allow"
    assert bench.path_outcome(judge, "download", "fetch", "https://evil.org/a") == "deny"
    assert bench.path_outcome(judge, "fetch", "fetch", "https://other.org/a") == "ask"
    assert bench.path_outcome(judge, "mcp_github_list", "execute", "list") == "allow"
    assert bench.path_outcome(judge, "mcp_x_drop", "execute", "drop") == "deny"
    assert bench.path_outcome(judge, "mcp_x_add", "execute", "add") == "ask"

"""`kedge import`, as a user runs it: what it finds, what it writes, and what it leaves alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kedge.config.files import ConfigPaths
from kedge.config.load import Loader
from kedge.imports.convert import convert_rule
from kedge.imports.items import remove_comments
from kedge.imports.sources import convert_gemini_prompt
from tests.imports.setups import SECRET, write, write_all

SECRETS = (
    *(SECRET, "hunter2-x", "s3cret-value", "abc123def", "aaaabbbbccccdddd1111"),
    *("plain9secret", "pw1secret", "p4ss", "dsn9secret", "script9secret"),
)


class Home:
    def __init__(self, root: Path) -> None:
        self.home, self.project = root / "home", root / "project"
        self.home.mkdir()
        self.project.mkdir()
        self.config = self.home / ".config" / "kedge" / "config.toml"

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        env = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        command = [sys.executable, "-m", "kedge", "import", "-c", str(self.project), *args]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def read(self, *args: str) -> dict[str, Any]:
        done = self.run("--json", *args)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def items(self) -> dict[str, dict[str, Any]]:
        return {item["id"]: item for item in self.read("--dry-run")["found"]}

    def load(self, env: dict[str, str] | None = None):
        paths = ConfigPaths((), self.config)
        return Loader(paths).load(self.project, {"HOME": str(self.home), **(env or {})}).config


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    write_all(home.home, home.project)
    return home


def digest(*roots: Path) -> dict[str, str]:
    files = (path for root in roots for path in root.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if "kedge" not in str(path.name)}


def test_all_is_found_and_what_is_used_anyway_is_said(home: Home) -> None:
    before = digest(home.home, home.project)
    items = home.items()
    assert digest(home.home, home.project) == before
    states = {id: item["state"] for id, item in items.items()}
    assert states["claude/mcp/files"] == states["codex/skill/deploy"] == states["gemini/command/git/fix"] == "new"
    assert states["claude/command/review"] == states["claude/skill/pdf"] == "used"
    assert states["claude/project/mcp/shared"] == states["claude/project/instructions/CLAUDE.md"] == "used"
    assert states["codex/mcp/github"] == "conflict", "another server has this name"
    assert states["claude/mcp/broken"] == "left_out"
    assert {item["state"] for item in items.values() if item["kind"] == "mode"} == {"new"}
    assert items["claude/project/deny/edit(migrations/**)"]["target"] == str(home.project / "kedge.toml")


def test_everything_is_taken_over_once_and_nothing_of_theirs_changes(home: Home) -> None:
    theirs = [home.home / name for name in (".claude", ".codex", ".gemini", ".config/opencode", ".config/crush")]
    before = digest(*theirs), (home.home / ".claude.json").read_bytes()
    first = home.read("--all")
    assert first["failed"] == []
    assert (digest(*theirs), (home.home / ".claude.json").read_bytes()) == before
    ours = home.home / ".config" / "kedge"
    written = digest(ours, home.project), home.config.read_text()
    second = home.read("--all")
    assert second["added"] == []
    assert (digest(ours, home.project), home.config.read_text()) == written

    config = home.load()
    assert set(config.mcp) == {
        *("github", "files", "with-argument", "in-text", "in-script"),
        *("docs", "remote", "few", "search", "local", "jira", "maps"),
    }
    assert config.mcp["local"].enabled is False
    assert config.mcp["search"].headers == {"X-Key": "${SEARCH_KEY}"}
    assert config.mcp["docs"].env == {"DOCS_TOKEN": "${DOCS_TOKEN}"}
    assert config.mcp["jira"].env == {"JIRA_TOKEN": "${JIRA_TOKEN}"}
    assert (config.mcp["remote"].timeout_s, config.mcp["jira"].timeout_s) == (30, 120)
    assert config.mcp["few"].tools.allow == ("search",)
    assert "mcp_jira_get" in config.permissions.allow
    assert config.permissions.mode == "auto-edit"
    allowed = {"bash(git log *)", "edit(src/**)", "fetch(domain:docs.rs)", "bash(ls *)", "view"}
    assert allowed <= {*config.permissions.allow}
    assert {"view(.env)", "view(/etc/shadow)", "bash(git push *)", "mcp_github_delete_repo", "fetch", "bash(rm *)"} <= {
        *config.permissions.deny
    }
    assert [(hook.matcher, hook.command, hook.timeout_s) for hook in config.hooks.pre_tool_use] == [
        ("Bash", '"$HOME"/guard.sh ${X}', 5),
        ("^bash$", "./guard", 10),
    ]
    assert (ours / "skills" / "deploy" / "scripts" / "run.sh").read_text() == "echo run"
    assert (ours / "commands" / "plan.md").read_text() == "Plan $1."
    assert "Fix $ARGUMENTS !`git diff`" in (ours / "commands" / "git" / "fix.md").read_text()
    assert "Say hello to $ARGUMENTS" in (ours / "commands" / "hello.md").read_text()
    assert "Review it." in (ours / "agents" / "reviewer.md").read_text()
    assert "Only look." in (ours / "agents" / "explorer.md").read_text()
    assert not (ours / "skills" / "own").exists(), "it belongs to the agent itself"
    instructions = (ours / "AGENTS.md").read_text()
    assert "Be brief." in instructions
    assert "Use tabs." in instructions
    assert "deny" in (home.project / "kedge.toml").read_text()


def test_no_secret_is_copied_or_shown(home: Home) -> None:
    shown = home.run("--dry-run").stdout + home.run("--all").stdout + home.run("--json").stdout
    written = home.config.read_text() + (home.project / "kedge.toml").read_text()
    for secret in SECRETS:
        assert secret not in shown
        assert secret not in written
    values = tomllib.loads(written.partition("[permissions]")[0])["mcp"]
    assert values["github"]["headers"]["Authorization"] == "Bearer ${GITHUB_AUTHORIZATION}"
    assert values["in-text"]["args"][-3:] == [
        *("--header", "Authorization: Bearer ${IN_TEXT_AUTHORIZATION}", "--pw=${IN_TEXT_PW}"),
    ]
    assert values["in-text"]["env"]["DSN"] == "${DSN}"
    assert values["in-text"]["env"]["AUTH_MODE"] == "true", "a switch is no secret"
    assert values["files"]["env"] == {"LEVEL": "debug", "API_KEY": "${API_KEY}"}
    assert "GITHUB_AUTHORIZATION" in home.run("--all").stdout + shown


def test_nothing_of_yours_is_overwritten(home: Home) -> None:
    write(home.config, '# mine\n[mcp.files]\ncommand = "my-own"\n\n[permissions]\nmode = "ask"\n')
    write(home.home / ".config" / "kedge" / "commands" / "plan.md", "my plan")
    write(home.home / ".config" / "kedge" / "AGENTS.md", "my words\n")
    items = home.items()
    for id in ("claude/mcp/files", "claude/mode/auto-edit", "codex/command/plan"):
        assert items[id]["state"] == "conflict"
        assert items[id]["note"]
    home.read("--all")
    assert home.config.read_text().startswith('# mine\n[mcp.files]\ncommand = "my-own"\n')
    assert home.load().permissions.mode == "ask"
    assert (home.home / ".config" / "kedge" / "commands" / "plan.md").read_text() == "my plan"
    assert (home.home / ".config" / "kedge" / "AGENTS.md").read_text().startswith("my words\n")


def test_ids_and_agents_choose(home: Home) -> None:
    done = home.read("claude/mcp/files", "codex/command")
    assert set(done["added"]) == {"claude/mcp/files", "codex/command/plan"}
    assert {item["agent"] for item in home.read("--from", "crush,gemini")["found"]} == {"crush", "gemini"}
    assert home.run("--from", "emacs").returncode == 2
    assert home.run("claude/mcp/none").returncode == 2
    assert home.run("--all", "claude/mcp").returncode == 2


def test_without_a_terminal_nothing_is_taken_over_unless_it_is_named(home: Home) -> None:
    done = home.run()
    assert done.returncode == 0
    assert "kedge import --all" in done.stdout
    assert not home.config.exists()


def test_files_that_cannot_be_read_are_a_line_each_and_the_others_are_used(home: Home, tmp_path: Path) -> None:
    write(home.home / ".claude.json", "{ not json")
    write(home.home / ".codex" / "config.toml", "[[[")
    write(home.home / ".gemini" / "settings.json", "[" * 100_000)
    (home.home / ".config" / "crush" / "crush.json").write_bytes(b"\xff\xfe{}")
    write(home.project / "opencode.json", "x" * (5 * 1024 * 1024))
    outside = tmp_path / "outside.json"
    write(outside, {"permissions": {"allow": ["Bash(evil:*)"]}})
    (home.project / ".claude" / "settings.local.json").symlink_to(outside)
    os.mkfifo(home.project / "crush.json")
    found = home.read("--dry-run")
    broken = {Path(each["path"]).name for each in found["problems"]}
    assert broken == {
        *(".claude.json", "config.toml", "settings.json", "crush.json", "opencode.json", "settings.local.json"),
    }
    assert all("\n" not in each["problem"] and len(each["problem"]) < 200 for each in found["problems"])
    ids = {item["id"] for item in found["found"]}
    assert "opencode/mcp/search" in ids
    assert not any("evil" in id for id in ids)


def test_a_skill_with_links_is_not_copied(home: Home) -> None:
    (home.home / ".codex" / "skills" / "deploy" / "secret").symlink_to("/etc/passwd")
    done = home.run("codex/skill/deploy")
    assert done.returncode == 1
    assert "link" in done.stderr
    assert not (home.home / ".config" / "kedge" / "skills" / "deploy").exists()


def test_a_broken_configuration_of_ours_is_said_before_anything_is_written(home: Home) -> None:
    write(home.config, "[mcp\n")
    done = home.run("--all")
    assert done.returncode == 2
    assert "config.toml" in done.stderr
    assert home.config.read_text() == "[mcp\n"


def test_nothing_is_found_where_there_is_nothing(tmp_path: Path) -> None:
    done = Home(tmp_path).run()
    assert done.returncode == 0
    assert "Nothing was found" in done.stdout


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("Bash(git log:*)", "bash(git log *)"),
        ("Bash(npm run *)", "bash(npm run *)"),
        ("Bash(ls)", "bash(ls)"),
        ("Bash", "bash"),
        ("Bash(*)", "bash"),
        ("Bash(a && b)", None),
        ("Read(.env)", "view(**/.env)"),
        ("Read(/src/**)", "view(src/**)"),
        ("Read(~/.ssh/**)", "view(~/.ssh/**)"),
        ("MultiEdit(src/**)", "edit(src/**)"),
        ("WebFetch(domain:x.org)", "fetch(domain:x.org)"),
        ("mcp__github", "mcp_github_*"),
        ("mcp__github__get", "mcp_github_get"),
        ("mcp_github_get", "mcp_github_get"),
        ("Nonsense(x)", None),
        ("", None),
    ],
)
def test_rules_of_other_agents_become_rules_that_mean_the_same_or_none(written: str, rule: str | None) -> None:
    assert convert_rule(written) == rule


def test_comments_are_removed_from_json_and_texts_stay() -> None:
    text = '{"a": "// no /* comment */", /* one */ "b": [1, 2, // two\n ], }'
    assert json.loads(remove_comments(text)) == {"a": "// no /* comment */", "b": [1, 2]}


def test_prompts_of_gemini_become_commands() -> None:
    assert convert_gemini_prompt("a {{args}} @{b.md} !{echo {x}} !{open") == "a $ARGUMENTS @b.md !`echo {x}` !{open"


@pytest.mark.skipif(shutil.which("script") is None, reason="the program script makes the terminal")
def test_at_a_terminal_a_person_picks_by_number(home: Home) -> None:
    command = f"{sys.executable} -m kedge import -c {home.project} --from crush"
    env = {"HOME": str(home.home), "PATH": os.environ["PATH"], "TERM": "dumb"}
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"], input="9\n1\n", env=env, capture_output=True, text=True, timeout=60
    )
    assert "Take over which?" in done.stdout
    assert list(home.load().mcp) == ["jira"]

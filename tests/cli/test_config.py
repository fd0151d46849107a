"""`kedge config` as people type it: real processes, real files, no server."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kedge.cli.completion import list_words


class Shell:
    def __init__(self, root: Path) -> None:
        self.workspace = root / "project"
        self.user = root / "config" / "kedge" / "config.toml"
        self.workspace.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KEDGE_", "XDG_"))}
        self.env = {**kept, "XDG_CONFIG_HOME": str(root / "config"), "XDG_CONFIG_DIRS": str(root / "etc")}

    def __call__(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kedge", "config", *args],
            cwd=self.workspace,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def ok(self, *args: str, **env: str) -> str:
        done = self(*args, **env)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def refused(self, *args: str, **env: str) -> str:
        """What is said; nothing is printed, and the code is that of wrong usage."""
        done = self(*args, **env)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert all(line.startswith("kedge: ") for line in done.stderr.splitlines())
        return done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def values(text: str) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in json.loads(text)["values"]}


def test_what_is_set_is_shown_with_where_it_stands(config: Shell) -> None:
    assert config.ok("set", "model", "a/b") == f"Set in {config.user}.\n"
    assert config.ok("set", "-w", "agent.max_steps", "7") == f"Set in {config.workspace}/kedge.toml.\n"
    assert config.ok("show", "model") == f"model  a/b  {config.user}:1\n"
    assert config.ok("show", "agent.max_steps").split() == ["agent.max_steps", "7", f"{config.workspace}/kedge.toml:2"]
    assert "agent.titles" in config.ok("show")
    assert config.ok("show", "model", KEDGE_MODEL="c/d") == "model  c/d  KEDGE_MODEL\n"
    shown = json.loads(config.ok("show", "--json", "model"))
    assert shown["values"] == [{"key": "model", "value": "a/b", "layer": "user", "name": str(config.user), "line": 1}]
    assert config.ok("remove", "model") == f"Removed from {config.user}.\n"
    assert config.ok("show", "model") == "model  -  default\n"
    assert "Removed" not in config.ok("remove", "model")


def test_another_directory_can_be_named(config: Shell, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    config.ok("set", "-w", "-c", str(other), "model", "a/b")
    assert (other / "kedge.toml").read_text() == 'model = "a/b"\n'
    assert values(config.ok("show", "--json", "--cwd", str(other)))["model"] == "a/b"
    assert values(config.ok("show", "--json"))["model"] is None
    assert "'nowhere'" in config.refused("show", "-c", "nowhere")


def test_a_secret_is_shown_by_its_end_and_never_written(config: Shell) -> None:
    config.ok("set", "providers.x.api_key", "${MY_KEY}")
    for args in (("show",), ("show", "--json")):
        shown = config.ok(*args, MY_KEY="planted-secret-wxyz")
        assert "planted" not in shown
        assert "…wxyz" in shown
    said = config.refused("set", "providers.x.api_key", "planted-secret-wxyz")
    assert "api_key_command" in said
    assert "planted" not in said + config.user.read_text()


def test_all_that_is_wrong_is_told_a_line_each(config: Shell) -> None:
    file = config.workspace / "kedge.toml"
    file.write_text("modle = 1\n\nagent.max_steps = 'x'\n")
    said = config.refused("show", KEDGE_AGENT__TITLES="perhaps")
    starts = [f"kedge: {file}:1: modle: ", f"kedge: {file}:3: agent.max_steps: ", "kedge: KEDGE_AGENT__TITLES: "]
    for line, start in zip(said.splitlines(), starts, strict=True):
        assert line.startswith(start)
    assert "found  " + str(file) in config.ok("path")  # which still helps to find it


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["shwo"], "show, get, set, remove, edit, schema, path, trust, untrust"),
        (["get"], "kedge config get KEY"),
        (["get", "nothing"], "'nothing'"),
        (["set", "model"], "kedge config set KEY VALUE"),
        (["set", "modle", "x"], "model?"),
        (["set", "agent.max_steps", "many"], "agent.max_steps"),
        (["remove"], "kedge config remove KEY"),
        (["show", "nothing"], "'nothing'"),
        (["show", "a..b"], "'a..b'"),
        (["show", "--all"], "'--all'"),
        (["trust", "nowhere"], "'nowhere'"),
        (["untrust"], "kedge config show trusted"),
        (["schema", "x"], "kedge config schema"),
    ],
)
def test_wrong_usage_is_one_line(config: Shell, args: list[str], why: str) -> None:
    said = config.refused(*args)
    assert why in said
    assert said.count("\n") == 1
    assert not config.user.exists()


def test_without_a_subcommand_the_configuration_is_shown(config: Shell) -> None:
    assert config.ok() == config.ok("show")


def test_get_prints_one_value_alone(config: Shell) -> None:
    config.ok("set", "model", "a/b")
    config.ok("set", "permissions.allow", '["bash(git *)"]')
    assert config.ok("get", "model") == "a/b\n"
    assert config.ok("get", "agent.titles") == "true\n"
    assert json.loads(config.ok("get", "permissions.allow")) == ["bash(git *)"]
    assert config.ok("get", "model", "--json") == '"a/b"\n'
    assert "allow = " in config.ok("get", "permissions")
    unset = config("get", "small_model")
    assert (unset.returncode, unset.stdout, unset.stderr) == (1, "", "")


def test_get_shortens_secrets_as_show_does(config: Shell) -> None:
    key = "a-very-long-and-secret-key-1234"
    config.user.parent.mkdir(parents=True)
    config.user.write_text(f'[providers.mine]\nbase_url = "http://127.0.0.1:1/v1"\napi_key = "{key}"\n')
    assert config.ok("get", "providers.mine.api_key").strip().endswith("1234")
    assert key not in config.ok("get", "providers.mine.api_key")


def test_edit_opens_the_file_in_the_editor_and_checks_it(config: Shell, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "%s" "$TEXT" > "$2"\nexit "$CODE"\n')
    editor.chmod(0o755)
    command = {"EDITOR": f"{editor} --wait", "VISUAL": "", "CODE": "0"}
    assert config.ok("edit", **command, TEXT='model = "a/b"') == ""
    assert config.ok("get", "model") == "a/b\n"
    assert config.ok("edit", "-w", **command, TEXT='model = "c/d"') == ""
    assert (config.workspace / "kedge.toml").read_text() == 'model = "c/d"'
    assert "modle" in config.refused("edit", **command, TEXT='modle = "a/b"')
    failed = config("edit", **{**command, "CODE": "7"}, TEXT="")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "EDITOR" in config.refused("edit", EDITOR="/nowhere/editor", VISUAL="")


def test_a_repository_is_trusted_by_its_user_alone(config: Shell) -> None:
    (config.workspace / "kedge.toml").write_text('permissions.allow = ["bash"]\ntrusted = ["/"]\n')
    shown = config.ok("show", "permissions.allow")
    assert shown.splitlines()[0] == "permissions.allow  []  default"
    assert (
        f"kedge.toml:1: permissions.allow needs a trusted directory; see: kedge config trust {config.workspace}"
        in shown
    )
    assert str(config.workspace) in config.ok("trust")
    assert str(config.workspace) in config.ok("trust", ".")
    assert values(config.ok("show", "--json"))["permissions.allow"] == ["bash"]
    assert str(config.workspace) in config.ok("untrust")
    assert values(config.ok("show", "--json"))["permissions.allow"] == []


def test_who_sets_what_does_not_count_learns_it_at_once(config: Shell) -> None:
    done = config("set", "-w", "permissions.mode", "yolo")
    assert done.returncode == 0
    assert "permissions.mode" in done.stderr


def test_what_others_wrote_does_not_drive_the_terminal(config: Shell) -> None:
    (config.workspace / "kedge.toml").write_text('model = "a/\\u001b]0;title\\u0007"\n"\\u001b[31m" = 1\n')
    assert "\x1b" not in config.refused("show")
    (config.workspace / "kedge.toml").write_text('model = "a/\\u001b]0;title\\u0007"\n')
    assert "\x1b" not in config.ok("show")


def test_the_users_file_is_not_shown_to_others_when_it_is_made(config: Shell) -> None:
    config.ok("set", "model", "a/b")
    assert stat.S_IMODE(config.user.stat().st_mode) & 0o077 == 0


def test_help_explains_every_word_that_the_shell_completes(config: Shell) -> None:
    text = config.ok("--help")
    assert all(word in text for word in list_words("config"))
    assert text.startswith("usage: kedge config show")


def test_paths_are_listed_weakest_first(config: Shell, tmp_path: Path) -> None:
    config.ok("set", "model", "a/b")
    assert [line.split() for line in config.ok("path").splitlines()] == [
        ["-", "/etc/kedge/config.toml"],
        ["-", f"{tmp_path}/etc/kedge/config.toml"],
        ["found", str(config.user)],
        ["-", f"{config.workspace}/.mcp.json"],
        ["-", f"{config.workspace}/kedge.toml"],
    ]
    assert json.loads(config.ok("path", "--json"))[2] == {"path": str(config.user), "exists": True}


def test_a_permission_rule_that_cannot_be_read_is_neither_set_nor_shown(config: Shell) -> None:
    assert 'permissions.allow: the rule "bash(x"' in config.refused("set", "permissions.allow", '["bash(x"]')
    assert not config.user.exists()
    config.user.parent.mkdir(parents=True)
    config.user.write_text('model = "a/b"\n[permissions]\ndeny = ["bash(x"]\n')
    assert f"{config.user}:3: permissions.deny: the rule" in config("show").stderr

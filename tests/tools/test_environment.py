"""The variables of commands: the agent's have none that changes what a line means, unapproved ones no credentials."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kedge.tools.process.environment import (
    command_environment,
    safe_path,
    unapproved_environment,
    user_environment,
)
from kedge.tools.process.spawn import find_shell

PLAIN = {"HOME": "/somewhere", "USER": "k", "LANG": "de_DE.UTF-8", "TZ": "Europe/Berlin", "EDITOR": "vi", "EXTRA": "x"}
CHANGES_THE_SHELL = {
    "CDPATH": "/",
    "GLOBIGNORE": "x",
    "BASHOPTS": "dotglob",
    "SHELLOPTS": "noglob",
    "EXECIGNORE": "*",
    "IFS": "a",
    "BASH_FUNC_ls%%": "() { touch x; }",
    "POSIXLY_CORRECT": "1",
    "TEXTDOMAINDIR": "/x",
    "OLDPWD": "/etc",
}
CHANGES_PROGRAMS = {
    "BASH_ENV": "rc",
    "ENV": "rc",
    "LD_PRELOAD": "x.so",
    "PYTHONPATH": "/x",
    "NODE_OPTIONS": "--require x",
    "PERL5LIB": "/x",
    "RUBYOPT": "-rx",
    "GIT_DIR": "/x",
    "GIT_EXTERNAL_DIFF": "x",
    "LESSOPEN": "|x",
    "TAR_OPTIONS": "--checkpoint-action=exec=x",
    "FZF_DEFAULT_OPTS": "x",
    "LANGUAGE": "../../x",
    "LC_MESSAGES": "../x",
    "SSH_AUTH_SOCK": "/x",
}
CREDENTIALS = {
    "OPENAI_API_KEY": "x",
    "GITHUB_TOKEN": "x",
    "client_secret": "x",
    "DB_PASSWORD": "x",
    "PGPASSWORD": "x",
    "AWS_PROFILE": "x",
    "GOOGLE_APPLICATION_CREDENTIALS": "x",
    "SENTRY_DSN": "x",
    "DATABASE_URL": "x",
    "NETRC": "x",
    "SESSION_COOKIE": "x",
    "HTTPS_PROXY": "http://me:word@proxy:3128",
    "ONE": "sk-proj-abc",
    "TWO": "ghp_abcdefgh",
    "THREE": "-----BEGIN PRIVATE KEY-----",
    "FOUR": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x",
}


def test_the_users_own_command_keeps_its_variables() -> None:
    given = {**PLAIN, **CHANGES_THE_SHELL, **CHANGES_PROGRAMS, **CREDENTIALS}
    kept = user_environment(given)
    assert {name: kept.get(name) for name in given if name != "EDITOR"} == {
        name: value for name, value in given.items() if name != "EDITOR"
    }


def test_an_agents_command_has_none_that_changes_how_its_line_is_read(tmp_path: Path) -> None:
    kept = command_environment({**PLAIN, **CHANGES_THE_SHELL, **CHANGES_PROGRAMS, **CREDENTIALS}, tmp_path)
    assert CHANGES_THE_SHELL.keys() & kept.keys() == set()
    assert CHANGES_PROGRAMS.keys() | CREDENTIALS.keys() <= kept.keys()
    assert kept["PWD"] == str(tmp_path)


@pytest.mark.parametrize("name", [*CHANGES_THE_SHELL, *CHANGES_PROGRAMS, *CREDENTIALS])
def test_an_unapproved_command_is_not_given(name: str, tmp_path: Path) -> None:
    given = {**PLAIN, **CHANGES_THE_SHELL, **CHANGES_PROGRAMS, **CREDENTIALS}
    assert name not in unapproved_environment(given, tmp_path, tmp_path / "s")


def test_an_unapproved_command_keeps_the_rest(tmp_path: Path) -> None:
    given = {**PLAIN, "GIT_AUTHOR_NAME": "Ann", "TZ": "Europe/Berlin", "CARGO_HOME": "/somewhere/.cargo"}
    kept = unapproved_environment(given, tmp_path, tmp_path / "s")
    assert {**given, "EDITOR": "true"}.items() <= kept.items()
    assert kept["GIT_OPTIONAL_LOCKS"] == "0"
    assert "core.fsmonitor" in kept.values()


@pytest.mark.parametrize("zone", ["/etc/shadow", ":/etc/shadow", "../../../etc/shadow"])
def test_a_time_zone_is_no_file(tmp_path: Path, zone: str) -> None:
    assert "TZ" not in unapproved_environment({"TZ": zone}, tmp_path, tmp_path)


def test_twice_is_the_same_as_once(tmp_path: Path) -> None:
    once = unapproved_environment({**PLAIN, "PATH": "/usr/bin:."}, tmp_path, tmp_path / "s")
    assert unapproved_environment(once, tmp_path, tmp_path / "s") == once


def test_programs_are_looked_for_outside_of_the_workspace(tmp_path: Path) -> None:
    workspace, elsewhere = tmp_path / "workspace", tmp_path / "elsewhere"
    (workspace / "bin").mkdir(parents=True)
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(workspace / "bin")
    (workspace / "out").symlink_to(elsewhere)
    entries = [".", "", "bin", str(workspace), f"{workspace}/bin", f"{tmp_path}/link", f"{workspace}/out"]
    entries += [f"{elsewhere}/../workspace/bin", str(elsewhere), "/usr/bin"]
    assert safe_path(":".join(entries), (workspace,)) == f"{elsewhere}:/usr/bin"


def test_bash_is_never_the_workspaces_own(tmp_path: Path) -> None:
    workspace, scratch, other = (tmp_path / name for name in ("workspace", "scratch", "other"))
    for directory in (workspace, scratch, other):
        directory.mkdir()
        (directory / "bash").write_text("#!/bin/sh\n")
        (directory / "bash").chmod(0o755)
    env = {"PATH": f"{workspace}:{scratch}:{os.defpath}"}
    found = find_shell(env, workspace, scratch)
    assert Path(found).name == "bash"
    assert not Path(found).is_relative_to(tmp_path)
    assert find_shell({"PATH": ""}, workspace, scratch) == "/bin/bash"
    assert find_shell({"PATH": str(other)}, workspace) == f"{other}/bash"
    (other / "bash").unlink()
    (other / "bash").symlink_to(workspace / "bash")
    assert find_shell({"PATH": str(other)}, workspace) == "/bin/bash"

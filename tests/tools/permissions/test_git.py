"""Git runs without a sandbox only in a repository whose files cannot make it run a program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tools.permissions.bench import Bench

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
def test_git_is_asked_about_where_settings_could_run_a_program(tmp_path: Path, settings: str) -> None:
    bench = Bench(tmp_path)
    config = bench.workspace / ".git" / "config"
    judge = bench.judge(allow=["bash(make *)"])
    config.write_text('[core]\n\tbare = false\n[remote "origin"]\n\turl = git@example.com:a/b.git\n')
    assert bench.outcome(judge, "git status", has_sandbox=False) == "allow"
    assert bench.outcome(judge, "make x; git status") == "allow"
    config.write_text(settings)
    assert bench.outcome(judge, "git status", has_sandbox=False) == "ask"
    assert bench.outcome(judge, "make x; git status") == "ask"
    assert bench.outcome(judge, "git status") == "allow"  # in the sandbox


@pytest.mark.parametrize("name", ["packed-refs", "shallow", "index", "objects/info/alternates", "refs/heads/x"])
def test_git_is_asked_about_where_its_files_are_links(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path)
    (bench.workspace / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
    (bench.workspace / ".git" / name).symlink_to(bench.outside)
    assert bench.outcome(bench.judge(), "git log", has_sandbox=False) == "ask"


def test_a_decoy_does_not_hide_the_repository_around_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.workspace / "decoy" / ".git" / "objects").mkdir(parents=True)
    (bench.workspace / "decoy" / ".git" / "HEAD").write_text("garbage")
    (bench.workspace / ".git" / "config").write_text("[core]\n\tfsmonitor = ./evil\n")
    assert bench.outcome(bench.judge(), "git -C decoy status", has_sandbox=False) == "ask"


def test_git_is_asked_about_with_hooks_submodules_and_special_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    repository = bench.workspace / ".git"
    judge = bench.judge()
    assert bench.outcome(judge, "git status", has_sandbox=False) == "allow"
    (repository / "index").write_bytes(b"DIRC" + b"\x00\x00\xe0\x00")
    assert bench.outcome(judge, "git status", has_sandbox=False) == "ask"
    (repository / "index").unlink()
    (repository / "hooks").mkdir()
    (repository / "hooks" / "post-index-change").write_text("#!/bin/sh\n")
    assert bench.outcome(judge, "git status", has_sandbox=False) == "ask"
    (repository / "hooks" / "post-index-change").unlink()
    os.mkfifo(repository / "config")
    assert bench.outcome(judge, "git status", has_sandbox=False) == "ask"

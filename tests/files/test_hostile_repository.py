"""Kedge's own git starts no program that a repository, or a directory of the workspace in PATH, chooses."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kedge.agent.surroundings import describe_repository
from kedge.files import git_objects, listing
from kedge.files.environment import LIST_PROGRAMS, disable_programs, find_program, harden_git_env, with_safe_path
from kedge.tools.search.file_index import FileIndex

HOOKS = ("post-index-change", "pre-commit", "post-checkout", "reference-transaction", "fsmonitor-watchman")


class Hostile:
    """A repository with a submodule whose configurations name a trap wherever git would start a program."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "repository"
        self.sprung = directory / "sprung"
        self.trap = directory / "trap"
        self.trap.write_text(f'#!/bin/sh\necho "$0 $@" >> {self.sprung}\ncat\n')
        self.trap.chmod(0o755)
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "HOME": str(directory),
            "GIT_CONFIG_COUNT": "3",
            "GIT_CONFIG_KEY_0": "user.name",
            "GIT_CONFIG_VALUE_0": "t",
            "GIT_CONFIG_KEY_1": "user.email",
            "GIT_CONFIG_VALUE_1": "t@t",
            "GIT_CONFIG_KEY_2": "protocol.file.allow",
            "GIT_CONFIG_VALUE_2": "always",
        }
        inner = directory / "inner"
        for each in (inner, self.root):
            each.mkdir()
            self.git(each, "init", "-q", "-b", "main")
            (each / "a.txt").write_text("1\n")
            (each / "b.md").write_text("1\n")
        (self.root / ".gitattributes").write_text("*.txt diff=outer filter=outer merge=outer\n*.md diff=other\n")
        self.commit(inner)
        self.git(self.root, "submodule", "add", "-q", str(inner), "sub")
        self.commit(self.root)
        (self.root / "sub/.gitattributes").write_text("*.txt diff=inner filter=inner\n")
        hooks = directory / "hooks"
        hooks.mkdir()
        for name in HOOKS:
            (hooks / name).symlink_to(self.trap)
        self.configure(self.root, "outer", hooks)
        self.configure(self.root / "sub", "inner", hooks)
        for each in (self.root, self.root / "sub"):
            (each / "a.txt").write_text("2\n")
        (self.root / "b.md").write_text("2\n")

    def configure(self, repository: Path, driver: str, hooks: Path) -> None:
        programs = (
            *("core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "core.askPass", "credential.helper"),
            *("diff.external", "diff.other.command", f"diff.{driver}.textconv", "interactive.diffFilter"),
            *(f"filter.{driver}.{kind}" for kind in ("clean", "smudge", "process")),
            *("gpg.program", "core.alternateRefsCommand", f"merge.{driver}.driver", "pager.status", "pager.log"),
        )
        settings = {
            **dict.fromkeys(programs, str(self.trap)),
            "core.hooksPath": str(hooks),
            f"filter.{driver}.required": "true",
            "log.showSignature": "true",
            "diff.ignoreSubmodules": "none",
            "submodule.sub.ignore": "none",
            "status.submoduleSummary": "true",
            "submodule.recurse": "true",
            "remote.origin.url": f"ext::{self.trap}",
            "remote.origin.promisor": "true",
            "extensions.partialClone": "origin",
        }
        for name, value in settings.items():
            self.git(repository, "config", name, value)

    def commit(self, repository: Path) -> None:
        self.git(repository, "add", ".")
        self.git(repository, "commit", "-q", "-m", "first")

    def git(self, directory: Path, *words: str, env: Mapping[str, str] | None = None) -> str:
        command = ["git", *words]
        done = subprocess.run(
            command, cwd=directory, env=env or self.env, capture_output=True, text=True, check=env is None
        )
        return done.stdout


@pytest.fixture
def hostile(tmp_path: Path) -> Hostile:
    hostile = Hostile(tmp_path)
    hostile.sprung.unlink(missing_ok=True)
    return hostile


def test_the_traps_are_real(hostile: Hostile) -> None:
    for words in (["status"], ["diff"], ["log", "-p"]):
        hostile.git(hostile.root, *words, env=hostile.env)
        assert hostile.sprung.exists(), words
        hostile.sprung.unlink()


async def test_nothing_that_a_repository_configures_is_started(hostile: Hostile) -> None:
    state = await describe_repository(hostile.root, hostile.env)
    assert state is not None
    assert " M a.txt" in state
    root = os.fsencode(hostile.root)
    listed = await asyncio.to_thread(listing.list_files, root, hostile.env)
    assert b"a.txt" in listed.paths
    await asyncio.to_thread(git_objects.read_index, root, hostile.env, listed.paths)
    await asyncio.to_thread(git_objects.find_ignored, root, hostile.env, [b"a.txt"])
    await asyncio.to_thread(git_objects.read_objects, root, hostile.env, ["1" * 40])
    assert (await FileIndex().find(hostile.root, "a.txt", 5)).names
    assert not hostile.sprung.exists(), hostile.sprung.read_text()


READING = (
    *("status", "diff --stat", "diff HEAD", "log -p -2", "log --show-signature", "show HEAD", "blame a.txt"),
    *(
        "grep 1",
        "ls-files -m",
        "stash list",
        "log --alternate-refs",
        "cat-file --textconv HEAD:a.txt",
        "describe --dirty",
    ),
    *(
        "ls-remote origin",
        "fetch origin",
        "cat-file -p 1111111111111111111111111111111111111111",
        "-p log",
        "branch -v",
    ),
)


def test_a_hardened_git_reads_without_starting_anything(hostile: Hostile) -> None:
    env = harden_git_env(hostile.env)
    env = disable_programs(env, hostile.git(hostile.root, *LIST_PROGRAMS, env=env))
    for words in READING:
        hostile.git(hostile.root, *words.split(), env=env)
        assert not hostile.sprung.exists(), f"git {words}: {hostile.sprung.read_text()}"
    assert " M a.txt" in hostile.git(hostile.root, "status", "--porcelain", env=env)
    assert hostile.git(hostile.root, "config", "user.name", env=env) == "t\n"  # the caller's own settings are kept


def test_a_bare_repository_in_the_workspace_is_not_taken_for_one(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    bare = tmp_path / "workspace"
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    subprocess.run(["git", "-C", str(bare), "config", "core.bare", "false"], check=True)
    subprocess.run(["git", "-C", str(bare), "config", "core.worktree", str(bare)], check=True)
    (bare / "trap").write_text(f"#!/bin/sh\ntouch {sprung}\n")
    (bare / "trap").chmod(0o755)
    subprocess.run(["git", "-C", str(bare), "config", "core.fsmonitor", str(bare / "trap")], check=True)
    listed = listing.list_files(os.fsencode(bare), os.environ)
    assert b"HEAD" in listed.paths  # listed by ripgrep, like any other directory
    assert not sprung.exists()


@pytest.mark.parametrize("place", [".venv/bin", "../workspace-link/.venv/bin"])
def test_a_git_of_the_workspace_is_not_started_although_its_directory_is_first_in_path(
    tmp_path: Path, place: str
) -> None:
    workspace = tmp_path / "workspace"
    programs = workspace / ".venv/bin"
    programs.mkdir(parents=True)
    (tmp_path / "workspace-link").symlink_to(workspace)
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    sprung = tmp_path / "sprung"
    for name in ("git", "rg"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {sprung}\n")
        (programs / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{workspace / place}:{os.environ['PATH']}"}
    assert asyncio.run(describe_repository(workspace, env)) is not None
    listed = listing.list_files(os.fsencode(workspace), env)
    assert b".venv/bin/git" in listed.paths
    assert not sprung.exists()
    # Nor is one that a link outside leads to.
    elsewhere = tmp_path / "bin"
    elsewhere.mkdir()
    (elsewhere / "git").symlink_to(programs / "git")
    found = find_program("git", {"PATH": f"{elsewhere}:{env['PATH']}"}, workspace)
    assert found is not None
    assert not Path(found).resolve().is_relative_to(workspace)
    assert str(programs) not in with_safe_path(env, workspace)["PATH"]

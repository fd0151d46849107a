"""The branch of git in the status line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from textual import events

from kedge.tui.panels import read_branch
from tests.e2e.home import Home
from tests.tui.ui_driver import kedge


def git(directory: Path, *words: str) -> str:
    names = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    done = subprocess.run(["git", *names, *words], cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    found = tmp_path / "repository"
    found.mkdir()
    git(found, "init", "-q", "-b", "topic/one")
    git(found, "commit", "-q", "--allow-empty", "-m", "first")
    return found


def test_a_directory_inside_a_repository_is_on_its_branch(repository: Path) -> None:
    inner = repository / "a" / "b"
    inner.mkdir(parents=True)
    assert read_branch(str(inner)) == "topic/one"


def test_a_worktree_has_a_branch_of_its_own(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "beside"))
    assert read_branch(str(tmp_path / "beside")) == "other"
    assert read_branch(str(repository)) == "topic/one"


def test_without_a_branch_it_is_the_start_of_the_commit(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert read_branch(str(repository)) == git(repository, "rev-parse", "HEAD")[:7]


@pytest.mark.parametrize("content", [None, b"", b"gitdir: /nowhere", b"\xff\0"])
def test_without_a_repository_there_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / ".git").write_bytes(content)
    assert read_branch(str(tmp_path)) == read_branch(str(tmp_path.parent))


async def test_the_status_line_names_the_branch_and_follows_commands_and_focus(served: Home, repository: Path) -> None:
    async with kedge(repository, (100, 30)) as ui:
        await ui.shows("repository (topic/one)")
        await ui.submit("!git checkout -q -b second")
        await ui.shows("repository (second)")
        git(repository, "checkout", "-q", "topic/one")
        ui.app.post_message(events.AppFocus())
        await ui.shows("repository (topic/one)")

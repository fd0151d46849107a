"""Context files and the state of the repository: found, bounded, and never the reason why a run fails."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import date
from pathlib import Path

import pytest

import kedge
from kedge.agent.context_files import (
    LEADS_OUT,
    MAX_ALL_BYTES,
    MAX_FILE_BYTES,
    read_context_files,
    user_config_directory,
)
from kedge.agent.surroundings import MAX_CHANGES, Surroundings, describe_repository, read_surroundings
from kedge.agent.system_prompt import Role, build_system_prompt
from kedge.config.schema import AgentConfig, Config
from tests.agent.driver import Driver
from tests.support.harness import Kedge
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer

NAMES = AgentConfig().context_files
TODAY = date(2031, 2, 3)
ENV = {
    **{name: os.environ[name] for name in ("PATH",)},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


def git(directory: Path, *args: str) -> None:
    subprocess.run(["git", "-C", str(directory), *args], check=True, env=ENV, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    git(directory, "init", "-q", "-b", "main")
    return directory


def found(directory: Path, global_dir: Path | None = None) -> list[str]:
    return [file.text for file in read_context_files(directory, NAMES, global_dir)]


class TestFiles:
    def test_from_the_general_to_the_particular(self, repository: Path, tmp_path: Path) -> None:
        inner = repository / "a" / "b"
        inner.mkdir(parents=True)
        (repository / ".github").mkdir()
        for path, words in {
            tmp_path / "AGENTS.md": "above the repository",
            repository / "AGENTS.md": "root",
            repository / "CLAUDE.md": "root, another name",
            repository / ".github/copilot-instructions.md": "root, a third",
            repository / "a" / "AGENTS.md": "between",
            inner / "AGENTS.md": "here",
            tmp_path / "global" / "AGENTS.md": "everywhere",
        }.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(words)
        assert found(inner, tmp_path / "global") == [
            "everywhere",
            "root",
            "root, another name",
            "root, a third",
            "between",
            "here",
        ]

    def test_without_a_repository_only_the_workspace_counts(self, tmp_path: Path) -> None:
        (tmp_path / "AGENTS.md").write_text("above")
        inner = tmp_path / "a"
        inner.mkdir()
        (inner / "AGENTS.md").write_text("here")
        assert found(inner) == ["here"]

    def test_one_file_under_two_names_is_told_once(self, tmp_path: Path) -> None:
        (tmp_path / "AGENTS.md").write_text("once")
        (tmp_path / "CLAUDE.md").symlink_to("AGENTS.md")
        os.link(tmp_path / "AGENTS.md", tmp_path / "GEMINI.md")
        assert found(tmp_path) == ["once"]

    def test_odd_encodings_are_read_as_well_as_can_be(self, tmp_path: Path) -> None:
        (tmp_path / "AGENTS.md").write_bytes("\ufeffbom\r\nline".encode())
        (tmp_path / "CLAUDE.md").write_bytes("wörter".encode("utf-16"))
        (tmp_path / "GEMINI.md").write_bytes(b"caf\xe9 \x00!")
        assert found(tmp_path) == ["bom\nline", "wörter", "caf\ufffd !"]

    def test_what_cannot_be_read_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "AGENTS.md").mkdir()
        (tmp_path / "CLAUDE.md").symlink_to("nowhere")
        os.mkfifo(tmp_path / "GEMINI.md")
        (tmp_path / ".cursorrules").write_text("  \n")
        assert found(tmp_path) == []

    def test_a_link_that_leads_out_of_the_repository_is_not_followed(self, repository: Path, tmp_path: Path) -> None:
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets" / "id").write_text("a key")
        (repository / "inner").mkdir()
        (repository / "inner" / "AGENTS.md").symlink_to("../CLAUDE.md")
        (repository / "CLAUDE.md").symlink_to(tmp_path / "secrets" / "id")
        (repository / ".github").symlink_to(tmp_path / "secrets")
        (tmp_path / "secrets" / "copilot-instructions.md").write_text("another")
        assert found(repository / "inner") == [LEADS_OUT] * 3
        (tmp_path / "global").mkdir()
        (tmp_path / "global" / "AGENTS.md").symlink_to(tmp_path / "secrets" / "id")
        assert found(repository, tmp_path / "global")[0] == "a key"  # the user's own link

    async def test_in_a_trusted_directory_it_is_followed(self, repository: Path, tmp_path: Path) -> None:
        (tmp_path / "shared.md").write_text("for all projects")
        (repository / "AGENTS.md").symlink_to(tmp_path / "shared.md")
        for trusted, words in (((), LEADS_OUT), ((str(repository),), "for all projects")):
            config = Config(trusted=trusted)
            around = await read_surroundings(repository, ENV, config, TODAY, scratch=tmp_path / "scratch")
            assert [file.text for file in around.files] == [words]

    def test_a_long_file_is_cut_and_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "AGENTS.md").write_text("é" * MAX_FILE_BYTES)
        (file,) = read_context_files(tmp_path, NAMES, None)
        assert file.is_cut
        assert len(file.text.encode()) <= MAX_FILE_BYTES + 2
        place = Surroundings(directory=str(tmp_path), today=TODAY, shell="sh", files=[file])
        assert "read the file when you need the rest" in build_system_prompt(Role(), place)

    def test_all_together_are_bounded(self, repository: Path) -> None:
        directory = repository
        for _ in range(8):
            (directory / "AGENTS.md").write_text("x" * MAX_FILE_BYTES)
            directory /= "a"
            directory.mkdir()
        assert sum(len(words) for words in found(directory)) <= MAX_ALL_BYTES

    def test_the_global_one_is_where_the_users_configuration_is(self) -> None:
        assert user_config_directory({"HOME": "/h"}) == Path("/h/.config/kedge")
        assert user_config_directory({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}) == Path("/x/kedge")
        assert user_config_directory({"HOME": "/h", "XDG_CONFIG_HOME": "relative"}) == Path("/h/.config/kedge")
        assert user_config_directory({}) is None


class TestRepository:
    async def test_branch_changes_and_commits_are_told(self, repository: Path) -> None:
        (repository / "a.py").write_text("1")
        git(repository, "add", "a.py")
        git(repository, "commit", "-q", "-m", "begin with a")
        (repository / "a.py").write_text("2")
        (repository / "neu ö.py").write_text("3")
        inner = repository / "inner"
        inner.mkdir()
        for directory in (repository, inner):
            state = await describe_repository(directory, ENV)
            assert state is not None
            assert "Branch: main" in state
            assert " M a.py" in state or " M ../a.py" in state
            assert "neu ö.py" in state
            assert "begin with a" in state

    async def test_one_without_a_commit_and_a_clean_one(self, repository: Path) -> None:
        state = await describe_repository(repository, ENV)
        assert state is not None
        assert "No commits yet on main" in state
        git(repository, "commit", "-q", "--allow-empty", "-m", "x" * 1000)
        state = await describe_repository(repository, ENV)
        assert state is not None
        assert "No uncommitted changes." in state
        assert max(map(len, state.splitlines())) < 200

    async def test_no_repository_is_nothing_to_tell(self, tmp_path: Path) -> None:
        assert await describe_repository(tmp_path, ENV) is None
        (tmp_path / ".git").mkdir()  # one that git does not take for a repository
        assert await describe_repository(tmp_path, ENV) is None

    async def test_many_changes_are_counted_not_listed(self, repository: Path) -> None:
        for number in range(MAX_CHANGES + 30):
            (repository / f"{number}").touch()
        state = await describe_repository(repository, ENV)
        assert state is not None
        assert "… and 30 more" in state

    async def test_a_git_that_the_repository_brings_is_not_started(self, repository: Path) -> None:
        (repository / "tools").mkdir()
        (repository / "tools/git").write_text(f"#!/bin/sh\ntouch {repository.parent}/sprung\n")
        (repository / "tools/git").chmod(0o755)
        odd = {"X": "a\0b", "A=B": "", "Y": "\ud800"}  # what no process can be given is left out
        state = await describe_repository(repository, {**ENV, **odd, "PATH": f"tools::{ENV['PATH']}"})
        assert state is not None
        assert "?? tools/" in state
        assert not (repository.parent / "sprung").exists()

    async def test_a_repository_cannot_start_programs(self, repository: Path) -> None:
        trap = repository.parent / "trap"
        trap.write_text(f"#!/bin/sh\ntouch {repository.parent}/sprung\n")
        trap.chmod(0o755)
        git(repository, "config", "core.fsmonitor", str(trap))
        await describe_repository(repository, ENV)
        assert not (repository.parent / "sprung").exists()

    @pytest.mark.parametrize("kind", ["clean", "process"])
    async def test_a_repository_cannot_have_its_files_filtered(self, repository: Path, kind: str) -> None:
        (repository / "a.py").write_text("1")
        (repository / ".gitattributes").write_text("*.py filter=a.b=c\n*.md filter=users\n")
        (repository / "b.md").write_text("1")
        git(repository, "add", ".")
        trap = repository.parent / "trap"
        trap.write_text(f"#!/bin/sh\ntouch {repository.parent}/sprung\n")
        trap.chmod(0o755)
        git(repository, "config", f"filter.a.b=c.{kind}", str(trap))
        git(repository, "config", "filter.a.b=c.required", "true")
        (repository / "a.py").write_text("2")
        (repository / "b.md").write_text("2")
        users = f"touch {repository.parent}/asked; cat"
        env = {
            **ENV,
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "filter.users.clean",
            "GIT_CONFIG_VALUE_0": users,
        }
        state = await describe_repository(repository, env)
        assert state is not None
        assert "AM a.py" in state
        assert not (repository.parent / "sprung").exists()
        assert (repository.parent / "asked").exists()  # the user's own do their work

    async def test_without_git_the_run_goes_on(self, repository: Path) -> None:
        state = await describe_repository(repository, {"PATH": "/nowhere"})
        assert state == "A git repository; git itself cannot be run here."


class TestPrompt:
    def test_a_tiny_model_gets_few_words(self, tmp_path: Path) -> None:
        place = Surroundings(directory=str(tmp_path), today=TODAY, shell="sh", repository="Branch: main")
        assert len(build_system_prompt(Role(is_tiny=True, has_tools=False), place)) < 500

    async def test_the_workspaces_file_reaches_the_model(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer
    ) -> None:
        (kedge.data.parent / "workspace" / "AGENTS.md").write_bytes(b"Always say \xff please.")
        model_server.plan = Plan(text="please")
        assert (await driver.ask("go")).error is None
        assert "please." in model_server.calls[0].body["messages"][0]["content"]


def test_no_text_for_the_model_contains_a_name_of_our_code() -> None:
    """A rename across the project must not reach the prose that the model reads."""
    root = Path(kedge.__file__).parent
    texts = [*root.glob("agent/prompts/*.md"), *root.glob("tools/builtin/*.md")]
    assert len(texts) > 20
    for text in texts:
        prose = re.sub(r"`[^`]*`", "", text.read_text())
        names = re.findall(r"\b(?:[a-z]+_[a-z_]+|[A-Z][a-z]+[A-Z]\w*)\b", prose)
        assert set(names) <= {"MiB", "WebP"}, text.name

"""The user's own commands: found, named and described; what is no command harms nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kedge.agent.context_files import MAX_BYTES, MAX_COMMANDS, list_user_commands


@pytest.fixture
def config(tmp_path: Path) -> Path:
    place = tmp_path / "config" / "kedge" / "commands"
    place.mkdir(parents=True)
    return place


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project" / ".kedge" / "commands"
    place.mkdir(parents=True)
    return place


def found(tmp_path: Path) -> dict[str, tuple[str, str, str]]:
    commands = list_user_commands(tmp_path / "project", {"XDG_CONFIG_HOME": str(tmp_path / "config")})
    return {each.name: (each.source, each.description, each.text) for each in commands}


def test_a_file_is_a_command_and_its_first_line_says_what_it_does(tmp_path: Path, config: Path) -> None:
    (config / "review.md").write_text("# Review a file\n\nReview $ARGUMENTS.\n")
    assert found(tmp_path) == {"review": ("user", "Review a file", "# Review a file\n\nReview $ARGUMENTS.")}


def test_a_description_in_front_is_not_part_of_the_prompt(tmp_path: Path, config: Path) -> None:
    (config / "fix.md").write_text('---\ndescription: "Mend it"\nmodel: x\n---\nMend $ARGUMENTS.')
    assert found(tmp_path) == {"fix": ("user", "Mend it", "Mend $ARGUMENTS.")}


def test_the_users_own_command_wins_over_one_of_the_repository(tmp_path: Path, config: Path, project: Path) -> None:
    (config / "same.md").write_text("mine")
    (project / "same.md").write_text("ours")
    assert found(tmp_path)["same"] == ("user", "mine", "mine")


def test_a_repository_with_too_many_commands_crowds_out_none_of_the_users_own(
    tmp_path: Path, config: Path, project: Path
) -> None:
    (config / "review.md").write_text("mine")
    for number in range(MAX_COMMANDS):
        (project / f"a{number}.md").write_text("theirs")
    assert len(found(tmp_path)) == MAX_COMMANDS
    assert found(tmp_path)["review"][0] == "user"


def test_what_is_no_command_is_left_out(tmp_path: Path, project: Path) -> None:
    (tmp_path / "secret.md").write_text("a secret")
    (project / "link.md").symlink_to(tmp_path / "secret.md")
    (project / "long.md").write_text("x" * (MAX_BYTES + 1))
    (project / "bad name.md").write_text("x")
    (project / "other.txt").write_text("x")
    (project / "directory.md").mkdir()
    os.mkfifo(project / "pipe.md")
    (project / "bytes.md").write_bytes(b"\xff\xfe odd")
    assert list(found(tmp_path)) == ["bytes"]


def test_nothing_configured_is_no_command(tmp_path: Path) -> None:
    assert list_user_commands(tmp_path, {}) == []

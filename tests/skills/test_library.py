"""What is found in which places: precedence, trust, links, bounds, and files that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kedge.config.schema import Config, SandboxConfig
from kedge.skills.library import Library, LibraryReader
from kedge.skills.listing import find_findings, list_skills
from kedge.skills.places import MAX_FILE_BYTES


class Tree:
    """A repository with a workspace in it, and a home."""

    def __init__(self, tmp_path: Path) -> None:
        self.home, self.root = tmp_path / "home", tmp_path / "repo"
        self.workspace = self.root / "part"
        for path in (self.home, self.workspace, self.root / ".git"):
            path.mkdir(parents=True)
        self.trusted: tuple[str, ...] = (str(self.root),)
        self.plugins: tuple[str, ...] = ()
        self.reader = LibraryReader()

    def write(self, path: Path, text: str = "") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def skill(self, place: Path, name: str, about: str = "x") -> Path:
        return self.write(place / name / "SKILL.md", f"---\nname: {name}\ndescription: {about}\n---\nbody")

    def read(self, **config: object) -> Library:
        given = Config(trusted=self.trusted, plugins=self.plugins, **config)  # type: ignore[arg-type]
        return self.reader.read(self.workspace, {"HOME": str(self.home)}, given)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_every_place_of_skills_is_searched_and_the_nearest_wins(tree: Tree) -> None:
    places = [
        *(tree.workspace / name for name in (".kedge/skills", ".agents/skills", ".claude/skills")),
        *(tree.root / name for name in (".kedge/skills", ".agents/skills", ".claude/skills")),
        *(tree.home / name for name in (".config/kedge/skills", ".agents/skills")),
        *(tree.home / name for name in (".config/agents/skills", ".claude/skills")),
    ]
    for number, place in enumerate(places):
        tree.skill(place, "same", f"from {number}")
        tree.skill(place, f"own-{number}")
    library = tree.read()
    assert {f"own-{number}" for number in range(len(places))} < set(library.skills)
    assert library.skills["same"].description == "from 0"
    assert [each.path for each in library.shadowed] == [str(place / "same/SKILL.md") for place in places[1:]]


def test_a_directory_that_is_not_trusted_is_not_searched_but_named(tree: Tree) -> None:
    tree.skill(tree.root / ".claude/skills", "above")
    tree.skill(tree.workspace / ".claude/skills", "inside")
    tree.write(tree.workspace / ".opencode/command/x.md", "x")
    tree.write(tree.workspace / ".kedge/agents/y.md", "---\ndescription: y\n---\ny")
    tree.trusted = (str(tree.workspace),)
    library = tree.read()
    assert (list(library.skills), list(library.commands), list(library.agents)) == (["inside"], ["x"], ["y"])
    assert library.untrusted == [str(tree.root / ".claude/skills")]
    tree.trusted = ()
    library = tree.read()
    assert not library.skills
    assert not library.commands
    assert not library.agents
    assert len(library.untrusted) == 4
    assert any("kedge config trust" in text for _, text in find_findings(library))


def test_no_project_is_trusted_while_sandboxed_commands_could_write_its_files(tree: Tree) -> None:
    tree.skill(tree.workspace / ".kedge/skills", "theirs")
    tree.skill(tree.home / ".claude/skills", "mine")
    assert list(tree.read(sandbox=SandboxConfig(mode="auto")).skills) == ["mine"]


def test_links_out_of_the_repository_are_refused_and_the_users_own_are_followed(tree: Tree) -> None:
    outside = tree.skill(tree.home / "elsewhere", "linked").parent
    places = tree.workspace / ".kedge/skills"
    places.mkdir(parents=True)
    (places / "linked").symlink_to(outside)
    (places / "file").mkdir()
    (places / "file/SKILL.md").symlink_to(outside / "SKILL.md")
    (places / "loop").symlink_to(places)
    (tree.workspace / ".claude").mkdir()
    (tree.workspace / ".claude/skills").symlink_to(tree.home / "elsewhere")
    library = tree.read()
    assert not library.skills
    assert sum("leads out" in each.text for each in library.problems) == 3
    (tree.home / ".claude/skills").mkdir(parents=True)
    (tree.home / ".claude/skills/linked").symlink_to(outside)
    assert tree.read().skills["linked"].origin.directory == str(outside)


def test_what_cannot_be_used_is_a_problem_and_harms_nothing_else(tree: Tree) -> None:
    place = tree.home / ".claude/skills"
    tree.skill(place, "good")
    tree.write(place / "silent/SKILL.md", "---\nname: silent\n---\nx")
    tree.write(place / "large/SKILL.md", "---\nname: large\ndescription: x\n---\n" + "x" * MAX_FILE_BYTES)
    tree.write(place / "bad name!/SKILL.md", "---\nname: ../x\ndescription: x\n---\n")
    tree.write(place / "other-name/SKILL.md", "---\nname: renamed\ndescription: x\n---\n")
    (place / "pipe").mkdir()
    os.mkfifo(place / "pipe/SKILL.md")
    (place / "directory/SKILL.md").mkdir(parents=True)
    (place / "bytes").mkdir()
    (place / "bytes/SKILL.md").write_bytes(b"---\nname: bytes\ndescription: \xff\xfe\n---\n\x00")
    library = tree.read()
    assert list(library.skills) == ["bytes", "good", "renamed"]
    unused = {Path(each.path).parent.name for each in library.problems if not each.is_used}
    assert unused == {"silent", "large", "bad name!"}


def test_a_linked_skill_file_does_not_make_what_is_beside_its_target_readable(tree: Tree) -> None:
    notes = tree.write(tree.home / "notes.md", "---\ndescription: x\n---\nbody")
    link = tree.home / ".agents/skills/linked/SKILL.md"
    link.parent.mkdir(parents=True)
    link.symlink_to(notes)
    assert tree.read().skills["linked"].origin.directory == str(link.parent)


def test_the_time_for_a_directory_with_very_many_files_is_bounded(tree: Tree) -> None:
    place = tree.workspace / ".kedge/skills"
    for number in range(60):
        directory = place / f"d{number}"
        directory.mkdir(parents=True)
        for name in range(400):
            (directory / f"{name}.txt").touch()
    tree.skill(tree.home / ".agents/skills", "mine")
    library = tree.read()
    assert list(library.skills) == ["mine"]
    assert [each.text for each in library.problems] == ["there are too many files: some are left out"]


def test_text_that_hides_something_is_shown_in_descriptions(tree: Tree) -> None:
    tree.skill(tree.workspace / ".kedge/skills", "pdf", "safe \u202egnihtemos\x1b[2J")
    assert tree.read().skills["pdf"].description == "safe ⟨U+202E⟩gnihtemos␛[2J"


def test_a_changed_file_is_read_again(tree: Tree) -> None:
    path = tree.skill(tree.home / ".claude/skills", "one", "old")
    before = tree.read()
    assert tree.read().state == before.state
    path.write_text(path.read_text().replace("old", "newer"))
    after = tree.read()
    assert after.skills["one"].description == "newer"
    assert after.state != before.state


def test_commands_have_the_names_of_their_directories_and_the_users_own_wins(tree: Tree) -> None:
    tree.write(tree.workspace / ".claude/commands/git/commit.md", "---\ndescription: Commits\n---\nCommit it.")
    tree.write(tree.workspace / ".opencode/commands/review.md", "theirs")
    tree.write(tree.home / ".config/opencode/command/review.md", "# Review a file\n\nmine")
    library = tree.read()
    assert library.commands["git:commit"].description == "Commits"
    assert library.commands["review"].description == "Review a file"
    assert library.commands["review"].origin.source == "user"
    tree.skill(tree.workspace / ".kedge/skills", "review")
    found = tree.read().find_slash_command("review")
    assert found is not None
    assert found.origin.source == "user", "a repository's skill does not take the name of the user's command"
    tree.skill(tree.home / ".claude/skills", "git-help")
    tree.write(tree.home / ".claude/commands/git-help.md", "a command")
    found = tree.read().find_slash_command("git-help")
    assert found is not None
    assert found.body == "body", "a skill goes before a command from the same side"


def test_agents_that_want_to_write_are_told_apart_from_those_that_may(tree: Tree) -> None:
    agents = tree.home / ".claude/agents"
    tree.write(agents / "reader.md", "---\ndescription: x\ntools: Read, Glob, mcp__a__b\n---\nRead.")
    tree.write(agents / "fixer.md", "---\ndescription: x\ntools: [Read, Edit, Bash, Task]\n---\nFix.")
    tree.write(agents / "all.md", "---\ndescription: x\n---\nAll.")
    tree.write(agents / "less.md", "---\ndescription: x\ntools:\n  bash: false\n  write: false\n---\nLess.")
    tree.write(agents / "main.md", "---\ndescription: x\nmode: primary\n---\nNot for delegation.")
    tree.write(agents / "empty.md", "---\ndescription: x\n---\n")
    listed = {each.name: each for each in list_skills(tree.read(), ["fixer", "less"]).agents}
    assert set(listed) == {"reader", "fixer", "all", "less"}
    assert (listed["reader"].tools, listed["reader"].wants_to_write) == (["view", "glob"], False)
    assert (listed["fixer"].tools, listed["fixer"].may_write) == (["view", "edit", "multiedit", "bash"], True)
    assert listed["all"].wants_to_write
    assert "edit" not in listed["all"].tools
    assert "edit" in listed["less"].tools
    assert not {"bash", "write"} & set(listed["less"].tools)


def test_a_plugin_brings_all_its_parts_under_its_name(tree: Tree) -> None:
    root = tree.home / "src/team-plugin"
    tree.write(root / ".claude-plugin/plugin.json", '{"name": "team", "commands": "./more", "hooks": "./h.json"}')
    tree.skill(root / "skills", "pdf")
    tree.write(root / "commands/review.md", "Run ${CLAUDE_PLUGIN_ROOT}/x")
    tree.write(root / "more/extra.md", "Extra")
    tree.write(root / "agents/fixer.md", "---\ndescription: x\n---\nFix.")
    tree.write(root / "hooks/hooks.json", "{}")
    tree.write(root / "h.json", "{}")
    tree.write(root / ".mcp.json", "{}")
    (root / "skills/out").symlink_to(tree.skill(tree.home / "elsewhere", "out").parent)
    tree.plugins = ("~/src/team-plugin", "~/nothing", "relative", "~/src")
    library = tree.read()
    assert list(library.skills) == ["team:pdf"]
    assert list(library.commands) == ["team:extra", "team:review"]
    assert list(library.agents) == ["team:fixer"]
    assert len([each for each in library.problems if not each.is_used]) == 4, "three entries, and a link that leads out"
    from kedge.skills.plugins import find_plugins

    (plugin,) = find_plugins(Config(plugins=("~/src/team-plugin",)), {"HOME": str(tree.home)})
    assert plugin.hook_files == (root / "hooks/hooks.json", root / "h.json")
    assert plugin.mcp_files == (root / ".mcp.json",)

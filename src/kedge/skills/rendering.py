"""The text that a model gets of a skill or a command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from kedge.skills.definitions import Command, Origin, Skill
from kedge.skills.places import SKILL_FILE, SKIPPED, show
from kedge.skills.template import Filled, fill

MAX_LISTED_FILES = 60
MAX_ENTRIES = 2_000
MAX_DEPTH = 4


def fill_skill(skill: Skill, arguments: str | None) -> Filled:
    return fill(skill.body, arguments, list_names(skill.origin), with_files=False)


def fill_command(command: Command, arguments: str) -> Filled:
    return fill(command.body, arguments, list_names(command.origin), with_files=True)


def list_names(origin: Origin) -> Mapping[str, str]:
    """Return the values of `${NAME}` in a text: the directory of its skill, and the root of its plugin."""
    names = {"KEDGE_SKILL_DIR": origin.directory, "CLAUDE_SKILL_DIR": origin.directory}
    if origin.plugin_root:
        names |= {"KEDGE_PLUGIN_ROOT": origin.plugin_root, "CLAUDE_PLUGIN_ROOT": origin.plugin_root}
    return names


def format_skill(skill: Skill, text: str, files: Sequence[str]) -> str:
    """Return the section with the instructions of a skill; `text` is its body, filled in."""
    lines = [f'<skill_content name="{skill.name}">', text, "", f"Directory of the skill: {skill.origin.directory}"]
    if files:
        lines += ["Its files, to view when the instructions name them:", *(f"- {name}" for name in files)]
    return "\n".join([*lines, "</skill_content>"])


def list_files(skill: Skill) -> list[str]:
    """Return the files of a skill beside its instructions, relative to its directory; of many only the first."""
    root = Path(skill.origin.directory)
    found: list[str] = []
    pending = [(root, 0)]
    count = 0
    while pending and len(found) < MAX_LISTED_FILES and count < MAX_ENTRIES:
        directory, depth = pending.pop(0)
        try:
            with os.scandir(directory) as entries:
                listed = sorted(
                    (entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                    for entry in islice(entries, MAX_ENTRIES)
                )
        except OSError:
            continue
        for name, is_directory, is_link in listed:
            count += 1
            if is_directory:
                if depth < MAX_DEPTH and name not in SKIPPED:
                    pending.append((directory / name, depth + 1))
            elif not is_link and not (directory == root and name == SKILL_FILE):
                found.append(show((directory / name).relative_to(root)))
    return sorted(found[:MAX_LISTED_FILES])

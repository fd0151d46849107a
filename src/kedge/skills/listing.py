"""Lists of skills, commands and agents for clients; and, as a program, findings for `kedge doctor`.

`python -m kedge.skills.listing DIRECTORY` prints each finding as a line of JSON: `[true | null, "text"]`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from kedge.protocol.skills import (
    FileProblem,
    ShadowedFile,
    SkillInfo,
    SkillList,
    SubAgentInfo,
    UserCommand,
    UserCommands,
)
from kedge.skills.definitions import AgentDefinition, Command, Skill
from kedge.skills.library import Library, LibraryReader
from kedge.skills.tool_names import is_writer, list_agent_tools, wants_to_write

MAX_FINDINGS = 20
MAX_COMMANDS = 1_000  # a longer menu is of no use


def list_commands(library: Library) -> UserCommands:
    return UserCommands([_describe_command(each) for each in library.list_slash_commands()[:MAX_COMMANDS]])


def list_skills(library: Library, writers: Collection[str]) -> SkillList:
    return SkillList(
        skills=[_describe_skill(skill) for skill in library.skills.values()],
        agents=[_describe_agent(agent, writers) for agent in library.agents.values()],
        shadowed=[
            ShadowedFile(kind=each.kind, name=each.name, path=each.path, by=each.by) for each in library.shadowed
        ],
        problems=[FileProblem(path=each.path, problem=each.text, is_used=each.is_used) for each in library.problems],
        untrusted=list(library.untrusted),
    )


def _describe_command(each: Skill | Command) -> UserCommand:
    return UserCommand(
        name=each.name,
        description=each.description,
        source=each.origin.source,
        text=each.body,
        kind="skill" if isinstance(each, Skill) else "command",
        argument_hint=each.argument_hint,
    )


def _describe_skill(skill: Skill) -> SkillInfo:
    return SkillInfo(
        name=skill.name,
        description=skill.description,
        source=skill.origin.source,
        path=skill.origin.path,
        user_invocable=skill.is_for_user,
        model_invocable=skill.is_for_model,
    )


def _describe_agent(agent: AgentDefinition, writers: Collection[str]) -> SubAgentInfo:
    may_write = is_writer(agent, writers)
    return SubAgentInfo(
        name=agent.name,
        description=agent.description,
        source=agent.origin.source,
        path=agent.origin.path,
        tools=list_agent_tools(agent, may_write=may_write),
        may_write=may_write,
        wants_to_write=not may_write and wants_to_write(agent),
    )


def find_findings(library: Library) -> Iterator[tuple[bool | None, str]]:
    counts = [("skill", library.skills), ("command", library.commands), ("sub-agent", library.agents)]
    found = ", ".join(f"{len(each)} {name}{'' if len(each) == 1 else 's'}" for name, each in counts if each)
    notes = [
        *(f"{each.path} is not used: {each.by} has the same name" for each in library.shadowed),
        *(f"{each.path}{'' if each.is_used else ' is not used'}: {each.text}" for each in library.problems),
    ]
    if library.untrusted:
        parents = {str(Path(path).parent.parent) for path in library.untrusted}
        advice = f"to use them: kedge config trust {min(parents)}"
        notes.append(f"Not used, because the directory is not trusted: {', '.join(library.untrusted)}; {advice}")
    if found:
        yield True, found
    yield from ((None, note) for note in notes[:MAX_FINDINGS])
    if len(notes) > MAX_FINDINGS:
        yield None, f"and {len(notes) - MAX_FINDINGS} more notes on skills, commands and sub-agents"


def _main(directory: str) -> None:
    from kedge.config.load import Loader

    path = Path(directory)
    library = LibraryReader().read(path, os.environ, Loader().load(path, os.environ).config)
    for finding in find_findings(library):
        sys.stdout.write(f"{json.dumps(finding)}\n")


if __name__ == "__main__":
    _main(sys.argv[1])

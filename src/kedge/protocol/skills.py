"""Custom commands, skills and sub-agents, as clients see them."""

from __future__ import annotations

from typing import Literal

import msgspec

CommandSource = Literal["user", "workspace", "plugin"]


class UserCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What `/name` at the beginning of a prompt runs: a file with a prompt, or a skill.

    `text` is as in the file: the server fills it in when the prompt is run.
    """

    name: str
    description: str
    source: CommandSource
    text: str
    kind: Literal["command", "skill"] = "command"
    argument_hint: str = ""


class UserCommands(msgspec.Struct, frozen=True):
    commands: list[UserCommand]


class SkillInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A skill. `user_invocable`: `/name` runs it; `model_invocable`: the model may load it by itself."""

    name: str
    description: str
    source: CommandSource
    path: str  # of its SKILL.md
    user_invocable: bool
    model_invocable: bool


class SubAgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-agent that the model can delegate to. `wants_to_write`: its file asks for tools that it does not get."""

    name: str
    description: str
    source: CommandSource
    path: str
    tools: list[str]
    may_write: bool
    wants_to_write: bool


class ShadowedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is not used, because another one (`by`) has its name."""

    kind: Literal["skill", "command", "agent"]
    name: str
    path: str
    by: str


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a file, which may be used in spite of it."""

    path: str
    problem: str
    is_used: bool


class SkillList(msgspec.Struct, frozen=True, kw_only=True):
    """The skills and sub-agents of a workspace. `untrusted`: directories of the project that were not searched."""

    skills: list[SkillInfo]
    agents: list[SubAgentInfo]
    shadowed: list[ShadowedFile]
    problems: list[FileProblem]
    untrusted: list[str]

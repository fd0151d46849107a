"""What skill, command and agent files define, as the rest of Kedge uses it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from kedge.protocol.skills import CommandSource
from kedge.protocol.text_safety import visible_line

if TYPE_CHECKING:
    from kedge.skills.frontmatter import Frontmatter

MAX_DESCRIPTION_CHARS = 1_024
MAX_HINT_CHARS = 200
MAX_NAME_CHARS = 64
# Also of a part of a namespace. Unicode letters are allowed, as in the specification of skills.
_NAME = re.compile(r"[^\W_][\w.-]*")
_SPECIFIED_NAME = re.compile(r"[^\W_]+(?:-[^\W_]+)*")

Kind = Literal["skill", "command", "agent"]


class Origin(msgspec.Struct, frozen=True):
    """Where a file was found."""

    source: CommandSource
    path: str  # of the file
    directory: str  # that the definition may refer to: a skill's own, without links; else the one that was searched
    plugin: str = ""  # name of the plugin
    plugin_root: str = ""


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    origin: Origin
    body: str
    argument_hint: str = ""
    is_for_model: bool = True  # `disable-model-invocation` is not set
    is_for_user: bool = True  # `user-invocable`
    allowed_tools: tuple[str, ...] = ()  # as written


class Command(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    origin: Origin
    body: str
    argument_hint: str = ""
    model: str = ""
    agent: str = ""
    allowed_tools: tuple[str, ...] = ()


class AgentDefinition(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    origin: Origin
    prompt: str
    model: str = ""
    tools: tuple[str, ...] | None = None  # as written; None: all that it may have
    disallowed_tools: tuple[str, ...] = ()
    max_steps: int | None = None


class Problem(msgspec.Struct, frozen=True):
    """A file that is not used, or not as it is written, and why."""

    path: str
    text: str
    is_used: bool = False


def parse_skill(text: str, origin: Origin, directory_name: str, problems: list[Problem]) -> Skill | None:
    """Return the skill of a `SKILL.md`; None, with a problem, if it has no description or no possible name."""
    front = _read(text, origin, problems)
    name = front.text("name").strip()
    if not is_name(name):
        if name:
            problems.append(
                Problem(origin.path, f"its name {name[:40]!r} is not valid; it is named as its directory", True)
            )
        name = directory_name
    if not is_name(name):
        problems.append(Problem(origin.path, "a skill's name has letters, digits and hyphens only, 64 at most"))
        return None
    if name != directory_name:
        problems.append(Problem(origin.path, f"its name {name!r} is not that of its directory", True))
    elif name != name.lower() or not _SPECIFIED_NAME.fullmatch(name):
        problems.append(Problem(origin.path, "a name should have lower-case letters, digits and single hyphens", True))
    description = _describe(front.text("description"))
    if not description:
        problems.append(Problem(origin.path, "it has no description; add one that says when to use the skill"))
        return None
    return Skill(
        name=name,
        description=description,
        origin=origin,
        body=front.body,
        argument_hint=_one_line(front.text("argument-hint"))[:MAX_HINT_CHARS],
        is_for_model=not front.flag("disable-model-invocation", default=False),
        is_for_user=front.flag("user-invocable", default=True),
        allowed_tools=tuple(front.items("allowed-tools") or ()),
    )


def parse_command(text: str, origin: Origin, name: str, problems: list[Problem]) -> Command:
    """Return the command of a Markdown file; its description is its first line if it has no other."""
    front = _read(text, origin, problems)
    first = next((line.strip("# ").strip() for line in front.body.splitlines() if line.strip("# ").strip()), "")
    return Command(
        name=name,
        description=_describe(front.text("description") or first)[:200],
        origin=origin,
        body=front.body,
        argument_hint=_one_line(front.text("argument-hint"))[:MAX_HINT_CHARS],
        model=front.text("model").strip(),
        agent=front.text("agent").strip(),
        allowed_tools=tuple(front.items("allowed-tools") or ()),
    )


def parse_agent(text: str, origin: Origin, file_name: str, problems: list[Problem]) -> AgentDefinition | None:
    """Return the agent of a Markdown file; None for one that is not for delegated work, or that says nothing."""
    front = _read(text, origin, problems)
    if front.text("mode").strip() == "primary" or front.flag("disable", default=False):
        return None
    name = front.text("name").strip() or file_name
    if not is_name(name):
        problems.append(Problem(origin.path, f"an agent cannot be named {name[:40]!r}"))
        return None
    description = _describe(front.text("description"))
    if not description or not front.body:
        missing = "description" if not description else "prompt"
        problems.append(Problem(origin.path, f"it has no {missing}, which an agent needs"))
        return None
    steps = front.text("maxTurns", "steps", "max-steps").strip()
    return AgentDefinition(
        name=name,
        description=description,
        origin=origin,
        prompt=front.body,
        model=front.text("model").strip(),
        tools=_list_tools(front),
        disallowed_tools=_list_denied_tools(front),
        max_steps=int(steps) if steps.isdecimal() and 0 < int(steps[:7]) <= 1_000_000 else None,
    )


def is_name(name: str) -> bool:
    return len(name) <= MAX_NAME_CHARS and _NAME.fullmatch(name) is not None


def name_command(relative: Path) -> str | None:
    """Return the name of a command by its path: `git/commit.md` is `git:commit`. None if that is no name."""
    parts = relative.with_suffix("").parts
    return ":".join(parts) if all(map(is_name, parts)) else None


def _list_tools(front: Frontmatter) -> tuple[str, ...] | None:
    """Return the tools of `tools`; None for all, also where a table only takes some away."""
    flags = front.table("tools")
    if flags and not any(value.lower() == "true" for value in flags.values()):
        return None
    items = front.items("tools")
    return None if items is None or "*" in items else tuple(items)


def _list_denied_tools(front: Frontmatter) -> tuple[str, ...]:
    off = [name for name, value in front.table("tools").items() if value.lower() == "false"]
    off += [name for name, value in front.table("permission").items() if value.lower() == "deny"]
    return (*(front.items("disallowedTools") or ()), *off)


def _read(text: str, origin: Origin, problems: list[Problem]) -> Frontmatter:
    from kedge.skills.frontmatter import read_frontmatter  # not before there is a file

    front = read_frontmatter(text)
    if front.problem:
        problems.append(Problem(origin.path, front.problem, True))
    return front


def _describe(text: str) -> str:
    text = _one_line(text)
    return text if len(text) <= MAX_DESCRIPTION_CHARS else text[: MAX_DESCRIPTION_CHARS - 1] + "…"


def _one_line(text: str) -> str:
    return visible_line(" ".join(text.split()))

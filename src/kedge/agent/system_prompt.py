"""The system prompt: how to work, context files, what the model may do, and the environment.

The most stable text comes first. It is the same in all steps and runs of a session, as long as the session has the same
role and tools: providers cache a prefix that stays the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from string import Template

import msgspec

from kedge.agent.catalog import UNKNOWN_CHARS, format_skills
from kedge.agent.context_files import format_file
from kedge.agent.surroundings import Surroundings
from kedge.agent.tool_context import TurnScope
from kedge.protocol.runs import Run
from kedge.tools.permissions.describe import describe_permissions
from kedge.tools.permissions.judge import Judge
from kedge.tools.port import Tool


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the prompt is for. `own` replaces the text on how to work, but nothing after it."""

    is_sub_agent: bool = False
    is_tiny: bool = False
    has_tools: bool = True
    is_attended: bool = True
    own: str | None = None
    output_schema: str | None = None


def build_system_prompt(role: Role, surroundings: Surroundings, max_skill_chars: int = UNKNOWN_CHARS) -> str:
    if role.is_tiny:  # a longer prompt would confuse it
        return "\n\n".join([role.own or load_prompt("tiny"), *_format_output_section(role)])
    sections = [role.own or load_prompt("agent" if role.is_sub_agent else "work")]
    if role.is_sub_agent and role.own:
        sections.append(load_prompt("custom_agent"))
    if not role.has_tools:
        sections.append(load_prompt("no_tools"))
    if not role.is_attended and not role.is_sub_agent:
        sections.append(load_prompt("unattended"))
    sections += [format_file(each) for each in surroundings.files]
    if role.has_tools and (skills := format_skills(surroundings.skills, max_skill_chars)):
        sections.append(skills)
    sections += _format_output_section(role)
    if surroundings.permissions:
        sections.append(f"# What you may do\n\nUntil a system note says otherwise: {surroundings.permissions}")
    sections.append(
        _fill_template(
            "environment",
            directory=surroundings.directory,
            platform=surroundings.platform,
            shell=surroundings.shell,
            date=surroundings.today.isoformat(),
        )
    )
    if surroundings.repository is not None:
        sections.append(
            f"Git, as it was when this session began (ask git for the state of now):\n{surroundings.repository}"
        )
    return "\n\n".join(sections)


@cache
def load_prompt(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.md").read_text(encoding="utf-8").strip()


def _fill_template(name: str, **values: str) -> str:
    return Template(load_prompt(name)).substitute(values)


def _format_output_section(role: Role) -> list[str]:
    return [] if role.output_schema is None else [_fill_template("output", schema=role.output_schema)]


async def describe_for_model(run: Run, scope: TurnScope, judge: Judge, tools: Sequence[Tool]) -> str:
    """Return what the model is told about permissions: nothing without tools, or to a reading sub-agent."""
    if not tools or (run.kind == "agent" and all(tool.is_read_only for tool in tools)):
        return ""
    names = [tool.name for tool in tools]
    text = await asyncio.to_thread(
        describe_permissions, judge, names, scope.sandbox, is_attended=run.permissions == "ask"
    )
    return f"{text}\n\n{load_prompt('plan')}" if judge.mode == "plan" else text

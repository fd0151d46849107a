"""`skill`: the instructions of a skill, read when the model asks for them."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.skills.definitions import Skill
from kedge.tools.errors import ToolError
from kedge.tools.port import Output, Tool, ToolContext, ToolScope

# The modules that fill in texts are imported when a skill is used.
if TYPE_CHECKING:
    from kedge.skills.template import Filled, Mention, Run

_MAX_NAMED = 30


class SkillParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(description="the name of the skill")]
    arguments: Annotated[str, msgspec.Meta(max_length=10_000, description="words for the skill, if it takes some")] = ""


async def list_commands(scope: ToolScope, params: SkillParams) -> Sequence[str]:
    return _fill(_find_skill(scope, params.name), params).commands


def list_granted(scope: ToolScope, params: SkillParams) -> Sequence[str]:
    from kedge.skills.rendering import list_names
    from kedge.skills.tool_names import list_rules

    skill = _find_skill(scope, params.name)
    return list_rules(skill.allowed_tools, list_names(skill.origin))


async def run(ctx: ToolContext, params: SkillParams) -> Output:
    from kedge.skills.rendering import format_skill, list_files

    skill = _find_skill(ctx, params.name)
    filled = _fill(skill, params)
    outputs = {line: await ctx.run_command(line) for line in filled.commands}
    files = await asyncio.to_thread(list_files, skill)
    text = filled.join(lambda piece: show_output(piece, outputs))
    return Output(content=format_skill(skill, text, files), metadata={"skill": skill.name})


def show_output(piece: Run | Mention, outputs: dict[str, str]) -> str:
    """Return the output of a command in a text, or why it was not run."""
    from kedge.skills.template import Mention

    if isinstance(piece, Mention):
        return f"@{piece.path}"
    return f"[Not run: {piece.line}: {piece.problem}]" if piece.problem else outputs.get(piece.line, "")


def _fill(skill: Skill, params: SkillParams) -> Filled:
    from kedge.skills.rendering import fill_skill

    return fill_skill(skill, params.arguments or None)


def _find_skill(scope: ToolScope, name: str) -> Skill:
    skills = {each.name: each for each in scope.library.skills.values() if each.is_for_model}
    skill = skills.get(name.strip().removeprefix("/"))
    if skill is not None:
        return skill
    if not skills:
        raise ToolError("There are no skills here any more;", "do without.")
    near = difflib.get_close_matches(name[:100], skills, 3) or list(skills)[:_MAX_NAMED]
    raise ToolError(f"There is no skill {name[:100]!r}.", f"Skills are: {', '.join(near)}.")


TOOL = Tool(
    facts=BUILT_IN_TOOLS["skill"], params=SkillParams, run=run, list_commands=list_commands, list_rules=list_granted
)

"""What a model is told of skills and agents before it uses one: their names and descriptions, within a budget."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from kedge.agent.tool_params import describe_tool
from kedge.models.values import CHARS_PER_TOKEN, ModelInfo, ToolSpec
from kedge.skills.library import Library
from kedge.tools.port import Tool

BUDGET_SHARE = 0.02  # of the context window
UNKNOWN_CHARS = 8_000  # where the size of the window is not known
MIN_CHARS = 1_000
MIN_DESCRIPTION_CHARS = 20  # a shorter description says nothing
MAX_AGENT_DESCRIPTION_CHARS = 400
MAX_AGENTS = 50

_TITLE = "# Skills\n\nInstructions for particular tasks. Load one with the tool `skill` when the task is what it says."


class Entry(msgspec.Struct, frozen=True):
    """A skill or an agent, as the model knows it."""

    name: str
    description: str


def list_skills(library: Library) -> tuple[Entry, ...]:
    return tuple(Entry(each.name, each.description) for each in library.skills.values() if each.is_for_model)


def list_agents(library: Library, writers: Collection[str]) -> tuple[Entry, ...]:
    """Return the agents, each with whether it can change files: the model must know to whom it can give edits."""
    if not library.agents:
        return ()
    from kedge.skills.tool_names import can_write

    return tuple(
        Entry(
            each.name,
            f"({'can change files' if can_write(each, writers) else 'only reads'})"
            f" {_cut(each.description, MAX_AGENT_DESCRIPTION_CHARS)}",
        )
        for each in list(library.agents.values())[:MAX_AGENTS]
    )


def max_catalog_chars(info: ModelInfo) -> int:
    """Return how many characters of the system prompt the list of skills may take."""
    if info.context_window is None:
        return UNKNOWN_CHARS
    return max(MIN_CHARS, int(info.context_window * CHARS_PER_TOKEN * BUDGET_SHARE))


def format_skills(skills: Sequence[Entry], max_chars: int) -> str:
    """Return the section of the system prompt; empty without skills.

    Descriptions are shortened to fit, all to the same length, then left out; names are left out last.
    """
    return f"{_TITLE}\n\n{format_entries(skills, max_chars - len(_TITLE))}" if skills else ""


def format_entries(entries: Sequence[Entry], max_chars: int) -> str:
    names = sum(len(each.name) + 3 for each in entries)
    room = max_chars - names - 2 * len(entries)
    longest = _fit_descriptions([len(each.description) for each in entries], room)
    if longest >= min(MIN_DESCRIPTION_CHARS, max((len(each.description) for each in entries), default=0)):
        return "\n".join(f"- {each.name}: {_cut(each.description, longest)}" for each in entries)
    lines: list[str] = []
    for each in entries:
        max_chars -= len(each.name) + 3
        if max_chars < 0:
            return "\n".join([*lines, f"- and {len(entries) - len(lines)} more, which `skill` loads by their names"])
        lines.append(f"- {each.name}")
    return "\n".join(lines)


def _fit_descriptions(lengths: Sequence[int], room: int) -> int:
    """Return the length to which the longer descriptions are cut so that all of them fit."""
    left = len(lengths)
    for length in sorted(lengths):
        if length * left > room:
            return max(room, 0) // left
        room -= length
        left -= 1
    return max(lengths, default=0)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1].rstrip()}…"


def describe_tools(tools: Sequence[Tool], agents: Sequence[Entry]) -> list[ToolSpec]:
    """Return what the model is told about the tools; the tool `agent` names the agents of the session."""
    return [
        _describe_agents(describe_tool(tool), agents) if tool.name == "agent" else describe_tool(tool) for tool in tools
    ]


def _describe_agents(spec: ToolSpec, agents: Sequence[Entry]) -> ToolSpec:
    properties: Mapping[str, Any] = spec.input_schema["properties"]
    if not agents:
        kept = {name: value for name, value in properties.items() if name != "agent"}
        return ToolSpec(spec.name, spec.description, {**spec.input_schema, "properties": kept})
    named = {**properties.get("agent", {}), "enum": ["", *(each.name for each in agents)]}
    lines = [f"- {each.name}: {each.description}" for each in agents]
    description = "\n".join([spec.description, "", "Beside the general one, there are these sub-agents:", *lines])
    return ToolSpec(spec.name, description, {**spec.input_schema, "properties": {**properties, "agent": named}})

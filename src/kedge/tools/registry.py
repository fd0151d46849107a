"""The built-in tools, and which of them a run is offered."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from kedge.protocol.runs import Mode, Permissions, RunKind
from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.port import Tool


def _load_tool(name: str) -> Tool:
    return import_module(f"kedge.tools.builtin.{name}").TOOL


TOOLS: tuple[Tool, ...] = tuple(_load_tool(name) for name in BUILT_IN_TOOLS)


def select_tools(
    kind: RunKind,
    permissions: Permissions,
    mode: Mode,
    tools: Sequence[Tool] = TOOLS,
    *,
    can_sandbox: bool = True,
) -> tuple[Tool, ...]:
    """Return the tools that a run is offered.

    A sub-agent gets those that change nothing. Questions are offered only if a person may answer. In plan mode nothing
    may change, so a tool that can change anything needs a sandbox (`can_sandbox`).
    """

    def is_offered(tool: Tool) -> bool:
        if kind == "agent" and not (tool.is_read_only and tool.facts.for_sub_agents):
            return False
        if tool.list_questions is not None and permissions != "ask":
            return False
        if mode != "plan":
            return True
        return can_sandbox if tool.facts.changes == "anything" else tool.facts.changes not in ("files", "processes")

    return tuple(filter(is_offered, tools))

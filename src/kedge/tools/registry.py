"""The built-in tools, and which of them a run is offered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module

from kedge.protocol.runs import Permissions, RunKind
from kedge.protocol.tools import BUILT_IN_TOOLS, NOT_FOR_AGENTS
from kedge.tools.port import Tool


def _load_tool(name: str) -> Tool:
    return import_module(f"kedge.tools.builtin.{name}").TOOL


TOOLS: tuple[Tool, ...] = tuple(_load_tool(name) for name in BUILT_IN_TOOLS if not name.startswith("lsp_"))


def load_language_tools() -> tuple[Tool, ...]:
    """Return the tools of language servers, which few workspaces have."""
    return import_module("kedge.tools.builtin.lsp").TOOLS


def select_tools(
    kind: RunKind,
    permissions: Permissions,
    tools: Sequence[Tool] = TOOLS,
    *,
    can_search: bool = False,
    names: Collection[str] | None = None,
) -> tuple[Tool, ...]:
    """Return the tools that a run is offered; with `names` only these.

    A sub-agent gets those that change nothing, or those that are named for it. Questions are offered only if a person
    may answer, web search only if a service is configured (`can_search`). The mode makes no difference: what it forbids
    is refused, so that the tools, which come first in a request, stay in the provider's cache when the user goes on in
    another mode.
    """

    def is_offered(tool: Tool) -> bool:
        if names is not None and tool.name not in names:
            return False
        if kind == "agent" and tool.name in NOT_FOR_AGENTS:
            return False
        if kind == "agent" and names is None and not (tool.is_read_only and tool.facts.for_sub_agents):
            return False
        if tool.name == "web_search" and not can_search:
            return False
        return tool.list_questions is None or permissions == "ask"

    return tuple(filter(is_offered, tools))

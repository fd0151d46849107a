"""Tools and permission rules as other agents write them (`Bash(git log:*)`, `Read`), in the names of Kedge."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from kedge.config.rules import BadRule, read_rule
from kedge.protocol.tool_input import correct_tool_name
from kedge.protocol.tools import BUILT_IN_TOOLS, NOT_FOR_AGENTS
from kedge.skills.definitions import AgentDefinition

MAX_RULES = 50
_ALLOWED = re.compile(r"([A-Za-z_][\w.-]{0,99})(?:\((.*)\))?", re.DOTALL)
_VARIABLE = re.compile(r"\$\{([A-Z_]{1,40})\}")


def name_tool(written: str) -> str | None:
    """Return the name of a tool in Kedge (`Read` is `view`); None for an unknown one."""
    found = _ALLOWED.fullmatch(written.strip())
    if found is None:
        return None
    if found[1].startswith("mcp__"):
        return "mcp_" + re.sub(r"[^a-zA-Z0-9_-]", "_", found[1].removeprefix("mcp__").replace("__", "_", 1))
    name = correct_tool_name(found[1], BUILT_IN_TOOLS)
    return name if name in BUILT_IN_TOOLS else None


def list_agent_tools(agent: AgentDefinition, *, may_write: bool) -> list[str]:
    """Return the tools of an agent, in their usual order; without `may_write` only those that change nothing."""
    offered = [
        facts.name
        for facts in BUILT_IN_TOOLS.values()
        if facts.name not in NOT_FOR_AGENTS and (may_write or (facts.is_read_only and facts.for_sub_agents))
    ]
    wanted = None if agent.tools is None else _name_all(agent.tools)
    denied = _name_all(agent.disallowed_tools)
    return [name for name in offered if (wanted is None or name in wanted) and name not in denied]


def wants_to_write(agent: AgentDefinition) -> bool:
    """Return whether the agent's file asks for tools that change something, or for all tools."""
    return list_agent_tools(agent, may_write=True) != list_agent_tools(agent, may_write=False)


def _name_all(written: Iterable[str]) -> set[str]:
    names = {name for each in written if (name := name_tool(each)) is not None}
    # Who names one tool for editing means editing.
    return names | {"edit", "multiedit"} if names & {"edit", "multiedit"} else names


def list_rules(allowed: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return the permission rules that `allowed-tools` stands for; what has no narrow meaning here is left out.

    The name of a tool alone is no rule: `Bash` would allow every command. An exception is editing, which `edit(**)`
    allows in the workspace.
    """
    rules: dict[str, None] = {}
    for written in allowed[:MAX_RULES]:
        text = _VARIABLE.sub(lambda found: names.get(found[1], found[0]), written.strip())
        found = _ALLOWED.fullmatch(text)
        name = name_tool(text)
        if found is None or name is None:
            continue
        rule = _write_rule(name, (found[2] or "").strip())
        try:
            if rule:
                read_rule(rule)
                rules[rule] = None
        except BadRule:
            continue
    return list(rules)


def _write_rule(name: str, pattern: str) -> str:
    if name.startswith("mcp_"):
        return name
    facts = BUILT_IN_TOOLS[name]
    if not pattern or set(pattern) <= set("*: "):
        return "edit(**)" if name in ("edit", "multiedit", "write") else ""
    match facts.rule_pattern:
        case "command":
            if set(pattern.partition(" ")[0].removesuffix(":*")) & set("*?["):
                return ""  # any program
            words = pattern.removesuffix(":*").strip() if pattern.endswith(":*") else pattern
            return f"bash({words} *)" if pattern.endswith(":*") else f"bash({words})"
        case "domain":
            return f"fetch({pattern})" if pattern.startswith("domain:") else ""
        case "path":
            path = pattern.removeprefix("/") if pattern.startswith("//") else pattern
            return f"{'view' if facts.is_read_only else 'edit'}({path})"
        case "text" | None:
            return ""


def can_write(agent: AgentDefinition, writers: Collection[str]) -> bool:
    """Return whether the agent has tools that change something."""
    return is_writer(agent, writers) and wants_to_write(agent)


def is_writer(agent: AgentDefinition, writers: Collection[str]) -> bool:
    """Return whether the configuration lets the agent change things."""
    return "*" in writers or agent.name in writers

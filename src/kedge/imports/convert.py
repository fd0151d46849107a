"""Turns servers, rules and hooks of other agents into Kedge's, without their secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

from kedge.config.mcp import convert_entry
from kedge.config.rules import BadRule, read_rule
from kedge.config.schema import HooksConfig
from kedge.config.schema_tree import find_node, find_problems
from kedge.imports.items import table_of, texts_of
from kedge.imports.secrets import hide_secrets
from kedge.protocol.tool_input import correct_tool_name
from kedge.protocol.tools import BUILT_IN_TOOLS

EVENTS = tuple(field.encode_name for field in msgspec.structs.fields(HooksConfig))
_BARE_REFERENCE = re.compile(r"\$([A-Za-z_]\w*)|%([A-Za-z_]\w*)%|\{env:([A-Za-z_]\w*)\}")


class Server(NamedTuple):
    values: dict[str, Any]
    variables: list[str]  # that stand for secrets, which were not taken over
    problem: str | None


def convert_server(name: str, given: Mapping[str, Any]) -> Server:
    """Convert an entry in the form of `.mcp.json`, where `tools` may be as in `[mcp.NAME]`, without its secrets."""
    entry, variables = hide_secrets(name, _convert_references(dict(given)))
    values, problem = convert_entry(name, entry)
    if tools := {key: texts for key in ("allow", "deny") if (texts := texts_of(table_of(given, "tools").get(key)))}:
        values["tools"] = tools
    return Server(values, variables, problem)


def _convert_references(value: Any) -> Any:
    """`$NAME`, `%NAME%` and `{env:NAME}` of other agents as `${NAME}`."""
    match value:
        case str():
            return _BARE_REFERENCE.sub(lambda found: f"${{{found[1] or found[2] or found[3]}}}", value)
        case list():
            return [_convert_references(each) for each in cast("list[Any]", value)]
        case dict():
            return {name: _convert_references(each) for name, each in cast("dict[str, Any]", value).items()}
        case _:
            return value


_CALL = re.compile(r"([A-Za-z_*][\w.*-]{0,99})(?:\((.*)\))?", re.DOTALL)


def convert_rule(written: str) -> str | None:
    """Return the rule that means the same as one of another agent (`Bash(git log:*)`), or None."""
    found = _CALL.fullmatch(written.strip())
    if found is None:
        return None
    name, pattern = found[1], (found[2] or "").strip()
    if name.startswith("mcp_") and not name.startswith("mcp__"):  # as here
        rule = name
    elif name.startswith("mcp__"):
        rule = "mcp_" + re.sub(r"[^a-zA-Z0-9_*-]", "_", name.removeprefix("mcp__").replace("__", "_", 1))
        rule = rule if "__" in name.removeprefix("mcp__") or rule.endswith("*") else f"{rule}_*"
    else:
        name = correct_tool_name(name, BUILT_IN_TOOLS)
        if name not in BUILT_IN_TOOLS:
            return None
        rule = _write_rule(name, pattern)
    try:
        read_rule(rule)
    except BadRule:
        return None
    return rule


def _write_rule(name: str, pattern: str) -> str:
    name = "edit" if name == "multiedit" else name
    if not pattern or pattern in ("*", ":*", "**"):
        return name
    match BUILT_IN_TOOLS[name].rule_pattern:
        case "command":
            if pattern.endswith(":*"):
                return f"bash({pattern[:-2].strip()} *)"
            if pattern.endswith("*") and not pattern.endswith(" *"):
                return f"bash({pattern[:-1].strip()} *)"  # narrower: other agents compare characters, not words
            return f"bash({pattern})"
        case "path":
            if pattern.startswith("./"):
                return f"{name}({pattern[2:]})"
            path = pattern
            path = path[1:] if path.startswith("/") else path  # `//` is the root there, `/` the project
            return f"{name}({path if '/' in path or path.startswith('~') else f'**/{path}'})"
        case _:
            return f"{name}({pattern})"


def convert_hooks(value: Any) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Return the hooks of a `hooks` table by event, and what is left out."""
    found: list[tuple[str, dict[str, Any]]] = []
    left_out: list[str] = []
    for event, groups in (cast("dict[str, Any]", value) if isinstance(value, dict) else {}).items():
        if event not in EVENTS:
            left_out.append(f"{event}: there is no such event here")
            continue
        for group in cast("list[Any]", groups) if isinstance(groups, list) else []:
            fields = cast("dict[str, Any]", group) if isinstance(group, dict) else {}
            listed: Any = fields.get("hooks", [fields])  # flat in Crush
            for each in cast("list[Any]", listed) if isinstance(listed, list) else []:
                hook, why = _convert_hook(event, fields.get("matcher"), each)
                if why is None:
                    found.append((event, hook))
                else:
                    left_out.append(f"{event}: {why}")
    return found, left_out


def _convert_hook(event: str, matcher: Any, entry: Any) -> tuple[dict[str, Any], str | None]:
    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    if fields.get("type", "command") != "command" or not isinstance(fields.get("command"), str):
        return {}, "only hooks of the type command can be taken over"
    if isinstance(fields.get("if"), str):
        return {}, f"there is no condition like `if` here, and without it this hook would run too often: {fields['if']}"
    hook: dict[str, Any] = {"matcher": matcher} if isinstance(matcher, str) and matcher not in ("", "*") else {}
    hook["command"] = fields["command"]
    timeout = fields.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0:
        hook["timeout_s"] = min(float(timeout), 600.0)
    if fields.get("onFailure") == "block":
        hook["on_failure"] = "block"
    for _, why in find_problems([hook], find_node(("hooks", event))):
        return {}, why
    return hook, None

"""MCP servers in the configuration: what a server needs, its `${NAME}` references, and `.mcp.json` files.

References of servers are expanded when a server is started, not when a file is loaded: a variable that is not set
costs that server and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from kedge.config.environment import expand_references, has_references
from kedge.config.errors import Problem
from kedge.config.files import Document
from kedge.config.keys import Key, quote
from kedge.config.schema import McpServerConfig
from kedge.config.schema_tree import describe_value, find_node, find_problems
from kedge.config.toml_layout import TomlLayout

JSON_NAME = ".mcp.json"
MAX_SERVERS = 100  # of one .mcp.json
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_OF_PROCESSES = ("args", "env", "cwd")
_OF_ADDRESSES = ("headers", "oauth")
# What `.mcp.json` takes literally and a configuration file does not: `$$`, and `${` without a name.
_LITERAL = re.compile(r"\$\$|\$\{(?![A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?\})")
_TYPES = ("stdio", "http", "streamable-http", "sse")


class InvalidServer(Exception):
    """One line: why a server cannot be used, and what to do."""


def find_server_problem(name: str, server: McpServerConfig) -> tuple[Key, str] | None:
    """Return the first mistake in the settings of a server, with its key below `mcp`, or None."""
    if not _NAME.fullmatch(name):
        return (name,), "a server's name has up to 32 letters, digits, - and _, and starts with a letter or digit"
    if server.command is not None and server.url is not None:
        return (name,), "has both command and url; keep command for a program to start, or url for an address"
    if server.command is None and server.url is None:
        return (name,), "needs command, a program to start, or url, an address"
    kind, others = ("command", _OF_ADDRESSES) if server.url is None else ("url", _OF_PROCESSES)
    defaults = McpServerConfig()
    for other in others:
        if getattr(server, other) != getattr(defaults, other):
            return (name, other), f"has no effect on a server with {kind}; remove it"
    if server.command is not None:
        return None if server.command.strip() else ((name, "command"), "is empty; write the program to start")
    url = server.url or ""
    problem = None if has_references(url) else _find_url_problem(url)
    return None if problem is None else ((name, "url"), problem)


def expand_server(server: McpServerConfig, env: Mapping[str, str]) -> McpServerConfig:
    """Return the server with its references replaced. Raises `InvalidServer` if a variable is not set."""
    problems: list[tuple[Key, str]] = []
    given = msgspec.json.decode(msgspec.json.encode(server))  # with lists for tuples
    values = expand_references(given, env, (), lambda key, why: problems.append((key, why)))
    for key, why in problems:
        raise InvalidServer(f"{key[0]}: {why}")
    expanded = msgspec.convert(values, McpServerConfig)
    if expanded.url is not None and (why := _find_url_problem(expanded.url)) is not None:
        raise InvalidServer(f"url: {why}")
    return expanded


def _find_url_problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is not an address"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "expected http(s)://HOST[:PORT][/PATH]"
    return "has a password in it; use headers, or kedge mcp login" if parts.username or parts.password else None


def parse_mcp_json(path: Path, content: bytes) -> Document:
    """Read the servers of a `.mcp.json`, as Claude Code writes them. Problems leave out the server that has them."""
    import hashlib

    layout, digest = TomlLayout(""), hashlib.sha256(content).digest()

    def unusable(why: str) -> Document:
        return Document(path, {}, layout, digest, (Problem(str(path), 0, "mcp", f"{why}; no server of it is used"),))

    try:
        document: Any = msgspec.json.decode(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # also MsgspecError and UnicodeError
        return unusable(f"cannot be read as JSON ({str(error)[:100]})")
    listed: Any = cast("dict[str, Any]", document).get("mcpServers", {}) if isinstance(document, dict) else None
    if not isinstance(listed, dict):
        return unusable('expected {"mcpServers": {NAME: …}}')
    servers: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, entry in list(cast("dict[str, Any]", listed).items())[:MAX_SERVERS]:
        values, why = convert_entry(name, entry)
        if why is None:
            servers[name] = values
        else:
            key = name if _NAME.fullmatch(name) else quote(name[:50])
            problems.append(Problem(str(path), 0, f"mcp.{key}", why))
    if len(cast("dict[str, Any]", listed)) > MAX_SERVERS:
        problems.append(Problem(str(path), 0, "mcp", f"has more than {MAX_SERVERS} servers; the others are not used"))
    return Document(path, {"mcp": servers} if servers else {}, layout, digest, tuple(problems))


def convert_entry(name: str, entry: Any) -> tuple[dict[str, Any], str | None]:
    """Return an entry as `[mcp.NAME]` would have it, and why it cannot be used, if so."""
    if not isinstance(entry, dict):
        return {}, f"expected an object, not {describe_value(entry)}"
    fields = cast("dict[str, Any]", entry)
    kind = fields.get("type", "stdio" if "command" in fields else "http")
    if kind not in _TYPES:
        return {}, f"has an unknown type; use one of {', '.join(_TYPES)}"
    names = ("command", "args", "env", "cwd") if kind == "stdio" else ("url", "headers")
    values = {each: _escape(fields[each]) for each in names if fields.get(each) is not None}
    if fields.get("disabled") is True:
        values["enabled"] = False
    timeout_ms = fields.get("timeout")
    if isinstance(timeout_ms, int | float) and not isinstance(timeout_ms, bool) and timeout_ms > 0:
        values["timeout_s"] = timeout_ms / 1000
    if isinstance(oauth := fields.get("oauth"), dict):
        names = {"clientId": "client_id", "callbackPort": "callback_port"}
        login = {names[each]: _escape(value) for each, value in cast("dict[str, Any]", oauth).items() if each in names}
        values |= {"oauth": login} if login else {}
    for key, why in find_problems(values, find_node(("mcp", name))):
        return {}, f"{'.'.join(map(str, key))}: {why}"
    problem = find_server_problem(name, msgspec.convert(values, McpServerConfig))
    return values, None if problem is None else ": ".join([*map(str, problem[0][1:]), problem[1]])


def _escape(value: Any) -> Any:
    match value:
        case str():
            return _LITERAL.sub(lambda found: "$" + found[0] if found[0] == "${" else "$$$$", value)
        case list():
            return [_escape(each) for each in cast("list[Any]", value)]
        case dict():
            return {name: _escape(each) for name, each in cast("dict[str, Any]", value).items()}
        case _:
            return value

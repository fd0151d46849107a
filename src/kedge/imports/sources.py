"""Looks for the set-ups of other agents: one function for each agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from kedge.config.toml_edit import format_value
from kedge.imports.convert import convert_hooks, convert_rule, convert_server
from kedge.imports.items import AGENTS, Agent, Item, Kind, Reader, Scope, table_of, texts_of
from kedge.imports.secrets import has_secret

_TEXTS: tuple[tuple[Kind, str], ...] = (("command", "commands"), ("agent", "agents"))


def _scoped(user: Path | None, project: Path) -> list[tuple[Path, Scope]]:
    """Return a path of the user's and one of the project with their scopes."""
    own: list[tuple[Path, Scope]] = [] if user is None else [(user, "user")]
    return [*own, (project, "workspace")]


class Places(NamedTuple):
    home: Path
    config: Path  # of the user: `~/.config`
    project: Path
    env: Mapping[str, str]


class _Finder:
    """Makes the items of one agent."""

    def __init__(self, agent: Agent, reader: Reader, places: Places) -> None:
        self.agent: Agent = agent
        self.reader = reader
        self.places = places

    def item(self, kind: Kind, name: str, path: Path, **fields: Any) -> Item:
        return Item(agent=self.agent, kind=kind, name=name, path=str(path), **fields)

    def servers(self, value: Any, path: Path, scope: Scope = "user") -> Iterator[Item]:
        for name, entry in table_of(value).items():
            if not isinstance(entry, dict):
                yield self.item("mcp", name, path, scope=scope, state="left_out", note="is not a table")
                continue
            server = convert_server(name, cast("dict[str, Any]", entry))
            if server.problem is not None:
                yield self.item("mcp", name, path, scope=scope, state="left_out", note=server.problem)
                continue
            note = f"its secrets are not copied: set {', '.join(server.variables)}" if server.variables else ""
            yield self.item("mcp", name, path, scope=scope, note=note, value=server.values)

    def rules(self, kind: Kind, written: list[str], path: Path, scope: Scope = "user") -> Iterator[Item]:
        for number, each in enumerate(dict.fromkeys(written), 1):
            if has_secret(each):
                why = "it has a secret in it"
                yield self.item(kind, f"with-secret-{number}", path, scope=scope, state="left_out", note=why)
                continue
            rule = convert_rule(each)
            if rule is None:
                why = "there is no rule like it here"
                yield self.item(kind, each, path, scope=scope, state="left_out", note=why)
            else:
                note = "" if rule == each else f"from {each}"
                yield self.item(kind, rule, path, scope=scope, note=note, value=rule)

    def hooks(self, value: Any, path: Path, scope: Scope = "user") -> Iterator[Item]:
        found, left_out = convert_hooks(value)
        for number, (event, hook) in enumerate(found, 1):
            if has_secret(hook["command"]):
                left_out.append(f"{event}: its command has a secret in it; let it read a variable, and import again")
                continue
            yield self.item("hook", f"{event}-{number}", path, scope=scope, note=hook["command"], value=(event, hook))
        for number, why in enumerate(dict.fromkeys(left_out), 1):
            yield self.item("hook", f"left-out-{number}", path, scope=scope, state="left_out", note=why)

    def instructions(self, path: Path) -> Iterator[Item]:
        text = self.reader.read_text(path)
        if text and text.strip():
            yield self.item("instructions", path.name, path, value=text.strip())

    def project_instructions(self, *names: str) -> Iterator[Item]:
        for name in names:
            path = self.places.project / name
            if path.is_file():
                yield self.item("instructions", name, path, scope="workspace", state="used")

    def used(self, kind: Kind, directory: Path, pattern: str, scope: Scope = "user") -> Iterator[Item]:
        """What Kedge reads where it is."""
        note = "in a trusted directory" if scope == "workspace" else ""
        for path in self.reader.list_files(directory, pattern) if directory.is_dir() else ():
            name = path.parent.name if path.name == "SKILL.md" else _name_of(path, directory)
            yield self.item(kind, name, path, scope=scope, state="used", note=note)

    def markdown(self, kind: Kind, directory: Path) -> Iterator[Item]:
        for path in self.reader.list_files(directory, "*.md") if directory.is_dir() else ():
            if (text := self.reader.read_text(path)) is not None:
                yield self.item(kind, _name_of(path, directory), path, value=text)

    def skills(self, directory: Path) -> Iterator[Item]:
        for path in self.reader.list_files(directory, "SKILL.md") if directory.is_dir() else ():
            if not any(part.startswith(".") for part in path.relative_to(directory).parts):  # those of the agent itself
                yield self.item("skill", path.parent.name, path, value=str(path.parent))


def find_items(places: Places, agents: tuple[Agent, ...] = AGENTS) -> tuple[list[Item], Reader]:
    """Return what was found, each id once, and the reader with its problems. Changes nothing."""
    reader = Reader()
    found: dict[str, Item] = {}
    for agent in agents:
        for item in _SOURCES[agent](_Finder(agent, reader, places)):
            if item.id in found and found[item.id].value != item.value:
                continue  # the first one is the stronger
            found.setdefault(item.id, item)
    return list(found.values()), reader


def _find_claude(find: _Finder) -> Iterator[Item]:
    home, project, reader = find.places.home, find.places.project, find.reader
    configured = find.places.env.get("CLAUDE_CONFIG_DIR", "")
    directory = Path(configured) if configured.startswith("/") else home / ".claude"
    state_file = directory / ".claude.json" if configured.startswith("/") else home / ".claude.json"
    state = reader.read_json(state_file)
    yield from find.servers(state.get("mcpServers"), state_file)
    yield from find.servers(table_of(state, "projects", str(project)).get("mcpServers"), state_file, "workspace")
    yield from _find_claude_settings(find, directory / "settings.json", "user")
    for name in ("settings.json", "settings.local.json"):
        yield from _find_claude_settings(find, project / ".claude" / name, "workspace")
    shared = project / ".mcp.json"
    for name in table_of(reader.read_json(shared, project), "mcpServers"):
        note = "in a trusted directory"
        yield find.item("mcp", name, shared, scope="workspace", state="used", note=note)
    yield from find.instructions(directory / "CLAUDE.md")
    yield from find.project_instructions("CLAUDE.md")
    for base, scope in _scoped(directory, project / ".claude"):
        is_read = scope == "workspace" or directory == home / ".claude"
        yield from find.used("skill", base / "skills", "SKILL.md", scope) if is_read else find.skills(base / "skills")
        for kind, name in _TEXTS:
            used = find.used(kind, base / name, "*.md", scope)
            yield from used if is_read else find.markdown(kind, base / name)


def _find_claude_settings(find: _Finder, path: Path, scope: Scope) -> Iterator[Item]:
    root = find.places.project if scope == "workspace" else None
    settings = find.reader.read_json(path, root)
    permissions = table_of(settings, "permissions")
    yield from find.rules("allow", texts_of(permissions.get("allow")), path, scope)
    yield from find.rules("deny", texts_of(permissions.get("deny")), path, scope)
    for each in texts_of(permissions.get("ask")):
        note = "what no rule allows is asked here anyway"
        yield find.item("allow", f"ask {each}", path, scope=scope, state="left_out", note=note)
    match permissions.get("defaultMode"):
        case "acceptEdits":
            yield find.item("mode", "auto-edit", path, scope=scope, note="from acceptEdits", value="auto-edit")
        case "plan":
            yield find.item("mode", "plan", path, scope=scope, value="plan")
        case "bypassPermissions":
            note = "allowing everything is not taken over; set permissions.mode yourself"
            yield find.item("mode", "yolo", path, scope=scope, state="left_out", note=note)
        case _:
            pass
    yield from find.hooks(settings.get("hooks"), path, scope)


def _find_codex(find: _Finder) -> Iterator[Item]:
    configured = find.places.env.get("CODEX_HOME", "")
    directory = Path(configured) if configured.startswith("/") else find.places.home / ".codex"
    path = directory / "config.toml"
    settings = find.reader.read_toml(path)
    yield from find.servers(_list_codex_servers(settings), path)
    own = find.places.project / ".codex" / "config.toml"
    yield from find.servers(_list_codex_servers(find.reader.read_toml(own, find.places.project)), own, "workspace")
    hooks_file = directory / "hooks.json"
    yield from find.hooks(find.reader.read_json(hooks_file).get("hooks"), hooks_file)
    yield from find.hooks(settings.get("hooks"), path)
    yield from find.instructions(directory / "AGENTS.md")
    yield from find.project_instructions("AGENTS.md")
    yield from find.markdown("command", directory / "prompts")
    yield from find.skills(directory / "skills")
    yield from find.used("skill", find.places.home / ".agents" / "skills", "SKILL.md")
    yield from _find_codex_agents(find, table_of(settings, "agents"), directory)


def _find_codex_agents(find: _Finder, listed: Mapping[str, Any], directory: Path) -> Iterator[Item]:
    """Sub-agents: TOML files in `agents`, and those that the settings name."""
    files: dict[Path, tuple[str, Any]] = {}
    for name, entry in listed.items():
        if isinstance(file := table_of(entry).get("config_file"), str):
            files[directory / Path(file).expanduser()] = name, table_of(entry).get("description")
    agents = directory / "agents"
    for path in find.reader.list_files(agents, "*.toml") if agents.is_dir() else ():
        files.setdefault(path, (path.stem, None))
    for path, (name, description) in files.items():
        fields = find.reader.read_toml(path)
        name = fields["name"] if isinstance(fields.get("name"), str) else name
        head = {"description": fields.get("description", description), "model": fields.get("model")}
        text = fields.get("developer_instructions")
        if isinstance(text, str) and isinstance(head["description"], str) and "/" not in name:
            texts = {key: value for key, value in head.items() if isinstance(value, str)}
            yield find.item("agent", name, path, value=write_markdown(texts, text))
        elif fields:
            note = "it has no description or no developer_instructions"
            yield find.item("agent", name, path, state="left_out", note=note)


def _list_codex_servers(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _convert_codex_server(entry) for name, entry in table_of(settings, "mcp_servers").items()}


def _convert_codex_server(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    fields = dict(cast("dict[str, Any]", entry))
    headers = dict(table_of(fields, "http_headers"))
    headers |= {name: f"${{{variable}}}" for name, variable in table_of(fields, "env_http_headers").items()}
    if isinstance(token := fields.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    converted = {name: fields[name] for name in ("command", "args", "cwd", "url") if name in fields}
    env = {**table_of(fields, "env"), **{name: f"${{{name}}}" for name in texts_of(fields.get("env_vars"))}}
    converted |= {name: value for name, value in (("env", env), ("headers", headers)) if value}
    if fields.get("enabled") is False:
        converted["disabled"] = True
    if isinstance(timeout := fields.get("tool_timeout_sec"), int | float):
        converted["timeout"] = timeout * 1000
    return _with_tools(converted, fields.get("enabled_tools"), fields.get("disabled_tools"))


def _with_tools(server: dict[str, Any], allow: Any, deny: Any) -> dict[str, Any]:
    """Return the server with the tools that are offered, as `[mcp.NAME]` has them."""
    return {**server, "tools": {"allow": allow, "deny": deny}} if allow or deny else server


def _find_opencode(find: _Finder) -> Iterator[Item]:
    project, config = find.places.project, find.places.config / "opencode"
    for directory, scope in _scoped(config, project):
        root = project if scope == "workspace" else None
        for name in ("opencode.json", "opencode.jsonc"):
            path = directory / name
            settings = find.reader.read_json(path, root)
            servers = {key: _convert_opencode_server(entry) for key, entry in table_of(settings, "mcp").items()}
            yield from find.servers(servers, path, scope)
            yield from _find_opencode_rules(find, settings.get("permission"), path, scope)
            yield from _find_opencode_texts(find, settings, path, scope)
    yield from find.instructions(config / "AGENTS.md")
    yield from find.project_instructions("AGENTS.md")
    for kind, plural in _TEXTS:
        for name in (plural, plural.removesuffix("s")):  # both are read there
            yield from find.used(kind, config / name, "*.md")
            yield from find.used(kind, project / ".opencode" / name, "*.md", "workspace")
    yield from find.skills(config / "skills")


def _convert_opencode_server(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    fields = cast("dict[str, Any]", entry)
    command = texts_of(fields.get("command"))
    converted: dict[str, Any] = {"url": fields["url"]} if "url" in fields else {}
    if command:
        converted = {"command": command[0], "args": command[1:], "env": table_of(fields, "environment")}
    if headers := table_of(fields, "headers"):
        converted["headers"] = headers
    return {**converted, "disabled": True} if fields.get("enabled") is False else converted


def _find_opencode_rules(find: _Finder, value: Any, path: Path, scope: Scope) -> Iterator[Item]:
    for tool, setting in table_of(value).items():
        given = table_of(setting) if isinstance(setting, dict) else {"*": setting}
        for pattern, decision in given.items():
            written = tool if pattern == "*" else f"{tool}({pattern})"
            if decision in ("allow", "deny"):
                yield from find.rules(decision, [written], path, scope)


def _find_opencode_texts(find: _Finder, settings: Mapping[str, Any], path: Path, scope: Scope) -> Iterator[Item]:
    """Commands and agents that are written in the settings."""
    kinds: tuple[tuple[Kind, str], ...] = (("command", "template"), ("agent", "prompt"))
    for kind, field in kinds:
        for name, entry in table_of(settings, kind).items():
            fields = table_of(entry)
            if isinstance(text := fields.get(field), str) and "{file:" not in text:
                names = (
                    ("description", "agent", "model", "mode") if kind == "command" else ("description", "model", "mode")
                )
                head = {key: fields[key] for key in names if isinstance(fields.get(key), str)}
                yield find.item(kind, name, path, scope=scope, value=write_markdown(head, text))


def _find_crush(find: _Finder) -> Iterator[Item]:
    project, config = find.places.project, find.places.config / "crush"
    files = [*_scoped(config / "crush.json", project / "crush.json"), *_scoped(None, project / ".crush.json")]
    for path, scope in files:
        settings = find.reader.read_json(path, project if scope == "workspace" else None)
        servers = {name: _convert_crush_server(entry) for name, entry in table_of(settings, "mcp").items()}
        yield from find.servers(servers, path, scope)
        yield from find.rules("allow", texts_of(table_of(settings, "permissions").get("allowed_tools")), path, scope)
        yield from find.hooks(settings.get("hooks"), path, scope)
    yield from find.instructions(config / "CRUSH.md")
    yield from find.markdown("command", config / "commands")
    yield from find.skills(config / "skills")


def _convert_crush_server(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    fields = dict(cast("dict[str, Any]", entry))
    if isinstance(timeout_s := fields.get("timeout"), int | float):
        fields["timeout"] = timeout_s * 1000
    return _with_tools(fields, fields.get("enabled_tools"), fields.get("disabled_tools"))


def _find_gemini(find: _Finder) -> Iterator[Item]:
    project, directory = find.places.project, find.places.home / ".gemini"
    for base, scope in _scoped(directory, project / ".gemini"):
        path = base / "settings.json"
        settings = find.reader.read_json(path, project if scope == "workspace" else None)
        servers = {name: _convert_gemini_server(entry) for name, entry in table_of(settings, "mcpServers").items()}
        yield from find.servers(servers, path, scope)
        tools = table_of(settings, "tools")
        allowed = texts_of(tools.get("allowed")) or texts_of(settings.get("allowedTools"))
        denied = texts_of(tools.get("exclude")) or texts_of(settings.get("excludeTools"))
        yield from find.rules("allow", [_open_command(each) for each in allowed], path, scope)
        yield from find.rules("deny", [_open_command(each) for each in denied], path, scope)
        for event in table_of(settings, "hooks"):
            note = "events and tools have other names there"
            yield find.item("hook", event, path, scope=scope, state="left_out", note=note)
        yield from _find_gemini_commands(find, base / "commands", scope)
    extensions = directory / "extensions"
    for path in find.reader.list_files(extensions, "gemini-extension.json") if extensions.is_dir() else ():
        manifest = find.reader.read_json(path)
        listed = table_of(manifest, "mcpServers").items()
        servers = {name: _convert_gemini_server(entry, path.parent) for name, entry in listed}
        yield from find.servers(servers, path)
        yield from _find_gemini_commands(find, path.parent / "commands", "user")
    yield from find.instructions(directory / "GEMINI.md")
    yield from find.project_instructions("GEMINI.md")


def _open_command(written: str) -> str:
    """`run_shell_command(git)` means every command that begins so."""
    return f"{written[:-1]}:*)" if written.startswith("run_shell_command(") and written.endswith(")") else written


def _convert_gemini_server(entry: Any, extension: Path | None = None) -> Any:
    if not isinstance(entry, dict):
        return entry
    fields = cast("dict[str, Any]", _replace_root(entry, extension) if extension else entry)
    names = ("command", "args", "env", "cwd", "headers", "timeout")
    converted: dict[str, Any] = {name: fields[name] for name in names if name in fields}
    if "command" not in fields:
        converted |= {"url": fields.get("httpUrl", fields.get("url")), "type": "http" if "httpUrl" in fields else "sse"}
    return _with_tools(converted, fields.get("includeTools"), fields.get("excludeTools"))


def _replace_root(value: Any, root: Path) -> Any:
    match value:
        case str():
            return value.replace("${extensionPath}", str(root)).replace("${/}", "/")
        case list():
            return [_replace_root(each, root) for each in cast("list[Any]", value)]
        case dict():
            return {name: _replace_root(each, root) for name, each in cast("dict[str, Any]", value).items()}
        case _:
            return value


def _find_gemini_commands(find: _Finder, directory: Path, scope: Scope) -> Iterator[Item]:
    for path in find.reader.list_files(directory, "*.toml") if directory.is_dir() else ():
        fields = find.reader.read_toml(path, find.places.project if scope == "workspace" else None)
        if isinstance(prompt := fields.get("prompt"), str):
            description = fields.get("description")
            head = {"description": description} if isinstance(description, str) else {}
            text = write_markdown(head, convert_gemini_prompt(prompt))
            yield find.item("command", _name_of(path, directory), path, scope=scope, value=text)


def convert_gemini_prompt(prompt: str) -> str:
    """`{{args}}`, `!{command}` and `@{file}` in the form of Markdown commands."""
    text, at = "", 0
    while at < len(prompt):
        mark = prompt[at : at + 2]
        if mark in ("!{", "@{") and (end := _find_brace(prompt, at + 2)) > 0:
            inside = prompt[at + 2 : end].strip()
            text += f"!`{inside}`" if mark == "!{" else f"@{inside}"
            at = end + 1
        else:
            text += prompt[at]
            at += 1
    return text.replace("{{args}}", "$ARGUMENTS")


def _find_brace(text: str, at: int) -> int:
    """Return the index of the closing brace, or 0."""
    depth = 1
    for index in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return 0


def write_markdown(head: Mapping[str, str], text: str) -> str:
    lines = "".join(f"{name}: {format_value(' '.join(value.split()))}\n" for name, value in head.items())
    return f"---\n{lines}---\n{text.strip()}\n" if head else f"{text.strip()}\n"


def _name_of(path: Path, directory: Path) -> str:
    return str(path.relative_to(directory).with_suffix(""))


_SOURCES: dict[Agent, Callable[[_Finder], Iterator[Item]]] = {
    "claude": _find_claude,
    "codex": _find_codex,
    "opencode": _find_opencode,
    "crush": _find_crush,
    "gemini": _find_gemini,
}

"""Directories in plugin layout: `.claude-plugin/plugin.json` beside `skills/`, `commands/`, `agents/`, `hooks/`.

`find_plugins` returns those of the configuration (`plugins`). Their files for hooks and MCP servers are named here, and
read by the parts that use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from kedge.config.schema import Config
from kedge.files.safe_open import read_regular_file
from kedge.skills.definitions import Kind, Problem, is_name
from kedge.skills.places import Place, resolve_plugin_path, show

MANIFESTS = (".claude-plugin/plugin.json", ".codex-plugin/plugin.json")
MARKETPLACE = ".claude-plugin/marketplace.json"
MAX_MANIFEST_BYTES = 1024 * 1024
MAX_PLUGINS = 100
_PARTS = ("skills", "commands", "agents", "hooks", ".mcp.json")
_FIELDS: dict[Kind, str] = {"skill": "skills", "command": "commands", "agent": "agents"}


class Plugin(msgspec.Struct, frozen=True):
    """A plugin; its paths exist, and no link in them leads out of its root."""

    name: str
    root: Path  # resolved
    manifest: Mapping[str, Any] = {}  # as in its file; `hooks` and `mcpServers` may be there instead of in files
    hook_files: tuple[Path, ...] = ()  # JSON, usually `hooks/hooks.json`
    mcp_files: tuple[Path, ...] = ()  # JSON, usually `.mcp.json`

    def list_places(self, kind: Kind) -> list[Place]:
        """Return the directories of the plugin to search for files of one kind."""
        paths = [self.root / _FIELDS[kind], *self.list_paths(_FIELDS[kind])]
        return [Place(kind, path, "plugin", self.root, self.name, str(self.root)) for path in dict.fromkeys(paths)]

    def list_paths(self, field: str) -> list[Path]:
        """Return the paths that a field of the manifest names, if they are in the plugin."""
        return _list_paths(self.root, self.manifest.get(field))


def find_plugins(config: Config, env: Mapping[str, str], problems: list[Problem] | None = None) -> list[Plugin]:
    """Return the configured plugins, in their order; a name is used once. What is no plugin becomes a problem."""
    problems = [] if problems is None else problems
    found: dict[str, Plugin] = {}
    for entry in config.plugins[:MAX_PLUGINS]:
        path = resolve_plugin_path(entry, env)
        if path is None:
            problems.append(Problem(entry, "a plugin is named by an absolute path, or one that begins with ~/"))
        elif (plugin := _read_plugin(path, problems)) is not None:
            if plugin.name in found:
                problems.append(Problem(show(path), f"another plugin is named {plugin.name!r}; this one is not used"))
            else:
                found[plugin.name] = plugin
    return list(found.values())


def _read_plugin(root: Path, problems: list[Problem]) -> Plugin | None:
    if not root.is_dir():
        problems.append(Problem(show(root), "there is no such directory"))
        return None
    manifest: dict[str, Any] = {}
    file = next((root / name for name in MANIFESTS if (root / name).is_file()), None)
    if file is not None:
        data = read_regular_file(file, MAX_MANIFEST_BYTES)
        try:
            manifest = msgspec.json.decode(data or b"", type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError) as error:
            problems.append(Problem(show(file), f"it is not valid: {error}"))
    elif not any((root / part).exists() for part in _PARTS):
        problems.append(Problem(show(root), _explain_missing(root)))
        return None
    name = manifest.get("name")
    name = name if isinstance(name, str) and is_name(name) else root.name
    if not is_name(name):
        problems.append(Problem(show(root), "a plugin's name has letters, digits and hyphens only"))
        return None
    return Plugin(
        name,
        root,
        manifest,
        hook_files=_list_files(root, "hooks/hooks.json", manifest.get("hooks")),
        mcp_files=_list_files(root, ".mcp.json", manifest.get("mcpServers")),
    )


def _explain_missing(root: Path) -> str:
    if (root / MARKETPLACE).is_file():
        return "it is a marketplace; name the directories of its plugins instead"
    return f"it is no plugin: it has neither {MANIFESTS[0]} nor any of {', '.join(_PARTS)}"


def _list_files(root: Path, usual: str, named: Any) -> tuple[Path, ...]:
    paths = dict.fromkeys([*_list_paths(root, usual), *_list_paths(root, named)])
    return tuple(path for path in paths if path.is_file())


def _list_paths(root: Path, named: Any) -> list[Path]:
    names = [named] if isinstance(named, str) else cast("Sequence[Any]", named) if isinstance(named, list) else []
    paths: list[Path] = []
    for name in names:
        try:
            path = (root / name).resolve(strict=True) if isinstance(name, str) and not name.startswith("/") else None
        except (OSError, RuntimeError, ValueError):
            continue
        if path is not None and path.is_relative_to(root):
            paths.append(path)
    return paths

"""Hooks of plugins: what their `hooks/hooks.json` has, as hooks of the configuration. Blocks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import msgspec

from kedge.config.schema import Config, HookConfig, HooksConfig
from kedge.imports.convert import convert_hooks
from kedge.imports.items import Reader
from kedge.skills.plugins import find_plugins

_PREFIX = "export CLAUDE_PLUGIN_ROOT="


def add_plugin_hooks(config: Config, env: Mapping[str, str]) -> HooksConfig:
    """Return the hooks of the configuration and of its plugins. Those of a kind that is not known are left out."""
    names = {field.encode_name: field.name for field in msgspec.structs.fields(HooksConfig)}
    found: dict[str, tuple[HookConfig, ...]] = {name: getattr(config.hooks, name) for name in names.values()}
    for plugin in find_plugins(config, env):
        root = shlex.quote(str(plugin.root))
        for path in plugin.hook_files:
            for event, fields in convert_hooks(Reader().read_json(path).get("hooks"))[0]:
                hook = msgspec.convert(fields, HookConfig)
                command = f"{_PREFIX}{root} KEDGE_PLUGIN_ROOT={root}\n{hook.command}"
                found[names[event]] += (msgspec.structs.replace(hook, command=command),)
    return HooksConfig(**found)


def strip_root(command: str) -> str:
    """Return the command as it is in its file."""
    return command.partition("\n")[2] if command.startswith(_PREFIX) else command

"""Which keys of an untrusted `kedge.toml` are ignored.

Such a file came with a repository that anyone may have written. It must not read secrets, choose where prompts are
sent, run commands, or grant itself rights. Ignored keys are reported; the other keys of the file apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

import msgspec

from kedge.config.keys import Key
from kedge.config.schema import UNATTENDED_WAIT_S, Config
from kedge.config.schema_tree import Leaf, find_node
from kedge.protocol.runs import MODES

NOT_THERE = "has an effect only in your own file"
NOT_TRUSTED = "needs a trusted directory"
REFERS = "takes a value from the environment, which needs a trusted directory"


class Ignored(msgspec.Struct, frozen=True):
    file: str
    line: int
    key: str
    why: str


def is_trusted(directory: Path, trusted: Sequence[str], home: Path) -> bool:
    real = directory.resolve()
    return any(real.is_relative_to(root) for root in (resolve_trusted_entry(each, home) for each in trusted) if root)


def resolve_trusted_entry(entry: str, home: Path) -> Path | None:
    """Return the directory of an entry of `trusted`; None for a relative path."""
    path = home / entry[2:] if entry.startswith("~/") else home if entry == "~" else Path(entry)
    return path.resolve() if path.is_absolute() else None


def why_ignored(key: Key, value: Any, users: Config, *, is_trusted: bool) -> str | None:
    """Return why a key of a workspace's file is ignored, or None. `users` is the configuration set by the user."""
    if key == ("trusted",):
        return NOT_THERE
    if is_trusted:
        return None
    leaf = find_node(key)
    untrusted = leaf.untrusted if isinstance(leaf, Leaf) else "no"
    if untrusted == "yes" or (value == {} and key[0] != "mcp"):
        return None
    return _why_wider(key, value, users) if untrusted == "stricter" else NOT_TRUSTED


def _why_wider(key: Key, value: Any, users: Config) -> str | None:
    match key:
        case ("model",) | ("small_model",):
            provider, _, name = cast("str", value).strip().partition("/")
            is_file = provider == "local" and name not in ("", "starter")  # parsed by native code
            return f"loads a model file, which {NOT_TRUSTED}" if is_file else None
        case ("permissions", "mode"):
            if value == "auto" and users.permissions.mode != "auto":
                return f"runs commands without asking, which {NOT_TRUSTED}"
            is_wider = MODES.index(value) > MODES.index(users.permissions.mode)
            return f'is less strict than "{users.permissions.mode}", which {NOT_TRUSTED}' if is_wider else None
        case ("permissions", "unapproved"):
            is_wider = value != "ask" and users.permissions.unapproved == "ask"
            return f"asks less often, which {NOT_TRUSTED}" if is_wider else None
        case ("sandbox", "mode"):
            # A repository may turn a sandbox on, but not choose which: mode auto takes the best one.
            if users.sandbox.mode == "off":
                return None if value in ("off", "auto") else f"chooses the kind of sandbox, which {NOT_TRUSTED}"
            return f"is already set by you, and changing it {NOT_TRUSTED}" if value != users.sandbox.mode else None
        case ("sandbox", "network"):
            return f"is off, and turning it on {NOT_TRUSTED}" if value and not users.sandbox.network else None
        case ("sandbox", "unix_sockets"):
            return NOT_TRUSTED if value and not users.sandbox.unix_sockets else None
        case ("sandbox", "ask"):
            return f"asks less often, which {NOT_TRUSTED}" if users.sandbox.ask and not value else None
        case ("agent", "max_steps"):
            is_wider = value > users.agent.max_steps
            return f"is more than {users.agent.max_steps}, which {NOT_TRUSTED}" if is_wider else None
        case ("agent", "max_cost") if users.agent.max_cost is None:
            # Mode auto relies on a limit that the user has chosen.
            return f"has no limit of yours that it would lower, and setting one {NOT_TRUSTED}"
        case ("agent", "max_cost" | "max_cost_session" | "max_cost_day" as name):
            most: float | None = getattr(users.agent, name)
            return f"is more than {most:g}, which {NOT_TRUSTED}" if most is not None and value > most else None
        case ("agent", "max_wait_s"):
            most = UNATTENDED_WAIT_S if users.agent.max_wait_s is None else users.agent.max_wait_s
            return f"is more than {most:g}, which {NOT_TRUSTED}" if value > most else None
        case ("agent", "language_servers"):
            return f"starts programs, which {NOT_TRUSTED}" if value and not users.agent.language_servers else None
        case ("agent", "context_files"):
            if all(map(_stays_inside, cast("list[str]", value))):
                return None
            return f"points outside the workspace, which {NOT_TRUSTED}"
        case _:
            return NOT_TRUSTED


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and not name.startswith("~")

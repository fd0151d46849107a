"""What a `kedge.toml` of a directory that the user does not trust may say: nothing that costs, sends or permits.

Such a file came with a repository that anybody may have written. It must not get at keys, choose who reads prompts,
run commands, or grant itself rights; that it tried is told, and the rest of it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

import msgspec

from kedge.config.keys import Key
from kedge.config.schema import Config
from kedge.config.schema_tree import Leaf, find
from kedge.protocol.runs import MODES

NOT_THERE = "counts only in the user's own file"
NOT_TRUSTED = "needs a trusted directory"
REFERS = "takes a value from the environment, which needs a trusted directory"


class Ignored(msgspec.Struct, frozen=True):
    """A key that does not count, and why."""

    file: str
    line: int
    key: str
    why: str


def is_trusted(directory: Path, trusted: Sequence[str], home: Path) -> bool:
    """Whether the directory is one that the user named, or lies in one."""
    real = directory.resolve()
    return any(real.is_relative_to(place) for place in (trusted_path(each, home) for each in trusted) if place)


def trusted_path(entry: str, home: Path) -> Path | None:
    """The directory that an entry names; one that is not absolute names none."""
    path = home / entry[2:] if entry.startswith("~/") else home if entry == "~" else Path(entry)
    return path.resolve() if path.is_absolute() else None


def refusal(key: Key, value: Any, users: Config, *, is_trusted: bool) -> str | None:
    """Why a key of a workspace's file does not count, or None if it does. `users` is what the user has set."""
    if key == ("trusted",):
        return NOT_THERE
    if is_trusted:
        return None
    leaf = find(key)
    untrusted = leaf.untrusted if isinstance(leaf, Leaf) else "no"
    if untrusted == "yes" or value == {}:
        return None
    return _widens(key, value, users) if untrusted == "stricter" else NOT_TRUSTED


def _widens(key: Key, value: Any, users: Config) -> str | None:
    match key:
        case ("model",) | ("small_model",):
            provider, _, name = cast("str", value).strip().partition("/")
            is_file = provider == "local" and name not in ("", "starter")  # which native code would read
            return f"names a file to be loaded, which {NOT_TRUSTED}" if is_file else None
        case ("permissions", "mode"):
            is_wider = MODES.index(value) > MODES.index(users.permissions.mode)
            return f'is laxer than "{users.permissions.mode}", which {NOT_TRUSTED}' if is_wider else None
        case ("permissions", "unapproved"):
            is_wider = value != "ask" and users.permissions.unapproved == "ask"
            return f"asks less, which {NOT_TRUSTED}" if is_wider else None
        case ("sandbox", "mode"):
            # Which one is better is not for a repository to say: it may only ask for one where there is none.
            is_other = users.sandbox.mode not in ("off", value)
            return f"is set already, and another {NOT_TRUSTED}" if is_other else None
        case ("sandbox", "network"):
            return f"is switched off, and to have one {NOT_TRUSTED}" if value and not users.sandbox.network else None
        case ("sandbox", "unix_sockets"):
            return NOT_TRUSTED if value and not users.sandbox.unix_sockets else None
        case ("sandbox", "ask"):
            return f"asks less, which {NOT_TRUSTED}" if users.sandbox.ask and not value else None
        case ("agent", "max_steps"):
            is_wider = value > users.agent.max_steps
            return f"is more than {users.agent.max_steps}, which {NOT_TRUSTED}" if is_wider else None
        case ("agent", "max_cost"):
            most = users.agent.max_cost
            return f"is more than {most:g}, which {NOT_TRUSTED}" if most is not None and value > most else None
        case ("agent", "context_files"):
            if all(map(_stays_inside, cast("list[str]", value))):
                return None
            return f"leads out of the workspace, which {NOT_TRUSTED}"
        case _:
            return NOT_TRUSTED


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and not name.startswith("~")

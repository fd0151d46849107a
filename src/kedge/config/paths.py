"""Which files are looked for, the weakest first: the system's, the user's, and those of the workspace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

Layer = Literal["default", "system", "user", "workspace", "environment"]

NAME = "config.toml"  # in a directory of ours
WORKSPACE_NAME = "kedge.toml"
SYSTEM = Path("/etc")


class Places(NamedTuple):
    system: tuple[Path, ...]
    user: Path

    @classmethod
    def of(cls, env: Mapping[str, str] = os.environ) -> Places:
        """As the XDG Base Directory Specification has it: what is not an absolute path does not count."""
        dirs = [Path(each) for each in env.get("XDG_CONFIG_DIRS", "").split(":") if each.startswith("/")]
        home = env.get("XDG_CONFIG_HOME", "")
        config = Path(home) if home.startswith("/") else Path(env.get("HOME") or Path.home()) / ".config"
        weakest_first = [SYSTEM, *reversed(dirs or [SYSTEM / "xdg"])]
        return cls(tuple(each / "kedge" / NAME for each in weakest_first), config / "kedge" / NAME)


def workspace_files(directory: Path) -> list[Path]:
    """`kedge.toml` from the repository's root down to the workspace; without a repository only the workspace's own.

    Nothing above counts: on a machine of many users anyone may write into a directory up there."""
    chain = [directory, *directory.parents]
    root = next((place for place, each in enumerate(chain) if (each / ".git").exists()), 0)
    return [each / WORKSPACE_NAME for each in reversed(chain[: root + 1])]

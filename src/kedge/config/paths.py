"""Locations of configuration files, weakest first: system, user, workspace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

Layer = Literal["default", "system", "user", "workspace", "environment"]

NAME = "config.toml"  # in a `kedge` directory of the system or the user
WORKSPACE_NAME = "kedge.toml"
SYSTEM = Path("/etc")


class ConfigPaths(NamedTuple):
    system: tuple[Path, ...]
    user: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> ConfigPaths:
        """Follow the XDG Base Directory Specification; relative paths in its variables are ignored."""
        dirs = [Path(each) for each in env.get("XDG_CONFIG_DIRS", "").split(":") if each.startswith("/")]
        home = env.get("XDG_CONFIG_HOME", "")
        config = Path(home) if home.startswith("/") else Path(env.get("HOME") or Path.home()) / ".config"
        weakest_first = [SYSTEM, *reversed(dirs or [SYSTEM / "xdg"])]
        return cls(tuple(each / "kedge" / NAME for each in weakest_first), config / "kedge" / NAME)


def workspace_files(directory: Path) -> list[Path]:
    """Return the `kedge.toml` paths from the repository's root down to the workspace.

    Without a repository, only the workspace's own. Directories above are ignored: on a shared machine other users may
    be able to write there.
    """
    chain = [directory, *directory.parents]
    root = next((index for index, each in enumerate(chain) if (each / ".git").exists()), 0)
    return [each / WORKSPACE_NAME for each in reversed(chain[: root + 1])]

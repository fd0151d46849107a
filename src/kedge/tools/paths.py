"""Paths from the model: resolved once, including links and `..`, before permission is checked."""

from __future__ import annotations

import os
from pathlib import Path

from kedge.tools.errors import ToolError
from kedge.tools.port import ToolScope

MAX_PATH_CHARS = 4096  # the kernel's limit


def resolve_path(scope: ToolScope, given: str) -> Path:
    """Return the absolute path without links for a path that may start with `~` or be relative to the workspace.

    It need not exist. A running call gets its approved path: resolving again could follow a link made meanwhile.
    """
    if scope.approved_path is not None:
        return scope.approved_path
    if not given.strip():
        raise ToolError("The path is empty;", "give the path of a file.")
    if "\0" in given:
        raise ToolError("The path contains a NUL character, which no file name can;", "give the path without it.")
    if len(given) > MAX_PATH_CHARS:
        raise ToolError(f"The path has {len(given):,} characters, more than any path can have;", "give only the path.")
    try:
        return Path(os.path.realpath(scope.directory / _expand_home(given, scope)))
    except (OSError, ValueError, RuntimeError) as error:  # an unknown home directory, or half a surrogate pair
        raise ToolError(f"{given!r} is not a possible path ({error});", "give another.") from error


def is_inside(path: Path, directory: Path) -> bool:
    """Return whether a resolved path is the resolved directory or below it."""
    return path.is_relative_to(directory)


def display_path(scope: ToolScope, path: Path) -> str:
    """Return a resolved path relative to the workspace if it is inside, else absolute."""
    if not is_inside(path, scope.directory):
        return str(path)
    return str(path.relative_to(scope.directory))


def _expand_home(given: str, scope: ToolScope) -> str:
    """Expand `~` to the caller's home, which may differ from the server's."""
    home = scope.env.get("HOME")
    if home and (given == "~" or given.startswith("~/")):
        return home + given[1:]
    return str(Path(given).expanduser()) if given.startswith("~") else given

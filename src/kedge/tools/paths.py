"""Paths as a model gives them: resolved once, links and `..` included, before anybody judges or opens them."""

from __future__ import annotations

import os
from pathlib import Path

from kedge.tools.errors import ToolError
from kedge.tools.port import ToolScope

MAX_PATH_CHARS = 4096  # the kernel's own bound


def resolve(place: ToolScope, given: str) -> Path:
    """Where `given` leads: absolute, from the home of the caller (`~`), or from the workspace. It need not exist.

    Once it was judged it is not resolved again: a link may lead elsewhere by now.
    """
    if place.approved_path is not None:
        return place.approved_path
    if not given.strip():
        raise ToolError("The path is empty; give the path of a file.")
    if "\0" in given:
        raise ToolError("The path holds a NUL character, which no file's name can; give the path without it.")
    if len(given) > MAX_PATH_CHARS:
        raise ToolError(f"The path has {len(given):,} characters, which no file's path has; give its path alone.")
    try:
        return Path(os.path.realpath(place.directory / _without_tilde(given, place)))
    except (OSError, ValueError, RuntimeError) as error:  # a home that nobody has, or a half of a character
        raise ToolError(f"{given!r} is no path that this machine can have ({error}); give another.") from error


def is_inside(path: Path, directory: Path) -> bool:
    """Whether a resolved path is in a resolved directory, or is it."""
    return path.is_relative_to(directory)


def shown_path(place: ToolScope, path: Path) -> str:
    """A resolved path in the shortest words that lead to it again."""
    if not is_inside(path, place.directory):
        return str(path)
    return str(path.relative_to(place.directory))


def _without_tilde(given: str, place: ToolScope) -> str:
    """The home is the caller's, who may have another than the server."""
    home = place.env.get("HOME")
    if home and (given == "~" or given.startswith("~/")):
        return home + given[1:]
    return str(Path(given).expanduser()) if given.startswith("~") else given

"""Which variables a process can be given, and where Kedge's own programs are found.

A caller's variables are whatever came over the wire. What commands can write must not decide what Kedge itself starts:
programs are looked for outside of the workspace, also where `PATH` names a directory in it (an activated `.venv`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

StrPath = str | bytes | os.PathLike[str]


def possible(env: Mapping[str, str]) -> dict[str, str]:
    """Those that can be, before anything is started with them."""
    return {name: value for name, value in env.items() if is_possible(name, value)}


def is_possible(name: str, value: str) -> bool:
    if not name or "=" in name or "\0" in name or "\0" in value:
        return False
    try:
        name.encode("utf-8", "surrogateescape")
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def env_outside(env: Mapping[str, str], workspace: StrPath) -> dict[str, str]:
    """`env` with a `PATH` that has neither relative directories nor any that lies in the workspace. Blocks."""
    inside = _real(workspace)
    places = [each for each in env.get("PATH", os.defpath).split(":") if each.startswith("/")]
    return {**env, "PATH": ":".join(each for each in places if not _is_below(_real(each), inside))}


def find_program(name: str, env: Mapping[str, str], workspace: StrPath) -> str | None:
    """The absolute path of a program that neither lies in the workspace nor is a link to there. Blocks."""
    inside = _real(workspace)
    for place in env_outside(env, workspace)["PATH"].split(":"):
        found = f"{place}/{name}"
        if place and os.path.isfile(found) and os.access(found, os.X_OK) and not _is_below(_real(found), inside):
            return found
    return None


def _real(path: StrPath) -> str:
    return os.path.realpath(os.fsdecode(path))


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")

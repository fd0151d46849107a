"""Where git keeps the history of a workspace, if that is elsewhere, and which of its files make git run programs."""

from __future__ import annotations

import os
from pathlib import Path

# Whoever writes these decides what git runs, outside of any sandbox, the next time that somebody uses it.
_SWITCHES = ("hooks", "config", "config.worktree")
# What a commit in a worktree changes of the repository that it belongs to.
_SHARED = ("objects", "refs", "logs")
_MAX_POINTER = 4096


def protected(workspace: Path) -> list[Path]:
    return [workspace / ".git" / name for name in _SWITCHES]


def elsewhere(workspace: Path) -> list[Path]:
    """What a worktree of git has to write outside of itself.

    What its `.git` file says is not believed: a held command could write there what it likes. The repository must
    point back to this worktree, and that it says in a place that no held command can write.
    """
    pointer = workspace / ".git"
    if pointer.is_symlink() or not pointer.is_file():
        return []
    own = _pointed(pointer, "gitdir: ", workspace)
    if own is None or own.parent.name != "worktrees" or own.is_relative_to(workspace):
        return []
    common = own.parent.parent
    back = _pointed(own / "gitdir", "", own)
    if back != pointer or not (common / "HEAD").is_file() or not (common / "objects").is_dir():
        return []
    return [own, *(each for name in _SHARED if (each := common / name).is_dir() and not each.is_symlink())]


def _pointed(file: Path, before: str, base: Path) -> Path | None:
    try:
        with file.open("rb") as opened:
            text = os.fsdecode(opened.read(_MAX_POINTER)).strip()
    except OSError:
        return None
    if not text.startswith(before) or not (target := text.removeprefix(before)):
        return None
    return Path(os.path.realpath(base / target))

"""Where git keeps the history of a workspace, if that is elsewhere, and which of its files make git run programs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from kedge.files.safe_open import read_regular_file
from kedge.tools.sandbox.policy import is_below

# Whoever writes these decides what git runs, outside of any sandbox, the next time that somebody uses it.
_SWITCHES = ("hooks", "config", "config.worktree")
# What a commit in a worktree changes of the repository that it belongs to.
_SHARED = ("objects", "refs", "logs")
_MAX_POINTER = 4096
_MAX_SETTINGS = 256 * 1024


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
    content = read_regular_file(file, _MAX_POINTER)
    if content is None:
        return None
    text = os.fsdecode(content).strip()
    if not text.startswith(before) or not (target := text.removeprefix(before)):
        return None
    return Path(os.path.realpath(base / target))


def readable(workspace: Path, homes: Iterable[str]) -> tuple[str, ...]:
    """What git reads outside of a workspace: the repository of a worktree or a submodule, and the whole working tree
    if the workspace is a directory in it, because git compares all of it.

    A pointer counts only if the repository points back: the workspace could name any repository of the user's.
    """
    own = [Path(home) for home in homes]
    for directory in (workspace, *workspace.parents):
        if directory != workspace and any(home.is_relative_to(directory) for home in own):
            break  # the home itself, or above it: its history is that of the user's own files
        pointer = directory / ".git"
        if pointer.is_symlink() or not pointer.exists():
            continue
        if pointer.stat().st_uid != workspace.stat().st_uid:
            break  # somebody else could have put it there, in /tmp for example
        tree = () if directory == workspace else (str(directory),)
        return tree if pointer.is_dir() else (*tree, *_behind(pointer, directory))
    return ()


def _behind(pointer: Path, directory: Path) -> tuple[str, ...]:
    """What a `.git` file leads to, if that leads back."""
    own = _pointed(pointer, "gitdir: ", directory)
    if own is None or not (own / "HEAD").is_file():
        return ()
    if own.parent.name == "worktrees" and _pointed(own / "gitdir", "", own) == pointer:
        common = own.parent.parent
        return (str(own), str(common)) if (common / "objects").is_dir() else ()
    return (str(own),) if _worktree_of(own) == directory else ()


def _worktree_of(repository: Path) -> Path | None:
    """What the configuration of a submodule's repository names as its working tree."""
    found = re.search(r"^\s*worktree\s*=\s*(.+?)\s*$", _text_of(repository / "config"), re.MULTILINE)
    return None if found is None else Path(os.path.realpath(repository / found[1].strip('"')))


def settings(homes: Iterable[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """The user's own settings of git, and the files that they include; never credentials."""
    found: list[Path] = []
    for home in map(Path, homes):
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "git"
        files = [home / ".gitconfig", *(config / name for name in ("config", "ignore", "attributes"))]
        included = [path for file in files[:2] for path in _named_in(file, home)]
        found += [path for path in (*files, *included) if path.is_file() and "credential" not in path.name]
    return tuple(dict.fromkeys(os.path.realpath(path) for path in found))


def _named_in(file: Path, home: Path) -> list[Path]:
    names = re.findall(r"^\s*(?:path|excludesfile|attributesfile)\s*=\s*(.+?)\s*$", _text_of(file), re.I | re.M)
    paths = [Path(f"{home}{name[1:]}") if name.startswith("~/") else file.parent / name for name in names]
    return [
        path for path in paths if path.name.startswith((".git", "git")) or is_below(str(path), f"{home}/.config/git")
    ]


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return os.fsdecode(opened.read(_MAX_SETTINGS))
    except OSError:
        return ""

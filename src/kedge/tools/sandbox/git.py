"""Paths that git needs outside a workspace (worktrees, submodules, settings), and files that make it run programs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from kedge.files.safe_open import read_regular_file
from kedge.tools.sandbox.policy import is_below

# A command that writes these controls what git runs later, outside the sandbox.
_PROTECTED = ("hooks", "config", "config.worktree")
# What a commit in a worktree changes in its repository.
_SHARED = ("objects", "refs", "logs")
_MAX_POINTER = 4096
_MAX_SETTINGS = 256 * 1024


def find_protected(workspace: Path) -> list[Path]:
    return [workspace / ".git" / name for name in _PROTECTED]


def find_writable_outside(workspace: Path) -> list[Path]:
    """The paths that git writes outside a worktree.

    Its `.git` file is not trusted, because a sandboxed command can write it: the repository must point back to this
    worktree, in a file that no sandboxed command can write.
    """
    pointer = workspace / ".git"
    if pointer.is_symlink() or not pointer.is_file():
        return []
    own = _read_pointer(pointer, "gitdir: ", workspace)
    if own is None or own.parent.name != "worktrees" or own.is_relative_to(workspace):
        return []
    common = own.parent.parent
    back = _read_pointer(own / "gitdir", "", own)
    if back != pointer or not (common / "HEAD").is_file() or not (common / "objects").is_dir():
        return []
    return [own, *(each for name in _SHARED if (each := common / name).is_dir() and not each.is_symlink())]


def _read_pointer(file: Path, before: str, base: Path) -> Path | None:
    content = read_regular_file(file, _MAX_POINTER)
    if content is None:
        return None
    text = os.fsdecode(content).strip()
    if not text.startswith(before) or not (target := text.removeprefix(before)):
        return None
    return Path(os.path.realpath(base / target))


def find_readable(workspace: Path, homes: Iterable[str]) -> tuple[str, ...]:
    """The paths that git reads outside a workspace: the repository of a worktree or a submodule, and the whole working
    tree if the workspace is a directory in it.

    A pointer counts only if the repository points back: the workspace could name any repository of the user.
    """
    own = [Path(home) for home in homes]
    for directory in (workspace, *workspace.parents):
        if directory != workspace and any(home.is_relative_to(directory) for home in own):
            break  # a repository of the home or above contains the user's own files
        pointer = directory / ".git"
        if pointer.is_symlink() or not pointer.exists():
            continue
        if pointer.stat().st_uid != workspace.stat().st_uid:
            break  # another user could have made it, for example in /tmp
        tree = () if directory == workspace else (str(directory),)
        return tree if pointer.is_dir() else (*tree, *_follow_pointer(pointer, directory))
    return ()


def _follow_pointer(pointer: Path, directory: Path) -> tuple[str, ...]:
    """The repository of a `.git` file, if it points back."""
    own = _read_pointer(pointer, "gitdir: ", directory)
    if own is None or not (own / "HEAD").is_file():
        return ()
    if own.parent.name == "worktrees" and _read_pointer(own / "gitdir", "", own) == pointer:
        common = own.parent.parent
        return (str(own), str(common)) if (common / "objects").is_dir() else ()
    return (str(own),) if _read_worktree(own) == directory else ()


def _read_worktree(repository: Path) -> Path | None:
    """The working tree in the configuration of a submodule's repository."""
    found = re.search(r"^\s*worktree\s*=\s*(.+?)\s*$", _read_text(repository / "config"), re.MULTILINE)
    return None if found is None else Path(os.path.realpath(repository / found[1].strip('"')))


def find_settings(homes: Iterable[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """The user's git settings and the files that they include; never credentials."""
    found: list[Path] = []
    for home in map(Path, homes):
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "git"
        files = [home / ".gitconfig", *(config / name for name in ("config", "ignore", "attributes"))]
        included = [path for file in files[:2] for path in _find_included(file, home)]
        found += [path for path in (*files, *included) if path.is_file() and "credential" not in path.name]
    return tuple(dict.fromkeys(os.path.realpath(path) for path in found))


def _find_included(file: Path, home: Path) -> list[Path]:
    names = re.findall(r"^\s*(?:path|excludesfile|attributesfile)\s*=\s*(.+?)\s*$", _read_text(file), re.I | re.M)
    paths = [Path(f"{home}{name[1:]}") if name.startswith("~/") else file.parent / name for name in names]
    return [
        path for path in paths if path.name.startswith((".git", "git")) or is_below(str(path), f"{home}/.config/git")
    ]


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return os.fsdecode(opened.read(_MAX_SETTINGS))
    except OSError:
        return ""

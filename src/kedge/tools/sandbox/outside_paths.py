"""Paths that git and the programs on PATH need outside a workspace, and files that make git run programs.

Of programs these are the entries of PATH and the toolchains that they belong to: never a whole home, and the parent of
an entry only if it looks like the prefix of an installation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kedge.files.safe_open import read_regular_file
from kedge.tools.sandbox.policy import HOMES, ROOT_HOME, is_around_a_home, is_below

# A command that writes these controls what git runs later, outside the sandbox.
_PROTECTED = ("hooks", "config", "config.worktree")
# What a commit in a worktree changes in its repository.
_SHARED = ("objects", "refs", "logs")
_MAX_POINTER = 4096
_MAX_SETTINGS = 256 * 1024

# Relative to a home: an entry below the key needs the values.
_MANAGERS: dict[str, tuple[str, ...]] = {
    # The rest of ~/.cargo is settings, which can contain tokens.
    ".cargo": (".cargo/bin", ".cargo/env", ".cargo/registry", ".cargo/git", ".rustup"),
    ".local/bin": (".local/bin", ".local/lib", ".local/share/uv", ".local/share/pipx", ".local/share/mise"),
    **{
        name: (name,)
        for name in (
            *(".pyenv", ".nvm", ".rustup", ".asdf", ".volta", ".rbenv", ".nodenv", ".goenv", ".jenv", ".plenv"),
            *(".phpenv", ".tfenv", ".sdkman", ".bun", ".deno", ".dotnet", ".ghcup", ".juliaup", ".opam", ".elan"),
            *(".linuxbrew", ".fnm", ".n", ".proto", ".krew", ".npm-global", ".foundry", ".wasmtime", ".swiftly"),
            *("go", "miniconda3", "anaconda3", "miniforge3", "mambaforge", ".nix-profile", ".local/state/nix"),
            *(f".local/share/{name}" for name in ("uv", "pipx", "mise", "rtx", "fnm", "pnpm", "pypoetry", "gem")),
            ".local/pipx",
        )
    },
}
_PROGRAM_DIRECTORIES = frozenset({"bin", "sbin", "shims", "Scripts"})
_NO_PREFIX = frozenset({".local", ".config", ".cache", ".cargo"})
# Links in these lead to the system's directories again.
_SYSTEM_DIRECTORIES = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/snap/bin", "/usr/games"})
_MAX_LINKS = 500  # of one entry


def find_git_protected(workspace: Path) -> list[Path]:
    return [workspace / ".git" / name for name in _PROTECTED]


def find_git_writable(workspace: Path) -> list[Path]:
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


def find_git_paths(workspace: Path, homes: Iterable[str]) -> tuple[str, ...]:
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


def find_git_settings(homes: Iterable[str], env: Mapping[str, str]) -> tuple[str, ...]:
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


def find_program_paths(path: str, homes: Iterable[str], outside_of: tuple[str, ...]) -> tuple[str, ...]:
    """The directories and files, resolved, that the programs on `path` need; nothing below `outside_of`."""
    homes = tuple(homes)
    found: dict[str, None] = {}
    for entry in path.split(":"):
        if entry.startswith("/") and Path(entry).is_dir():
            found |= dict.fromkeys(_find_for_entry(os.path.normpath(entry), homes, outside_of))
    return tuple(each for each in found if not is_below(each, "/usr") and not _is_too_wide(each, homes, outside_of))


def _find_for_entry(entry: str, homes: tuple[str, ...], outside_of: tuple[str, ...]) -> Iterator[str]:
    directory = os.path.realpath(entry)
    if directory in _SYSTEM_DIRECTORIES:
        return
    if any(is_below(each, root) for each in (entry, directory) for root in outside_of):
        return  # programs of the workspace are readable anyway
    yield from _find_toolchain(entry, homes)
    yield from _find_toolchain(directory, homes)
    for target in _find_linked_programs(directory):
        if not any(is_below(target, root) for root in outside_of):
            yield target
            if Path(target).parent.name in _PROGRAM_DIRECTORIES:
                yield from _find_toolchain(str(Path(target).parent), homes)


def _find_toolchain(directory: str, homes: tuple[str, ...]) -> Iterator[str]:
    """A directory of programs, and the directories that they need."""
    yield os.path.realpath(directory)
    home = _find_home(directory, homes)
    if home is not None:
        relative = os.path.relpath(directory, home)
        for name, needed in _MANAGERS.items():
            if is_below(relative, name):
                yield from (os.path.realpath(f"{home}/{each}") for each in needed)
                return
    prefix = Path(directory).parent
    if is_below(directory, "/usr"):
        return  # readable anyway
    if prefix.name not in _NO_PREFIX and Path(directory).name in _PROGRAM_DIRECTORIES and _is_installation(prefix):
        yield os.path.realpath(prefix)


def _is_installation(prefix: Path) -> bool:
    """Whether it is the prefix of an installation, and not a project with a `bin` directory."""
    if (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir():
        return True
    return (prefix / "lib").is_dir() and not (prefix / ".git").exists()


def _find_linked_programs(directory: str) -> Iterator[str]:
    """The programs outside a directory that its links lead to."""
    try:
        with os.scandir(directory) as entries:
            links = [entry.path for entry, _ in zip(entries, range(_MAX_LINKS), strict=False) if entry.is_symlink()]
    except OSError:
        return
    for link in links:
        target = os.path.realpath(link)
        if not is_below(target, directory) and os.access(target, os.X_OK) and Path(target).is_file():
            yield target


def _find_home(path: str, homes: tuple[str, ...]) -> str | None:
    own = next((home for home in homes if is_below(path, home) and path != home), None)
    if own is not None:
        return own
    parts = Path(path).parts
    if len(parts) > 3 and f"/{parts[1]}" in HOMES:
        return str(Path(*parts[:3]))
    return ROOT_HOME if is_below(path, ROOT_HOME) and path != ROOT_HOME else None


def _is_too_wide(path: str, homes: tuple[str, ...], outside_of: tuple[str, ...]) -> bool:
    """Whether it is a home, above one, or contains a directory that must not become readable."""
    around = (*homes, *outside_of, ROOT_HOME, "/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/run")
    if is_around_a_home(path, homes) or any(is_below(each, path) for each in around):
        return True
    return str(Path(path).parent) in HOMES and Path(path).name != "linuxbrew"

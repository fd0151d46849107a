"""The directories that the programs on a PATH need: its entries, and the toolchains that these belong to.

Never a whole home; the parent of an entry only if it looks like the prefix of an installation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from kedge.tools.sandbox.policy import HOMES, ROOT_HOME, is_around_a_home, is_below

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


def find_readable(path: str, homes: Iterable[str], outside_of: tuple[str, ...]) -> tuple[str, ...]:
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

"""Which directories the programs on a PATH need: the entries themselves, and the toolchains that they belong to.

Never a whole home, and of an unknown directory above an entry only what looks like the prefix of an installation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from kedge.tools.sandbox.policy import HOMES, ROOT_HOME, is_around_a_home, is_below

# Relative to a home: if an entry lies below the first, it needs these.
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
_OF_PROGRAMS = frozenset({"bin", "sbin", "shims", "Scripts"})
_NO_PREFIX = frozenset({".local", ".config", ".cache", ".cargo"})
# What is linked there leads to the system again.
_OF_THE_SYSTEM = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/snap/bin", "/usr/games"})
_MAX_LINKS = 500  # of one entry


def readable(path: str, homes: Iterable[str], outside_of: tuple[str, ...]) -> tuple[str, ...]:
    """The directories and files, resolved, for an environment's PATH. `outside_of` are never granted by this."""
    homes = tuple(homes)
    found: dict[str, None] = {}
    for entry in path.split(":"):
        if entry.startswith("/") and Path(entry).is_dir():
            found |= dict.fromkeys(_of_entry(os.path.normpath(entry), homes, outside_of))
    return tuple(each for each in found if not is_below(each, "/usr") and not _is_too_much(each, homes, outside_of))


def _of_entry(entry: str, homes: tuple[str, ...], outside_of: tuple[str, ...]) -> Iterator[str]:
    directory = os.path.realpath(entry)
    if directory in _OF_THE_SYSTEM:
        return
    if any(is_below(each, place) for each in (entry, directory) for place in outside_of):
        return  # what the workspace brings is in the workspace
    yield from _toolchain(entry, homes)
    yield from _toolchain(directory, homes)
    for target in _linked_programs(directory):
        if not any(is_below(target, place) for place in outside_of):
            yield target
            if Path(target).parent.name in _OF_PROGRAMS:
                yield from _toolchain(str(Path(target).parent), homes)


def _toolchain(directory: str, homes: tuple[str, ...]) -> Iterator[str]:
    """A directory of programs, and what they need."""
    yield os.path.realpath(directory)
    home = _home_of(directory, homes)
    if home is not None:
        relative = os.path.relpath(directory, home)
        for name, needed in _MANAGERS.items():
            if is_below(relative, name):
                yield from (os.path.realpath(f"{home}/{each}") for each in needed)
                return
    prefix = Path(directory).parent
    if is_below(directory, "/usr"):
        return  # that is readable anyway
    if prefix.name not in _NO_PREFIX and Path(directory).name in _OF_PROGRAMS and _is_an_installation(prefix):
        yield os.path.realpath(prefix)


def _is_an_installation(prefix: Path) -> bool:
    """Not somebody's project that has a `bin`: those are read by their names alone."""
    if (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir():
        return True
    return (prefix / "lib").is_dir() and not (prefix / ".git").exists()


def _linked_programs(directory: str) -> Iterator[str]:
    """Where the links of a directory lead to, if that is elsewhere."""
    try:
        with os.scandir(directory) as entries:
            links = [entry.path for entry, _ in zip(entries, range(_MAX_LINKS), strict=False) if entry.is_symlink()]
    except OSError:
        return
    for link in links:
        target = os.path.realpath(link)
        if not is_below(target, directory) and os.access(target, os.X_OK) and Path(target).is_file():
            yield target


def _home_of(path: str, homes: tuple[str, ...]) -> str | None:
    own = next((home for home in homes if is_below(path, home) and path != home), None)
    if own is not None:
        return own
    parts = Path(path).parts
    if len(parts) > 3 and f"/{parts[1]}" in HOMES:
        return str(Path(*parts[:3]))
    return ROOT_HOME if is_below(path, ROOT_HOME) and path != ROOT_HOME else None


def _is_too_much(path: str, homes: tuple[str, ...], outside_of: tuple[str, ...]) -> bool:
    """Whether it is a home or something above one, or holds what must not be granted."""
    around = (*homes, *outside_of, ROOT_HOME, "/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/run")
    if is_around_a_home(path, homes) or any(is_below(each, path) for each in around):
        return True
    return str(Path(path).parent) in HOMES and Path(path).name != "linuxbrew"

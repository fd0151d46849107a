"""The directories that are searched for skills, commands and agents, and the reading of the files in them.

Directories of a project are searched only if it is trusted: what is in them tells the model what to do, and may name
commands to run. A link that leads out of a project or a plugin is not followed. All is bounded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from kedge.config.schema import Config
from kedge.config.trust import is_trusted, resolve_trusted_entry
from kedge.files.safe_open import open_file
from kedge.protocol.messages import replace_surrogates
from kedge.protocol.skills import CommandSource
from kedge.skills.definitions import Kind, Problem

MAX_LEVELS = 32  # parent directories that are searched
MAX_DEPTH = 4  # below a directory that is searched
MAX_DIRECTORIES = 2_000  # that are listed below one of them
MAX_ENTRIES = 20_000  # that are looked at below one of them
MAX_FILES = 500  # of one kind in one of them
MAX_FILE_BYTES = 256 * 1024  # a longer one is no instruction that a model could follow
SKILL_FILE = "SKILL.md"

_PROJECT: dict[Kind, tuple[str, ...]] = {
    "skill": (".kedge/skills", ".agents/skills", ".claude/skills"),
    "command": (".kedge/commands", ".claude/commands", ".opencode/commands", ".opencode/command"),
    "agent": (".kedge/agents", ".claude/agents", ".opencode/agents", ".opencode/agent"),
}
# `CONFIG` stands for `$XDG_CONFIG_HOME`, or `~/.config`.
_USER: dict[Kind, tuple[str, ...]] = {
    "skill": ("CONFIG/kedge/skills", "~/.agents/skills", "CONFIG/agents/skills", "~/.claude/skills"),
    "command": ("CONFIG/kedge/commands", "~/.claude/commands", "CONFIG/opencode/commands", "CONFIG/opencode/command"),
    "agent": ("CONFIG/kedge/agents", "~/.claude/agents", "CONFIG/opencode/agents", "CONFIG/opencode/agent"),
}
SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv", "venv"})


class Place(msgspec.Struct, frozen=True):
    """A directory to search for files of one kind."""

    kind: Kind
    path: Path
    source: CommandSource
    within: Path | None = None  # no link may lead out of this resolved directory
    plugin: str = ""
    plugin_root: str = ""


class Found(msgspec.Struct, frozen=True):
    """A file of a place, without links in its path."""

    path: Path  # as it was found
    real: Path
    relative: Path  # to the place
    state: tuple[int, int, int]  # changes with the content


def list_places(kind: Kind, directory: Path, env: Mapping[str, str], config: Config) -> list[Place]:
    """Return the places of the project, from the workspace up to the repository's root, and those of the user."""
    project = [
        Place(kind, level / name, "workspace", root)
        for level, root in list_trusted_levels(directory, env, config)
        for name in _PROJECT[kind]
    ]
    return [*project, *(Place(kind, path, "user") for path in _list_user_paths(kind, env))]


def list_trusted_levels(directory: Path, env: Mapping[str, str], config: Config) -> list[tuple[Path, Path]]:
    """Return the trusted directories from the workspace up to the repository's root, each with that root, resolved.

    While commands run in the configured sandbox, none is trusted: a sandboxed command can write these files.
    """
    if config.sandbox.mode != "off":
        return []
    upwards = _list_levels(directory)
    root, home = upwards[-1].resolve(), Path(env.get("HOME") or Path.home())
    return [(level, root) for level in upwards if is_trusted(level, config.trusted, home)]


def list_untrusted(directory: Path, env: Mapping[str, str], config: Config) -> list[Path]:
    """Return the places of the project that exist but are not searched, because it is not trusted."""
    searched = {level for level, _ in list_trusted_levels(directory, env, config)}
    names = dict.fromkeys(name for names in _PROJECT.values() for name in names)
    levels = [level for level in _list_levels(directory) if level not in searched]
    return [level / name for level in levels for name in names if (level / name).is_dir()]


def _list_levels(directory: Path) -> list[Path]:
    upwards = [directory, *directory.parents][:MAX_LEVELS]
    root = next((at for at, level in enumerate(upwards) if (level / ".git").exists()), 0)
    return upwards[: root + 1]


def _list_user_paths(kind: Kind, env: Mapping[str, str]) -> Iterator[Path]:
    home = env.get("HOME", "")
    config = env.get("XDG_CONFIG_HOME", "")
    config = config if config.startswith("/") else f"{home}/.config" if home else ""
    for name in _USER[kind]:
        start, _, rest = name.partition("/")
        if base := config if start == "CONFIG" else home:
            yield Path(base, rest)


def find_files(place: Place, problems: list[Problem]) -> list[Found]:
    """Return the files of a place, sorted by path. One that cannot be used becomes a problem."""
    files: list[Found] = []
    try:
        base = place.path.resolve(strict=True)
    except (OSError, RuntimeError):
        return files
    if place.within is not None and not base.is_relative_to(place.within):
        problems.append(Problem(show(place.path), "it is a link that leads out of the repository or plugin"))
        return files
    pending = [(place.path, 0)]
    count = entries = 0
    while pending:
        directory, depth = pending.pop()
        count += 1
        if count > MAX_DIRECTORIES or entries > MAX_ENTRIES or len(files) >= MAX_FILES:
            problems.append(Problem(show(place.path), "there are too many files: some are left out", True))
            break
        names = _list_names(directory)
        entries += len(names)
        if place.kind == "skill" and SKILL_FILE in names and depth > 0:
            names = [SKILL_FILE]  # what is below belongs to this skill
        below: list[tuple[Path, int]] = []
        for name in names:
            path = directory / name
            if name == SKILL_FILE if place.kind == "skill" else name.endswith(".md"):
                if (depth > 0 or place.kind != "skill") and (file := _check_file(path, place, problems)):
                    files.append(file)
            elif depth < MAX_DEPTH and name not in SKIPPED and path.is_dir() and _stays(path, place, problems):
                below.append((path, depth + 1))
        pending += reversed(below)
    return sorted(files, key=lambda file: str(file.path))


def _list_names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(MAX_DIRECTORIES), strict=False))
    except OSError:
        return []


def _stays(path: Path, place: Place, problems: list[Problem]) -> bool:
    """Return whether a directory may be searched: links of a project must stay inside; no link leads upwards."""
    if not path.is_symlink():
        return True
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return False
    if place.path.resolve().is_relative_to(real):
        return False
    if place.within is not None and not real.is_relative_to(place.within):
        problems.append(Problem(show(path), "it is a link that leads out of the repository or plugin"))
        return False
    return True


def _check_file(path: Path, place: Place, problems: list[Problem]) -> Found | None:
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):
        return None
    if place.within is not None and not real.is_relative_to(place.within):
        problems.append(Problem(show(path), "it is a link that leads out of the repository or plugin"))
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    if status.st_size > MAX_FILE_BYTES:
        problems.append(Problem(show(path), f"it has {status.st_size:,} bytes; the limit is {MAX_FILE_BYTES:,}"))
        return None
    state = (status.st_mtime_ns, status.st_size, status.st_ino)
    return Found(path, real, path.relative_to(place.path), state)


def read_text(real: Path) -> str | None:
    """Return the text of a resolved path; None if it is no regular file or cannot be read."""
    try:
        descriptor = open_file(real, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")


def resolve_plugin_path(entry: str, env: Mapping[str, str]) -> Path | None:
    """Return the directory of an entry of `plugins`; None for a relative path."""
    return resolve_trusted_entry(entry, Path(env.get("HOME") or Path.home()))


def show(path: Path | str) -> str:
    return replace_surrogates(str(path))

"""The files of a tree that are not ignored, listed by git or ripgrep, and a walk over them.

Git's index is only read, and no program that the repository configures is started.
"""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kedge.files.environment import (
    GIT_OPTIONS,
    StrPath,
    drop_invalid_variables,
    find_program,
    harden_git_env,
    with_safe_path,
)

# A larger tree is not a project, but a home directory, a disk or a folder of data.
MAX_FILES = 100_000
LIST_S = 20.0
KEDGEIGNORE = b".kedgeignore"
_CHUNK = 1024 * 1024

_LIST = (*GIT_OPTIONS, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
_RIPGREP = ("--no-config", "--no-messages", "--hidden", "--no-require-git", "-g", "!.git", "--files", "--null")


class CannotScan(Exception):
    """A tree cannot be scanned; `why` is the reason in a few words."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def find_ripgrep(workspace: StrPath) -> str | None:
    """Return the ripgrep that was installed with Kedge, or the user's own if it is outside the workspace."""
    return _installed_ripgrep() or find_program("rg", os.environ, workspace)


@cache
def _installed_ripgrep() -> str | None:
    import sysconfig  # imported late: a starting server does not wait for it

    for directory in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if os.access(directory / "rg", os.X_OK):
            return str(directory / "rg")
    return None


def make_git_env(env: Mapping[str, str], root: StrPath) -> dict[str, str]:
    """Return an environment in which git only reads the repository, and starts no program that it configures."""
    return {**harden_git_env(with_safe_path(drop_invalid_variables(env), root)), "GIT_NO_REPLACE_OBJECTS": "1"}


class Listing(NamedTuple):
    """Paths relative to the root. `has_links`: symbolic links are included, which ripgrep does not list."""

    paths: set[bytes]
    has_links: bool = True


def list_files(root: bytes, env: Mapping[str, str]) -> Listing:
    """List the files that git tracks or would track; without a repository, those that no ignore file names.

    Blocks for a bounded time. Raises `CannotScan`.
    """
    clean = make_git_env(env, root)
    git = find_program("git", clean, root)
    listed = None if git is None else _run_lister([git, *_LIST], root, clean)
    if listed:
        return Listing(listed)
    # No repository, no git, or a directory that an outer repository ignores.
    program = find_ripgrep(root)
    options = [] if listed is None else ["--no-ignore-parent"]
    if os.path.isfile(root + b"/" + KEDGEIGNORE):
        options += ["--ignore-file", os.fsdecode(KEDGEIGNORE)]
    found = None if program is None else _run_lister([program, *_RIPGREP, *options], root, clean, ok_codes=(0, 1))
    if found is None:
        raise CannotScan("neither git nor ripgrep could list its files")
    return Listing(found, has_links=False)


def _run_lister(
    command: Sequence[str], root: bytes, env: Mapping[str, str], ok_codes: tuple[int, ...] = (0,)
) -> set[bytes] | None:
    """Run a program that lists paths separated by NUL; return None if it does not exist or fails."""
    deadline = time.monotonic() + LIST_S
    try:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    names: set[bytes] = set()
    rest = b""
    with process:
        assert process.stdout is not None
        try:
            while chunk := _read_until(deadline, process.stdout.fileno()):
                *records, rest = (rest + chunk).split(b"\0")
                names.update(records)
                if len(names) > MAX_FILES:
                    raise CannotScan(f"it has over {MAX_FILES:,} files")
        except BaseException:
            process.kill()
            raise
    if process.returncode not in ok_codes:
        return None
    return {name.removeprefix(b"./").rstrip(b"/") for name in names if name}


def _read_until(deadline: float, fd: int) -> bytes:
    """Read the next bytes, empty at the end. Raises `CannotScan` at the deadline: a dead disk may never answer."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(max(deadline - time.monotonic(), 0) * 1000):
        raise CannotScan(f"listing its files takes over {LIST_S:.0f} s")
    return os.read(fd, _CHUNK)


def walk(root: bytes, listed: Listing) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """Yield the listed files and links with their stat result, and empty directories with None. Blocks.

    No link is followed: a directory is entered only if its parent lists it as a directory.
    """
    names: dict[bytes, set[bytes]] = {b"": set()}
    for path in listed.paths:
        parent, _, name = path.rpartition(b"/")
        if parent not in names:
            _add_parents(names, parent)
        names[parent].add(name)
    has_links, pending = listed.has_links, [b""]
    while pending:
        directory = pending.pop()
        wanted, prefix = names[directory], directory + b"/" if directory else b""
        try:
            opened = os.scandir(root + b"/" + directory if directory else root)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # deleted meanwhile, or not readable
        with opened as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    if prefix + name in names:
                        pending.append(prefix + name)
                    elif name != b".git":
                        yield from _find_empty_directories(root, prefix + name, has_links=has_links)
                elif name in wanted or (not has_links and entry.is_symlink()):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except (FileNotFoundError, PermissionError):
                        continue  # deleted meanwhile
                    if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                        yield prefix + name, status


def _add_parents(names: dict[bytes, set[bytes]], directory: bytes) -> None:
    while directory not in names:
        names[directory] = set()
        directory = directory.rpartition(b"/")[0]


def _find_empty_directories(root: bytes, path: bytes, *, has_links: bool) -> list[tuple[bytes, os.stat_result | None]]:
    """Return the empty directories from `path` down, or none if there is any (ignored) file.

    If the listing has no links, they are returned, too.
    """
    found: list[tuple[bytes, os.stat_result | None]] = []
    pending = [path]
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(root + b"/" + directory) as entries:
                is_empty = True
                for entry in entries:
                    is_empty = False
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(directory + b"/" + entry.name)
                    elif not has_links and entry.is_symlink():
                        found.append((directory + b"/" + entry.name, entry.stat(follow_symlinks=False)))
                    else:
                        return []
        except OSError:
            return []
        if is_empty:
            found.append((directory, None))
    return found


MAX_TYPE_ENTRIES = 4_000
MAX_TYPE_DEPTH = 3
_NO_SOURCES = frozenset({"node_modules", "__pycache__", "venv", "target", "dist", "build"})


def list_file_types(directory: Path) -> set[str]:
    """Return the extensions of files near the top of a tree. Blocks."""
    types: set[str] = set()
    level, left = [str(directory)], MAX_TYPE_ENTRIES
    for _ in range(MAX_TYPE_DEPTH):
        below: list[str] = []
        for each in level:
            try:
                with os.scandir(each) as entries:
                    for entry in entries:
                        if (left := left - 1) < 0:
                            return types
                        if entry.name.startswith("."):
                            continue
                        if not entry.is_dir(follow_symlinks=False):
                            types.add(f".{entry.name.rpartition('.')[2].lower()}")
                        elif entry.name not in _NO_SOURCES:
                            below.append(entry.path)
            except OSError:
                continue
        level = below
    return types

"""Which files of a tree are worth keeping: what git tracks or would, elsewhere what no ignore file names.

The user's index is only read, and nothing that the repository configures is started.
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

from kedge.files.environment import GIT_OPTIONS, StrPath, env_outside, find_program, hardened_git_env, possible

# A larger tree is no project: a home, a disk, a folder of data.
MAX_FILES = 100_000
LIST_S = 20.0
KEDGEIGNORE = b".kedgeignore"
_CHUNK = 1024 * 1024

_LIST = (*GIT_OPTIONS, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
_RIPGREP = ("--no-config", "--no-messages", "--hidden", "--no-require-git", "-g", "!.git", "--files", "--null")


class Uncovered(Exception):
    """This tree cannot be watched; `why` says so in a few words."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def ripgrep(workspace: StrPath) -> str | None:
    """The one that was installed with Kedge, or the user's own from outside the workspace."""
    return _installed_ripgrep() or find_program("rg", os.environ, workspace)


@cache
def _installed_ripgrep() -> str | None:
    import sysconfig  # nothing that a starting server should wait for

    for directory in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if os.access(directory / "rg", os.X_OK):
            return str(directory / "rg")
    return None


def quiet(env: Mapping[str, str], root: StrPath) -> dict[str, str]:
    """An environment in which git only reads what is here, as it is, and starts nothing that a repository brings."""
    return {**hardened_git_env(env_outside(possible(env), root)), "GIT_NO_REPLACE_OBJECTS": "1"}


class Listing(NamedTuple):
    """Paths from the root. `has_links`: links are among them; ripgrep does not tell of any."""

    paths: set[bytes]
    has_links: bool = True


def tracked(root: bytes, env: Mapping[str, str]) -> Listing:
    """Blocks, for a bounded time: not for the loop. Raises `Uncovered`."""
    clean = quiet(env, root)
    git = find_program("git", clean, root)
    listed = None if git is None else _listed([git, *_LIST], root, clean)
    if listed:
        return Listing(listed)
    # No repository, no git, or a place that an outer repository ignores.
    program = ripgrep(root)
    options = [] if listed is None else ["--no-ignore-parent"]
    if os.path.isfile(root + b"/" + KEDGEIGNORE):
        options += ["--ignore-file", os.fsdecode(KEDGEIGNORE)]
    found = None if program is None else _listed([program, *_RIPGREP, *options], root, clean, is_found=(0, 1))
    if found is None:
        raise Uncovered("neither git nor ripgrep could list its files")
    return Listing(found, has_links=False)


def _listed(
    command: Sequence[str], root: bytes, env: Mapping[str, str], is_found: tuple[int, ...] = (0,)
) -> set[bytes] | None:
    """None: the program is not there, or cannot do it here."""
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
                    raise Uncovered(f"it has over {MAX_FILES:,} files")
        except BaseException:
            process.kill()
            raise
    if process.returncode not in is_found:
        return None
    return {name.removeprefix(b"./").rstrip(b"/") for name in names if name}


def _read_until(deadline: float, fd: int) -> bytes:
    """What there is next, nothing at the end. A program on a dead disk may never say anything."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(max(deadline - time.monotonic(), 0) * 1000):
        raise Uncovered(f"listing its files takes over {LIST_S:.0f} s")
    return os.read(fd, _CHUNK)


# --- One walk over a tree: the files and links that are listed, as they are now, and the directories that hold nothing.


def walk(root: bytes, listed: Listing) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """Files and links with their status, empty directories with None. Blocks: not for the loop."""
    names: dict[bytes, set[bytes]] = {b"": set()}
    for path in listed.paths:
        parent, _, name = path.rpartition(b"/")
        if parent not in names:
            _add_parents(names, parent)
        names[parent].add(name)
    has_links, left = listed.has_links, [b""]
    while left:
        directory = left.pop()
        wanted, prefix = names[directory], directory + b"/" if directory else b""
        try:
            opened = os.scandir(root + b"/" + directory if directory else root)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # gone, or not ours to see
        with opened as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    if prefix + name in names:
                        left.append(prefix + name)
                    elif name != b".git":
                        yield from _hollow(root, prefix + name, has_links=has_links)
                elif name in wanted or (not has_links and entry.is_symlink()):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except (FileNotFoundError, PermissionError):
                        continue  # this one is gone; the others are not
                    if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                        yield prefix + name, status


def _add_parents(names: dict[bytes, set[bytes]], directory: bytes) -> None:
    while directory not in names:
        names[directory] = set()
        directory = directory.rpartition(b"/")[0]


def _hollow(root: bytes, path: bytes, *, has_links: bool) -> list[tuple[bytes, os.stat_result | None]]:
    """The empty directories from here down, if there is nothing but directories: what is ignored is not looked at.

    Where links are not listed, they are found here, too.
    """
    found: list[tuple[bytes, os.stat_result | None]] = []
    left = [path]
    while left:
        directory = left.pop()
        try:
            with os.scandir(root + b"/" + directory) as entries:
                is_empty = True
                for entry in entries:
                    is_empty = False
                    if entry.is_dir(follow_symlinks=False):
                        left.append(directory + b"/" + entry.name)
                    elif not has_links and entry.is_symlink():
                        found.append((directory + b"/" + entry.name, entry.stat(follow_symlinks=False)))
                    else:
                        return []
        except OSError:
            return []
        if is_empty:
            found.append((directory, None))
    return found

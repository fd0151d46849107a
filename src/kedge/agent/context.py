"""Context files: what people wrote down for agents (`AGENTS.md` and friends), for all projects and for this one.

Whatever is wrong with one of them, a run does not fail for it. From the general to the particular: the global one, then
those from the repository's root down to the workspace, so that what is said last is said for this directory.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MAX_FILE_BYTES = 64 * 1024  # about 16,000 tokens: what is longer is a manual, to be read when needed
MAX_ALL_BYTES = 192 * 1024
MAX_LEVELS = 32  # of directories upwards
GLOBAL_NAME = "AGENTS.md"


class ContextFile(NamedTuple):
    path: Path
    text: str
    is_cut: bool


async def context_files(directory: Path, names: Sequence[str], env: Mapping[str, str]) -> list[ContextFile]:
    """Off the loop: a workspace may be on a slow disk."""
    return await asyncio.to_thread(read_context_files, directory, names, global_directory(env))


def global_directory(env: Mapping[str, str]) -> Path | None:
    """Where the user keeps what holds everywhere; nowhere, if the environment names no home."""
    if (config := env.get("XDG_CONFIG_HOME", "")).startswith("/"):
        return Path(config) / "kedge"
    return Path(home) / ".config" / "kedge" if (home := env.get("HOME")) else None


def read_context_files(directory: Path, names: Sequence[str], global_dir: Path | None) -> list[ContextFile]:
    found: list[ContextFile] = []
    seen: set[tuple[int, int]] = set()
    left = MAX_ALL_BYTES
    for path in _candidates(directory, names, global_dir):
        try:
            file = _read(path, seen, min(MAX_FILE_BYTES, left))
        except (OSError, ValueError):
            continue  # not there, not readable, a name with a NUL: not our concern here
        if file is not None:
            found.append(file)
            left -= len(file.text.encode())
        if left <= 0:
            break
    return found


def _candidates(directory: Path, names: Sequence[str], global_dir: Path | None) -> Iterator[Path]:
    if global_dir is not None:
        yield global_dir / GLOBAL_NAME
    for level in levels(directory):
        yield from (level / name for name in names)


def levels(directory: Path) -> Iterable[Path]:
    """The directories from the repository's root down to the workspace; only the workspace where there is none."""
    upwards = [directory, *directory.parents][:MAX_LEVELS]
    root = next((i for i, level in enumerate(upwards) if (level / ".git").exists()), 0)
    return reversed(upwards[: root + 1])


def _read(path: Path, seen: set[tuple[int, int]], most: int) -> ContextFile | None:
    """One that is there under two names (a link, or a file system without capitals) is told once."""
    # Not blocking: a pipe in place of a file must not hold up a run.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or (info.st_dev, info.st_ino) in seen:
            return None
        seen.add((info.st_dev, info.st_ino))
        data = file.read(most + 1)
    text = _text(data[:most]).strip()
    return ContextFile(path, text, len(data) > most) if text else None


def _text(data: bytes) -> str:
    """Odd encodings are read as well as can be: what cannot be decoded is marked."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace").replace("\0", "")
    return data.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\0", "")

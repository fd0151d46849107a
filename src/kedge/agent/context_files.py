"""Context files: what people wrote down for agents (`AGENTS.md` and friends), for all projects and for this one.

Whatever is wrong with one of them, a run does not fail for it. From the general to the particular: the global one, then
those from the repository's root down to the workspace, so that what is said last is said for this directory. A link
that leads out of a repository that is not trusted is not followed: it could name a key of the user's.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kedge.config.schema import Config
from kedge.files.safe_open import open_file

MAX_FILE_BYTES = 64 * 1024  # about 16,000 tokens: what is longer is a manual, to be read when needed
MAX_ALL_BYTES = 192 * 1024
MAX_LEVELS = 32  # of directories upwards
GLOBAL_NAME = "AGENTS.md"
LEADS_OUT = "[Not read: it is a link that leads out of the repository. The user can allow it with: kedge config trust]"


class ContextFile(NamedTuple):
    path: Path
    text: str
    is_cut: bool


async def context_files(directory: Path, config: Config, env: Mapping[str, str]) -> list[ContextFile]:
    """Off the loop: a workspace may be on a slow disk."""
    return await asyncio.to_thread(_configured_files, directory, config, env)


def _configured_files(directory: Path, config: Config, env: Mapping[str, str]) -> list[ContextFile]:
    from kedge.config.trust import is_trusted  # nothing that a starting server should wait for

    trusted = is_trusted(directory, config.trusted, Path(env.get("HOME") or Path.home()))
    trusted = trusted and config.sandbox.mode == "off"  # a held command could make a link to what it may not read
    return read_context_files(directory, config.agent.context_files, global_directory(env), is_trusted=trusted)


def global_directory(env: Mapping[str, str]) -> Path | None:
    """Where the user keeps what holds everywhere; nowhere, if the environment names no home."""
    if (config := env.get("XDG_CONFIG_HOME", "")).startswith("/"):
        return Path(config) / "kedge"
    return Path(home) / ".config" / "kedge" if (home := env.get("HOME")) else None


def read_context_files(
    directory: Path, names: Sequence[str], global_dir: Path | None, *, is_trusted: bool = False
) -> list[ContextFile]:
    found: list[ContextFile] = []
    seen: set[tuple[int, int]] = set()
    left = MAX_ALL_BYTES
    for path, within in _candidates(directory, names, global_dir):
        try:
            file = _read(path, None if is_trusted else within, seen, min(MAX_FILE_BYTES, left))
        except (OSError, RuntimeError, ValueError):
            continue  # not there, not readable, links in a circle, a name with a NUL: not our concern here
        if file is not None:
            found.append(file)
            left -= len(file.text.encode())
        if left <= 0:
            break
    return found


def _candidates(directory: Path, names: Sequence[str], global_dir: Path | None) -> Iterator[tuple[Path, Path | None]]:
    """What may be there, and the directory that it must not lead out of."""
    if global_dir is not None:
        yield global_dir / GLOBAL_NAME, None
    downwards = list(levels(directory))
    root = downwards[0].resolve()
    for level in downwards:
        yield from ((level / name, root) for name in names)


def levels(directory: Path) -> Iterable[Path]:
    """The directories from the repository's root down to the workspace; only the workspace where there is none."""
    upwards = [directory, *directory.parents][:MAX_LEVELS]
    root = next((i for i, level in enumerate(upwards) if (level / ".git").exists()), 0)
    return reversed(upwards[: root + 1])


def _read(path: Path, within: Path | None, seen: set[tuple[int, int]], most: int) -> ContextFile | None:
    """One that is there under two names (a link, or a file system without capitals) is told once."""
    real = path.resolve(strict=True)
    if within is not None and not real.is_relative_to(within):
        return ContextFile(path, LEADS_OUT, is_cut=False)
    # Not blocking: a pipe in place of a file must not hold up a run.
    fd = open_file(real, os.O_RDONLY | os.O_NONBLOCK)
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

"""Context files: instructions for agents (such as `AGENTS.md`), of the user and of the project; and user commands.

The order is from general to specific: the user's file, then those from the repository's root down to the workspace.
An unreadable file never fails a run. In an untrusted repository, links out of it are not followed: they could point to
a secret.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kedge.config.schema import Config
from kedge.files.safe_open import open_file
from kedge.protocol.api import CommandSource, UserCommand

MAX_FILE_BYTES = 64 * 1024  # about 16,000 tokens: the model can read the rest of a longer file when needed
MAX_ALL_BYTES = 192 * 1024
MAX_LEVELS = 32  # parent directories that are searched
GLOBAL_NAME = "AGENTS.md"
LEADS_OUT = "[Not read: it is a link that leads out of the repository. The user can allow it with: kedge config trust]"


class ContextFile(NamedTuple):
    path: Path
    text: str
    is_cut: bool


async def load_context_files(directory: Path, config: Config, env: Mapping[str, str]) -> list[ContextFile]:
    """Load the configured context files in a thread: a workspace may be on a slow disk."""
    return await asyncio.to_thread(_load, directory, config, env)


def _load(directory: Path, config: Config, env: Mapping[str, str]) -> list[ContextFile]:
    from kedge.config.trust import is_trusted  # slow to import: not at the server's start

    trusted = is_trusted(directory, config.trusted, Path(env.get("HOME") or Path.home()))
    trusted = trusted and config.sandbox.mode == "off"  # a sandboxed command could link to a file it may not read
    return read_context_files(directory, config.agent.context_files, user_config_directory(env), is_trusted=trusted)


def user_config_directory(env: Mapping[str, str]) -> Path | None:
    """Return the directory of the user's own files; None if the environment names no home."""
    if (config := env.get("XDG_CONFIG_HOME", "")).startswith("/"):
        return Path(config) / "kedge"
    return Path(home) / ".config" / "kedge" if (home := env.get("HOME")) else None


def read_context_files(
    directory: Path, names: Sequence[str], global_dir: Path | None, *, is_trusted: bool = False
) -> list[ContextFile]:
    found: list[ContextFile] = []
    seen: set[tuple[int, int]] = set()
    left = MAX_ALL_BYTES
    for path, within in _list_candidates(directory, names, global_dir):
        try:
            file = _read(path, None if is_trusted else within, seen, min(MAX_FILE_BYTES, left))
        except (OSError, RuntimeError, ValueError):
            continue  # missing, unreadable, a cycle of links, a name with a NUL
        if file is not None:
            found.append(file)
            left -= len(file.text.encode())
        if left <= 0:
            break
    return found


def _list_candidates(
    directory: Path, names: Sequence[str], global_dir: Path | None
) -> Iterator[tuple[Path, Path | None]]:
    """Yield paths of possible context files, and the directory that a link must not lead out of."""
    if global_dir is not None:
        yield global_dir / GLOBAL_NAME, None
    downwards = list(repository_levels(directory))
    root = downwards[0].resolve()
    for level in downwards:
        yield from ((level / name, root) for name in names)


def repository_levels(directory: Path) -> Iterable[Path]:
    """Return the directories from the repository's root to the workspace; without a repository the workspace alone."""
    upwards = [directory, *directory.parents][:MAX_LEVELS]
    root = next((i for i, level in enumerate(upwards) if (level / ".git").exists()), 0)
    return reversed(upwards[: root + 1])


def _read(path: Path, within: Path | None, seen: set[tuple[int, int]], max_bytes: int) -> ContextFile | None:
    """Read a context file. Returns None for one that was read before under another name, such as a link."""
    real = path.resolve(strict=True)
    if within is not None and not real.is_relative_to(within):
        return ContextFile(path, LEADS_OUT, is_cut=False)
    # Not blocking: a named pipe instead of a file must not delay a run.
    fd = open_file(real, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or (info.st_dev, info.st_ino) in seen:
            return None
        seen.add((info.st_dev, info.st_ino))
        data = file.read(max_bytes + 1)
    text = _decode(data[:max_bytes]).strip()
    return ContextFile(path, text, len(data) > max_bytes) if text else None


def _decode(data: bytes) -> str:
    """Decode text in the usual encodings; replace what cannot be decoded."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace").replace("\0", "")
    return data.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\0", "")


MAX_COMMANDS = 200  # a longer menu is of no use
MAX_BYTES = 64 * 1024  # a longer one is not a prompt
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_DESCRIPTION = re.compile(r"^description:\s*(.+?)\s*$", re.MULTILINE)


def list_user_commands(directory: Path, env: Mapping[str, str] = os.environ) -> list[UserCommand]:
    """Return the user-defined commands: Markdown files, in which `$ARGUMENTS` stands for the text after the name.

    They are in `commands/` of the configuration directory and in `.kedge/commands/` of the workspace. The user's own
    take precedence: a cloned repository cannot replace them. Left out are links and files that cannot be read.
    """
    found: dict[str, UserCommand] = {}
    directories: list[tuple[Path | None, CommandSource]] = [
        (user_config_directory(env), "user"),
        (directory / ".kedge", "workspace"),
    ]
    for parent, source in directories:
        if parent is not None:
            for path in _list_files(parent / "commands"):
                if command := _read_command(path, source):
                    found.setdefault(command.name, command)
    return sorted(list(found.values())[:MAX_COMMANDS], key=lambda command: command.name)


def _list_files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".md" and _NAME.fullmatch(path.stem))
    except OSError:
        return []


def _read_command(path: Path, source: CommandSource) -> UserCommand | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = os.read(fd, MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        return None
    text = data.decode(errors="replace").replace("\r\n", "\n")
    front = _FRONT.match(text)
    described = _DESCRIPTION.search(front[1]) if front else None
    body = text[front.end() :] if front else text
    first = next((line.strip("# ").strip() for line in body.splitlines() if line.strip()), "")
    description = (described[1].strip("\"'") if described else first)[:200]
    return UserCommand(name=path.stem, description=description, source=source, text=body.strip())

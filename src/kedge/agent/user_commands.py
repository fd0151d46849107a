"""The user's own commands: Markdown files that become prompts, with `$ARGUMENTS` where the words after the name go.

They lie in `commands/` of the configuration directory, and in `.kedge/commands/` of the workspace. The user's own win:
what a cloned repository brings cannot take their place.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from kedge.agent.context_files import global_directory
from kedge.protocol.api import CommandSource, UserCommand

MAX_COMMANDS = 200  # more than anybody finds again
MAX_BYTES = 64 * 1024  # a prompt that long is a document
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_DESCRIPTION = re.compile(r"^description:\s*(.+?)\s*$", re.MULTILINE)


def user_commands(directory: Path, env: Mapping[str, str] = os.environ) -> list[UserCommand]:
    """By name. What cannot be read, or leads out of its directory, is not one."""
    found: dict[str, UserCommand] = {}
    places: list[tuple[Path | None, CommandSource]] = [
        (global_directory(env), "user"),
        (directory / ".kedge", "workspace"),
    ]
    for place, source in places:
        if place is not None:
            for path in _files(place / "commands"):
                if command := _read(path, source):
                    found.setdefault(command.name, command)
    return sorted(list(found.values())[:MAX_COMMANDS], key=lambda command: command.name)


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(each for each in directory.iterdir() if each.suffix == ".md" and _NAME.fullmatch(each.stem))
    except OSError:
        return []


def _read(path: Path, source: CommandSource) -> UserCommand | None:
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
    told = _DESCRIPTION.search(front[1]) if front else None
    body = text[front.end() :] if front else text
    first = next((line.strip("# ").strip() for line in body.splitlines() if line.strip()), "")
    description = (told[1].strip("\"'") if told else first)[:200]
    return UserCommand(name=path.stem, description=description, source=source, text=body.strip())

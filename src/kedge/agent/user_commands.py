"""User-defined commands: Markdown files used as prompts, in which `$ARGUMENTS` stands for the text after the name.

They are in `commands/` of the configuration directory and in `.kedge/commands/` of the workspace. The user's own take
precedence: a cloned repository cannot replace them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from kedge.agent.context_files import user_config_directory
from kedge.protocol.api import CommandSource, UserCommand

MAX_COMMANDS = 200  # nobody could find one among more
MAX_BYTES = 64 * 1024  # a longer one is not a prompt
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_DESCRIPTION = re.compile(r"^description:\s*(.+?)\s*$", re.MULTILINE)


def list_user_commands(directory: Path, env: Mapping[str, str] = os.environ) -> list[UserCommand]:
    """Return the commands by name, without files that cannot be read or that are links."""
    found: dict[str, UserCommand] = {}
    directories: list[tuple[Path | None, CommandSource]] = [
        (user_config_directory(env), "user"),
        (directory / ".kedge", "workspace"),
    ]
    for parent, source in directories:
        if parent is not None:
            for path in _list_files(parent / "commands"):
                if command := _read(path, source):
                    found.setdefault(command.name, command)
    return sorted(list(found.values())[:MAX_COMMANDS], key=lambda command: command.name)


def _list_files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".md" and _NAME.fullmatch(path.stem))
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
    described = _DESCRIPTION.search(front[1]) if front else None
    body = text[front.end() :] if front else text
    first = next((line.strip("# ").strip() for line in body.splitlines() if line.strip()), "")
    description = (described[1].strip("\"'") if described else first)[:200]
    return UserCommand(name=path.stem, description=description, source=source, text=body.strip())

"""Real processes for tests: a family that does not listen to SIGTERM, and how to see who lives."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path


class Pipe:
    """A named pipe: what a script writes into it is a word that a test can wait for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    async def read(self) -> str:
        return await asyncio.to_thread(self.path.read_text)


class StubbornFamily:
    """A shell and its child, both deaf to SIGTERM. They tell their numbers when they are ready."""

    def __init__(self, directory: Path) -> None:
        self._script = directory / "stubborn.sh"
        self._told = Pipe(directory / "pids")
        self._script.write_text(
            "trap '' TERM\n"
            "sh -c 'trap \"\" TERM; while :; do sleep 0.2; done' &\n"
            f'echo "$$ $!" > "{self._told.path}"\n'
            "while :; do sleep 0.2; done\n"
        )

    @property
    def command(self) -> str:
        return f"sh {self._script}"

    async def pids(self) -> list[int]:
        return [int(pid) for pid in (await self._told.read()).split()]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not fetched by its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

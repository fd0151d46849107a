"""Waiting for a file of another process to change, with inotify and not by looking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kedge.config.watch import DirectoryEvent, Inotify
from tests.support.reader import LIMIT_S


class FileWatch:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Until `is_true`, which is asked again after each change in the directory."""
        changed = asyncio.Event()

        def note(_: DirectoryEvent) -> None:
            changed.set()

        inotify = Inotify(note)
        try:
            inotify.watch(self._directory)
            async with asyncio.timeout(LIMIT_S):
                while not is_true():
                    await changed.wait()
                    changed.clear()
        finally:
            inotify.close()

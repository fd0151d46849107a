"""Every task has an owner: these are the engine's, and end with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from kedge.protocol.errors import KedgeError
from kedge.store.errors import ClaimLost

log = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something that goes on when its caller leaves."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._disown)
        return task

    def adopt(self, task: asyncio.Task[object]) -> None:
        """Keep a task that ignores its cancellation until it ends by itself."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, patience_s: float) -> None:
        """Let them come to their end, for a while; then they go on unwatched."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)

    async def end(self, patience_s: float) -> None:
        for task in self._tasks:
            task.cancel()
        await wait_for_end(set(self._tasks), patience_s)

    def _disown(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, KedgeError | ClaimLost):  # for the caller, who may have left
            log.error("a task of the engine failed", exc_info=error)


async def wait_for_end(tasks: set[asyncio.Task[Any]], patience_s: float) -> None:
    """Wait for tasks that are about to end; those that do not are cancelled, and not waited for."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=patience_s)
    for task in late:
        task.cancel()

"""Start a command that is sandboxed from its first instruction, without restricting the server.

The kernel restricts a thread and all processes that it starts. So each command gets a thread, which restricts itself,
starts the command, waits for its end, and ends. Other threads are not affected, no code runs between fork and exec, and
the command starts as fast as any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# Pauses between attempts to reap a supervisor that is about to end.
_REAP_PAUSES_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.02, 0.05, 0.1, 0.2, 0.5)


class SandboxedProcess:
    """The part of `asyncio.subprocess.Process` that a command needs."""

    def __init__(self, pid: int, ended: asyncio.Future[int]) -> None:
        self.pid = pid
        self._ended = ended

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)


async def launch(
    words: Sequence[str],
    *,
    restrict: Callable[[], None],
    stdin: int,
    output: int,
    directory: Path,
    env: Mapping[str, str],
) -> SandboxedProcess:
    """Start the command. The descriptors must stay open until it returns.

    Raises OSError, or the error of `restrict`; then nothing was started."""
    loop = asyncio.get_running_loop()
    started: asyncio.Future[int] = loop.create_future()
    ended: asyncio.Future[int] = loop.create_future()

    def work() -> None:
        try:
            restrict()
            child = subprocess.Popen(
                words, stdin=stdin, stdout=output, stderr=output, cwd=directory, env=env, start_new_session=True
            )
        except BaseException as error:  # noqa: BLE001 - it is raised in the awaiting task
            _set_future(loop, started, error=error)
            return
        _set_future(loop, started, child.pid)
        _set_future(loop, ended, child.wait())

    # A daemon thread: a server that exits does not wait for commands that are being ended.
    threading.Thread(target=work, name="sandboxed command", daemon=True).start()
    try:
        return SandboxedProcess(await asyncio.shield(started), ended)
    except asyncio.CancelledError:
        await _wait_until_started(started)
        raise


async def _wait_until_started(started: asyncio.Future[int]) -> None:
    """Wait although canceled: the thread uses descriptors that the caller is about to close. Takes milliseconds."""
    while not started.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({started})
    started.exception()  # retrieved, so that asyncio does not log it


async def reap_supervisor(group: int) -> None:
    """Reap the supervisor process (bwrap) of a command that has ended and left no other process.

    Its parent is gone, so it is a child of the server, and the group seems to be alive until it is reaped."""
    for pause_s in _REAP_PAUSES_S:
        try:
            while os.waitpid(-group, os.WNOHANG)[0]:  # noqa: ASYNC222 - it does not wait
                pass
        except ChildProcessError:
            return  # reaped, or another process is its parent
        await asyncio.sleep(pause_s)


def run_in_thread(work: Callable[[], T]) -> T:
    """Run a function in a thread of its own, so that a restriction applies to no other thread."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="sandbox probe", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _set_future(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[int], value: int = 0, *, error: BaseException | None = None
) -> None:
    def set_it() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(set_it)

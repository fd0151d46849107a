"""Starting a command that is held from its first instruction on, without holding the server.

What the kernel is asked to restrict is a thread, and whatever that thread starts. So each command gets a thread, which
restricts itself, starts the command, waits for its end, and ends. No other thread is touched, nothing is run between
fork and exec, and a held command starts as quickly as any other.
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

# How often a supervisor is looked for that is about to end: it takes a moment of the kernel's.
_LOOKS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.02, 0.05, 0.1, 0.2, 0.5)


class SandboxedProcess:
    """As much of `asyncio.subprocess.Process` as a command needs."""

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
    """The descriptors are used until it returns. Raises OSError, or what `restrict` does: then nothing was started."""
    loop = asyncio.get_running_loop()
    started: asyncio.Future[int] = loop.create_future()
    ended: asyncio.Future[int] = loop.create_future()

    def work() -> None:
        try:
            restrict()
            child = subprocess.Popen(
                words, stdin=stdin, stdout=output, stderr=output, cwd=directory, env=env, start_new_session=True
            )
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            _tell(loop, started, error=error)
            return
        _tell(loop, started, child.pid)
        _tell(loop, ended, child.wait())

    # A daemon: a server that leaves does not wait for commands that are ended for it.
    threading.Thread(target=work, name="sandboxed command", daemon=True).start()
    try:
        return SandboxedProcess(await asyncio.shield(started), ended)
    except asyncio.CancelledError:
        await _settled(started)
        raise


async def _settled(started: asyncio.Future[int]) -> None:
    """Milliseconds: the thread has descriptors in its hands that the caller is about to close."""
    while not started.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({started})
    started.exception()  # seen


async def reap_supervisor(group: int) -> None:
    """After the end of a command that left nobody: wait for who kept house for it, and fetch the dead.

    Its parent is gone, so it came to us, and for as long as nobody fetches it the group seems to be alive."""
    for pause_s in _LOOKS_S:
        try:
            while os.waitpid(-group, os.WNOHANG)[0]:  # noqa: ASYNC222 - it does not wait
                pass
        except ChildProcessError:
            return  # or it went to somebody else, who will
        await asyncio.sleep(pause_s)


def run_in_thread(work: Callable[[], T]) -> T:
    """Do something in a thread that ends with it, so that what it restricts is restricted nowhere else."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failed.append(error)

    thread = threading.Thread(target=run, name="sandbox probe", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _tell(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[int], value: int = 0, *, error: BaseException | None = None
) -> None:
    def tell() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
        loop.call_soon_threadsafe(tell)

"""Waiting for something that the log will tell, and a bound on how many work at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Hashable
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, TypeVar

from kedge.protocol.errors import KedgeError, StoreUnavailable
from kedge.store.errors import ClaimLost

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Waiters(Generic[K, V]):
    """Futures by key. Listen first, then ask the store whether it happened already: so nothing is missed."""

    def __init__(self) -> None:
        self._waiting: dict[K, set[asyncio.Future[V]]] = {}

    @contextmanager
    def waiter(self, key: K) -> Generator[asyncio.Future[V]]:
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(future)
        try:
            yield future
        finally:
            waiting = self._waiting.get(key, set())
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(key, None)

    def resolve(self, key: K, value: V) -> None:
        for future in self._waiting.pop(key, ()):
            if not future.done():
                future.set_result(value)


class TurnSlots:
    """How many turns may work at once. One that waits for a person lends its slot to another."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def take(self, *, is_counted: bool) -> AsyncGenerator[TurnSlot]:
        """Sub-agents are not counted: they work while their parent waits, and would wait for it forever."""
        slot = TurnSlot(self._free, is_counted)
        await slot.acquire()
        try:
            yield slot
        finally:
            slot.release()


class TurnSlot:
    def __init__(self, free: asyncio.Semaphore, is_counted: bool) -> None:
        self._free = free
        self._is_counted = is_counted
        self._is_held = False

    async def acquire(self) -> None:
        if not self._is_counted or self._is_held:
            return
        await self._free.acquire()
        if self._is_held:  # another call of the same turn was faster
            self._free.release()
        self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._free.release()

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[None]:
        """Give the slot away while waiting. A turn that is cancelled meanwhile does not queue for it again."""
        self.release()
        yield
        await self.acquire()


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


# A store that fails is asked again: soon at first, then at this pace, until the disk is back.
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 2.0


async def retry_store(write: Callable[[], Awaitable[T]]) -> T:
    """Do it until the store takes it. `StoreUnavailable` means that nothing was written, so nothing is done twice."""
    delay_s = RETRY_FIRST_S
    while True:
        try:
            return await write()
        except StoreUnavailable as error:
            log.warning("%s; trying again in %.1f s", error.message, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_MOST_S)


async def run_in_own_thread(work: Callable[[], T]) -> T:
    """Whoever is cancelled leaves it to itself: it goes on to its end, which nobody hears of."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: None if told.done() else settle())

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            failure = error
            tell(lambda: told.set_exception(failure))
        else:
            tell(lambda: told.set_result(result))

    threading.Thread(target=run, name="run_in_own_thread", daemon=True).start()
    return await told

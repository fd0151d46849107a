"""Helpers for the engine's asyncio code: retried store calls, waiters, turn slots, owned tasks, hanging threads."""

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

# Delays between tries of a failing store call: soon at first, then at a steady pace until the disk works again.
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0

CLOCK_READ_S = 30.0


async def retry_store(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a store call until it raises no `StoreUnavailable`. That error means that nothing was written, so nothing
    is written twice. A full disk passes; a lost run does not."""
    delay_s = RETRY_FIRST_S
    while True:
        try:
            return await call()
        except StoreUnavailable as error:
            log.warning("%s; trying again in %.1f s", error.message, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_MAX_S)


async def sleep_until(time_s: float, now: Callable[[], float]) -> None:
    """Sleep until a time of day. Timers stand still while a computer is suspended, so the clock is read in between."""
    while (left_s := time_s - now()) > 0:  # noqa: ASYNC110 - it waits for the clock, which sets no event
        await asyncio.sleep(min(left_s, CLOCK_READ_S))


class Waiters(Generic[K, V]):
    """Futures by key, resolved by committed events. Register first, then read the store: so no event is missed."""

    def __init__(self) -> None:
        self._waiting: dict[K, set[asyncio.Future[V]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

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
    """Bound the number of turns that run at once. A turn that waits for a person or a provider lends its slot."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def take(self, *, is_counted: bool) -> AsyncGenerator[TurnSlot]:
        """Sub-agents are not counted: they run while their parent waits, and would wait for its slot forever."""
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
        self._is_taken = False

    async def acquire(self) -> None:
        if not self._is_counted or self._is_taken:
            return
        await self._free.acquire()
        if self._is_taken:  # another call of the same turn was faster
            self._free.release()
        self._is_taken = True

    def release(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._free.release()

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[None]:
        """Free the slot inside the block. A turn that is canceled in there does not queue for it again."""
        self.release()
        yield
        await self.acquire()


class Tasks:
    """Tasks that outlive their callers and end with the engine."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._remove)
        return task

    def adopt(self, task: asyncio.Task[object]) -> None:
        """Keep a reference to a task that ignores its cancellation, until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def cancel(self, timeout_s: float) -> None:
        for task in self._tasks:
            task.cancel()
        await wait_or_cancel(set(self._tasks), timeout_s)

    def _remove(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, KedgeError | ClaimLost):  # those are for the caller
            log.error("a task of the engine failed", exc_info=error)


async def wait_or_cancel(tasks: set[asyncio.Task[Any]], timeout_s: float) -> None:
    """Wait for tasks that are about to end; cancel those that take longer, without waiting for them."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=timeout_s)
    for task in late:
        task.cancel()


async def run_in_own_thread(work: Callable[[], T]) -> T:
    """Run `work` in a new daemon thread, because it may hang: it blocks neither the thread pool nor the exit.

    On cancellation the thread continues; its result is discarded.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: None if result.done() else set_it())

    def run() -> None:
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - raised in the waiting coroutine
            failure = error
            settle(lambda: result.set_exception(failure))
        else:
            settle(lambda: result.set_result(value))

    threading.Thread(target=run, name="kedge-file-scan", daemon=True).start()
    return await result

"""Waiting for something that the log will tell, and a bound on how many work at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Hashable
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, TypeVar

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

    def tell(self, key: K, value: V) -> None:
        for future in self._waiting.pop(key, ()):
            if not future.done():
                future.set_result(value)


class Slots:
    """How many turns may work at once. One that waits for a person lends its slot to another."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def take(self, *, is_counted: bool) -> AsyncGenerator[Slot]:
        """Sub-agents are not counted: they work while their parent waits, and would wait for it forever."""
        slot = Slot(self._free, is_counted)
        await slot.acquire()
        try:
            yield slot
        finally:
            slot.release()


class Slot:
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
    async def lent(self) -> AsyncGenerator[None]:
        """Give the slot away while waiting. A turn that is cancelled meanwhile does not queue for it again."""
        self.release()
        yield
        await self.acquire()

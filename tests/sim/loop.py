"""An event loop whose time is virtual, and an executor that does blocking work on it.

Nothing sleeps: when nothing is ready, time jumps to the next timer. The same calls give the same order of everything,
in every process: futures and tasks hash by their number, so that a set of them is walked the same way each time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Nothing is ready and no timer runs: whoever waits now would wait forever."""


class SimFuture(asyncio.Future[Any]):
    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class SimTask(asyncio.Task[Any]):
    def __init__(self, number: int, coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any], **options: Any) -> None:
        self.number = number  # before the task registers itself in a set
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class _Jump:
    """In the place of a selector: there is nothing to wait for but time."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        self._advance = advance

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock
        self._advance(timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._numbers = count(1)
        self._selector = _Jump(self._advance)
        self.threads: SimExecutor | None = None  # where `asyncio.to_thread` works
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(next(self._numbers), self)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        assert executor is None
        assert self.threads is not None
        return asyncio.wrap_future(self.threads.submit(func, *args), loop=self)

    def tasks(self) -> list[SimTask]:
        """All that are not done, in the order of their creation."""
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        return sorted(tasks, key=lambda task: task.number)

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return SimTask(next(self._numbers), coro, loop=loop, **options)

    def _advance(self, seconds: float) -> None:
        self._now += seconds

    # What the base class calls, and a loop without files does not need.

    def _process_events(self, _: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class SimExecutor:
    """Runs each job at one instant, a random while after it was submitted, and tells of it a random while later.

    So between the commit and its telling others can act, and a crash can strike on either side of it. `lanes` jobs are
    under way at once, as in a pool of that many threads.
    """

    def __init__(
        self,
        loop: SimLoop,
        delay: Callable[[], float],
        *,
        lanes: int,
        before: Callable[[], None] | None = None,
        on_ran: Callable[[Any], None] | None = None,
    ) -> None:
        self._loop = loop
        self._delay = delay
        self._free = lanes
        self._before = before  # may raise, as the job would
        self._on_ran = on_ran
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_dead = False

    def submit(self, fn: Callable[..., T], /, *args: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if self._is_dead:
                return
            if not future.set_running_or_notify_cancel():  # given up while it waited, as in a pool of threads
                self._free += 1
                self._start_waiting()
                return
            result, error = None, None
            try:
                if self._before is not None:
                    self._before()
                result = fn(*args)
            except Exception as raised:  # noqa: BLE001 - the boundary of an executor: the caller gets it
                error = raised
            self._loop.call_later(self._delay(), tell, result, error)
            if self._on_ran is not None:
                self._on_ran(result)

        def tell(result: Any, error: Exception | None) -> None:
            if self._is_dead:
                return
            self._free += 1
            self._start_waiting()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting.append(work)
        self._start_waiting()
        return future

    def die(self) -> None:
        """As in a crash: what did not run never runs, what was not told is never told."""
        self._is_dead = True

    def _start_waiting(self) -> None:
        while self._free and self._waiting and not self._is_dead:
            self._free -= 1
            self._loop.call_later(self._delay(), self._waiting.popleft())

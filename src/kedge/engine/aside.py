"""Work that may hang, in a thread of its own: a dead file system takes no thread from others, nor holds up the exit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
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

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await told

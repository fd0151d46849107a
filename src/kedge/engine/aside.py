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

    def tell(result: T | None, error: BaseException | None) -> None:
        if told.done():
            return
        if error is not None:
            told.set_exception(error)
        else:
            told.set_result(result)  # pyright: ignore[reportArgumentType]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await told

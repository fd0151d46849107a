"""The end of processes, as asyncio hears of it: from a thread each, which may be late on a busy machine."""

from __future__ import annotations

import asyncio
import threading

LIMIT_S = 10.0  # one that goes on is somebody else's to end


async def reaped() -> None:
    """Until asyncio has heard of every process that has ended: of one that it has not, it complains in a later test."""
    for thread in threading.enumerate():
        if thread.name.startswith("asyncio-waitpid-"):
            await asyncio.to_thread(thread.join, LIMIT_S)
    for _ in range(5):  # what they told the loop, and what that told others
        await asyncio.sleep(0)

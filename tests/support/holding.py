"""Holding a thread of the server at a failpoint, so that a test can let something else happen first."""

from __future__ import annotations

import asyncio
import threading

from kedge import failpoints

LIMIT_S = 30.0


def hold_at(place: str) -> tuple[asyncio.Event, threading.Event]:
    """An event that is set when a thread has come to the place, and one that lets it go on."""
    loop, there, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def hold() -> None:
        loop.call_soon_threadsafe(there.set)
        assert go.wait(LIMIT_S)

    failpoints.arm(place, hold)
    return there, go

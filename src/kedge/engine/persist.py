"""Transactions that must happen: a store that fails is waited for. A full disk passes; a lost run does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kedge.protocol.errors import StoreUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

# A store that fails is asked again: soon at first, then at this pace, until the disk is back.
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 2.0


async def persist(write: Callable[[], Awaitable[T]]) -> T:
    """Do it until the store takes it. `StoreUnavailable` means that nothing was written, so nothing is done twice."""
    delay_s = RETRY_FIRST_S
    while True:
        try:
            return await write()
        except StoreUnavailable as error:
            log.warning("%s; trying again in %.1f s", error.message, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_MOST_S)

"""When to come back after a drop, and when to give up. No clock and no chance of its own: both are passed in."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SILENCE_S = 25.0  # the server says something every 10 s: two heartbeats and a half were lost
GIVE_UP_S = 60.0  # a restart takes seconds; after a minute somebody has to look
FIRST_S = 0.05  # a server that was killed is back soon, and a person is waiting
MOST_S = 5.0  # often enough to notice within moments that the server is back


def chance() -> float:
    """A number from 0 to 1. (`random` takes longer to import than a prompt takes to be accepted.)"""
    return int.from_bytes(os.urandom(4), "big") / 0xFFFFFFFF


class Reconnect:
    """Exponential backoff with jitter, so that a hundred clients of a restarted server do not come back at once."""

    def __init__(
        self,
        *,
        give_up_s: float = GIVE_UP_S,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = chance,
    ) -> None:
        self.give_up_s = give_up_s
        self._clock = clock
        self._chance = chance
        self._failing_since: float | None = None
        self._failures = 0

    def reached(self) -> None:
        """The server answered."""
        self._failing_since = None

    def progressed(self) -> None:
        """The server is doing its work: the next drop is a new story."""
        self.reached()
        self._failures = 0

    def next_delay_s(self) -> float | None:
        """How long to wait before the next try; None: long enough, give up."""
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
        left_s = self._failing_since + self.give_up_s - now
        if left_s <= 0:
            return None
        most_s = min(FIRST_S * 2 ** min(self._failures, 20), MOST_S)
        self._failures += 1
        return min(most_s * (0.5 + self._chance() / 2), left_s)

"""When to try again after a lost connection, and when to give up. The clock and the randomness can be passed in."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

SILENCE_S = 25.0  # two and a half of the server's heartbeats, which come every 10 s
GIVE_UP_S = 60.0  # a restart takes seconds; after a minute a person has to look
FIRST_S = 0.05  # a killed server is back soon, and a person is waiting
MOST_S = 5.0  # often enough to notice within seconds that the server is back


def random_fraction() -> float:
    """A number from 0 to 1. (Importing `random` takes longer than a prompt takes to be accepted.)"""
    return int.from_bytes(os.urandom(4), "big") / 0xFFFFFFFF


class ReconnectPolicy:
    """Exponential backoff with jitter, so that a hundred clients of a restarted server do not come back at once."""

    def __init__(
        self,
        *,
        give_up_s: float = GIVE_UP_S,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_fraction,
    ) -> None:
        self.give_up_s = give_up_s
        self._clock = clock
        self._random = random
        self._failing_since: float | None = None
        self._failures = 0

    def record_contact(self) -> None:
        """The server answered: the time until giving up starts anew with the next failure."""
        self._failing_since = None

    def record_progress(self) -> None:
        """The server does its work: the delays start anew, too."""
        self.record_contact()
        self._failures = 0

    def next_delay_s(self) -> float | None:
        """Return how long to wait before the next attempt; None means give up."""
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
        left_s = self._failing_since + self.give_up_s - now
        if left_s <= 0:
            return None
        most_s = min(FIRST_S * 2 ** min(self._failures, 20), MOST_S)
        self._failures += 1
        return min(most_s * (0.5 + self._random() / 2), left_s)


class Waiter:
    """Plain waiting. `kedge run` replaces it with `Console`, which handles signals and draws a spinner; a subclass may
    return early, so callers check the clock and wait again."""

    def wait(self, fd: int | None, timeout_s: float, *, to_write: bool = False) -> bool:
        """Return whether `fd` is ready; False if the time is up or the caller should look around."""
        poll = select.poll()
        if fd is not None:
            poll.register(fd, select.POLLOUT if to_write else select.POLLIN)
        return bool(poll.poll(max(timeout_s, 0.0) * 1000))

    def pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self.wait(None, left_s)

    def show_status(self, status: str) -> None:
        """Show the reason for waiting. Does nothing here."""

"""How a synchronous client waits: for a socket, or for time to pass. A face puts its signals and its spinner here."""

from __future__ import annotations

import select
import time


class Waiter:
    """Plain waiting. A subclass may return early: callers look at the clock and wait again."""

    def wait(self, fd: int | None, timeout_s: float, *, to_write: bool = False) -> bool:
        """Whether `fd` is ready. False: the time is up, or there is something else to look at."""
        poll = select.poll()
        if fd is not None:
            poll.register(fd, select.POLLOUT if to_write else select.POLLIN)
        return bool(poll.poll(max(timeout_s, 0.0) * 1000))

    def pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self.wait(None, left_s)

    def say(self, doing: str) -> None:
        """What is being waited for, in a few words."""

"""How the synchronous client waits: for a file descriptor, or for time to pass."""

from __future__ import annotations

import select
import time


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

"""The terminal side of `kedge run`: the answer on standard output, a spinner, signals and a deadline.

Standard output is only written to when it can take something, so a stalled reader never delays a signal.
"""

from __future__ import annotations

import enum
import os
import select
import signal
import sys
import time

from kedge.client.reconnect import Waiter
from kedge.protocol.text_safety import for_terminal, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

TICK_S = 0.1
FIRST_TICK_S = 0.2  # an answer that comes at once needs no spinner
PIPE_BYTES = 4096  # a pipe that is ready takes this much without blocking
CLEAR_LINE = b"\r\x1b[K"
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PLAIN_FRAMES = "|/-\\"


class Stopped(Exception):
    """A signal ended the command."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum}")
        self.signum = signum


class TimeUp(Exception):
    """The deadline ended the command."""


class CannotWrite(Exception):
    """Standard output failed for another reason than a closed pipe."""


class Phase(enum.Enum):
    """The effect of a first signal and of the deadline. (A second signal always ends the process at once.)"""

    STARTING = enum.auto()  # nothing was sent: both end the command
    SENDING = enum.auto()  # the deadline ends the command; a signal is remembered
    FOLLOWING = enum.auto()  # both are remembered: the run has to be canceled
    CANCELLING = enum.auto()  # the cancel was sent: neither does anything
    TIMING_OUT = enum.auto()  # as CANCELLING, but the extended deadline ends the command
    FINISHING = enum.auto()  # the run has ended, its output is written: a signal ends the command


class Console(Waiter):
    def __init__(self, *, has_spinner: bool, timeout_s: float | None) -> None:
        self.phase = Phase.STARTING
        self.signum: int | None = None  # the first signal
        self._began = time.monotonic()
        self._deadline = None if timeout_s is None else self._began + timeout_s
        self._spinner = Spinner(self._began) if has_spinner else None
        self._pending = bytearray()
        self._is_mid_line = False
        self._wake_r, wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(wake_w, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        for signum in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # a shell's background jobs ignore Ctrl-C
                signal.signal(signum, self._on_signal)

    @property
    def is_time_up(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def extend_deadline(self, seconds: float) -> None:
        """Set a new deadline, counted from now."""
        self._deadline = time.monotonic() + seconds

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    # waiting

    def wait(self, fd: int | None, timeout_s: float, *, to_write: bool = False) -> bool:
        if self.is_time_up and self.phase in (Phase.STARTING, Phase.SENDING, Phase.TIMING_OUT):
            raise TimeUp
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        if fd is not None:
            poll.register(fd, select.POLLOUT if to_write else select.POLLIN)
        ready = dict(poll.poll(self._next_wakeup_s(timeout_s) * 1000))
        if self._wake_r in ready:
            _drain(self._wake_r)
        if fd in ready:
            return True
        if self._spinner and not self._is_mid_line:
            self._spinner.draw()
        return False

    def pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        before = self.signum
        while self.signum == before and (left_s := until - time.monotonic()) > 0:
            self.wait(None, left_s)

    def show_status(self, status: str) -> None:
        if self._spinner:
            self._spinner.status = status

    # writing

    def write(self, text: str) -> None:
        """Queue text for standard output; `flush` writes it."""
        self.write_bytes(_encode(text, fd=1))

    def write_bytes(self, data: bytes) -> None:
        if data:
            self._pending += data
            self._is_mid_line = not data.endswith(b"\n")

    def flush(self) -> None:
        """Write the queued output. Returns early, with the rest still queued, if the run has to be canceled."""
        if not self._pending:
            return
        self.hide_spinner()
        while self._pending:
            if self.signum is not None and self.phase in (Phase.SENDING, Phase.FOLLOWING):
                return
            if self.wait(1, 1.0, to_write=True):
                try:
                    written = os.write(1, self._pending[:PIPE_BYTES])
                except BlockingIOError:
                    continue
                except OSError as error:
                    if isinstance(error, BrokenPipeError):
                        raise
                    raise CannotWrite(
                        f"Could not write the answer ({error.strerror}). The session still has it."
                    ) from error
                del self._pending[:written]
            elif self.is_time_up:
                return

    def finish(self) -> None:
        """Write the rest of the output after the run has ended, however long its reader takes."""
        self._deadline = None
        self.phase = Phase.FINISHING
        self.hide_spinner()
        self._spinner = None
        self.flush()

    def write_error(self, text: str) -> None:
        """Write whole lines to standard error."""
        self.hide_spinner()
        write_all(2, _encode(text, fd=2))

    def hide_spinner(self) -> None:
        if self._spinner:
            self._spinner.erase()

    def _next_wakeup_s(self, timeout_s: float) -> float:
        wakeup_s = max(timeout_s, 0.0)
        if self._spinner and not self._is_mid_line:  # it can only be drawn between lines
            wakeup_s = min(wakeup_s, TICK_S)
        if self._deadline is not None and not self.is_time_up:
            wakeup_s = min(wakeup_s, self._deadline - time.monotonic() + 0.001)
        return wakeup_s

    def _on_signal(self, signum: int, _: FrameType | None) -> None:
        if self.signum is not None:
            self.hide_spinner()
            os._exit(128 + signum)
        self.signum = signum
        if self.phase in (Phase.STARTING, Phase.FINISHING):
            raise Stopped(signum)


class Spinner:
    """One moving line on standard error: the status, and the seconds so far."""

    def __init__(self, began: float) -> None:
        self.status = "connecting"
        self._began = began
        self._is_drawn = False
        is_unicode = (sys.stderr.encoding or "").lower().startswith("utf")
        self._frames = FRAMES if is_unicode else PLAIN_FRAMES

    def draw(self) -> None:
        elapsed_s = time.monotonic() - self._began
        if elapsed_s < FIRST_TICK_S:
            return
        frame = self._frames[int(elapsed_s / TICK_S) % len(self._frames)]
        line = f"{frame} {one_line(self.status, 1000)} {elapsed_s:.0f} s"
        write_all(2, CLEAR_LINE + line[: _width() - 1].encode("utf-8", "replace"))
        self._is_drawn = True

    def erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            write_all(2, CLEAR_LINE)


def open_standard_streams() -> None:
    """Open closed descriptors 0 to 2: a socket would get the number otherwise, and the answer be written to it."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def write_all(fd: int, data: bytes) -> None:
    """Write to standard error; does nothing if it is closed."""
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        pass


def _encode(text: str, *, fd: int) -> bytes:
    """The exact text for a pipe or a file; control characters are marked for a terminal."""
    return (for_terminal(text) if os.isatty(fd) else text).encode("utf-8", "replace")


def _width() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass

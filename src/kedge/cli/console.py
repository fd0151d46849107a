"""The terminal's side of a command that waits: the answer on standard output, a spinner, signals, and a deadline.

Standard output is only written to when it can take something, so that a stalled reader never keeps a signal from
being heard.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from kedge.client.waiter import Waiter
from kedge.protocol.text_safety import for_terminal, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

TICK_S = 0.1
FIRST_TICK_S = 0.2  # an answer that comes at once needs no spinner
PIPE_BYTES = 4096  # what a pipe that says it is ready takes without blocking
CLEAR_LINE = b"\r\x1b[K"
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PLAIN_FRAMES = "|/-\\"


class Stopped(Exception):
    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum}")
        self.signum = signum


class TimeUp(Exception):
    pass


class CannotWrite(Exception):
    """Standard output takes no more, and not because its reader left."""


class Console(Waiter):
    """Signals and the deadline end whatever is waited for, as long as they may; after that they are remembered."""

    def __init__(self, *, has_spinner: bool, timeout_s: float | None) -> None:
        self.may_stop = True  # whether a signal may end us: nothing was sent yet
        self.may_time_out = True
        self.signum: int | None = None
        self.is_heard = True  # whether somebody has acted on the signal
        self._began = time.monotonic()
        self._deadline = None if timeout_s is None else self._began + timeout_s
        self._spinner = Spinner(self._began) if has_spinner else None
        self._pending = bytearray()
        self._is_mid_line = False
        self._woken, waking = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        for signum in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # a shell's background jobs ignore Ctrl-C
                signal.signal(signum, self._on_signal)

    @property
    def is_time_up(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def extend(self, seconds: float) -> None:
        """A new deadline, from now on."""
        self._deadline = time.monotonic() + seconds
        self.may_time_out = True

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    # waiting

    def wait(self, fd: int | None, timeout_s: float, *, to_write: bool = False) -> bool:
        if self.may_time_out and self.is_time_up:
            raise TimeUp
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if fd is not None:
            poll.register(fd, select.POLLOUT if to_write else select.POLLIN)
        ready = dict(poll.poll(self._patience_s(timeout_s) * 1000))
        if self._woken in ready:
            _drain(self._woken)
        if fd in ready:
            return True
        if self._spinner and not self._is_mid_line:
            self._spinner.turn()
        return False

    def pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        before = self.signum
        while self.signum == before and (left_s := until - time.monotonic()) > 0:
            self.wait(None, left_s)

    def say(self, doing: str) -> None:
        if self._spinner:
            self._spinner.doing = doing

    # writing

    def answer(self, text: str) -> None:
        """Put text on its way to standard output; `flush` sends it."""
        self.answer_bytes(_encode(text, fd=1))

    def answer_bytes(self, data: bytes) -> None:
        self._pending += data
        self._is_mid_line = not data.endswith(b"\n")

    def flush(self) -> None:
        """Write what is pending. Returns early, with the rest still pending, when a signal or the deadline is due."""
        if not self._pending:
            return
        self.hide()
        while self._pending and self.is_heard:
            if self.wait(1, 1.0, to_write=True):
                try:
                    written = os.write(1, self._pending[:PIPE_BYTES])
                except BlockingIOError:
                    continue
                except OSError as error:
                    if isinstance(error, BrokenPipeError):
                        raise
                    why = f"cannot write the answer ({error.strerror}); its session keeps it"
                    raise CannotWrite(why) from error
                del self._pending[:written]
            elif self.is_time_up:
                return

    def finish(self) -> None:
        """The run is over: write the rest, however long its reader takes. A signal now only ends us."""
        self._deadline = None
        self.may_stop = self.is_heard = True
        self.hide()
        self._spinner = None
        self.flush()

    def error(self, text: str) -> None:
        """Text for standard error, whole lines."""
        self.hide()
        write_all(2, _encode(text, fd=2))

    def hide(self) -> None:
        """Until the next turn, if there is one."""
        if self._spinner:
            self._spinner.erase()

    def _patience_s(self, timeout_s: float) -> float:
        patience_s = max(timeout_s, 0.0)
        if self._spinner and not self._is_mid_line:  # between lines there is room for it
            patience_s = min(patience_s, TICK_S)
        if self._deadline is not None and not self.is_time_up:
            patience_s = min(patience_s, self._deadline - time.monotonic() + 0.001)
        return patience_s

    def _on_signal(self, signum: int, _: FrameType | None) -> None:
        if self.signum is not None:
            self.hide()
            os._exit(128 + signum)
        self.signum = signum
        self.is_heard = False
        if self.may_stop:
            self.is_heard = True
            raise Stopped(signum)


class Spinner:
    """One moving line on standard error: what is being worked on, and for how long."""

    def __init__(self, began: float) -> None:
        self.doing = "connecting"
        self._began = began
        self._is_drawn = False
        is_unicode = (sys.stderr.encoding or "").lower().startswith("utf")
        self._frames = FRAMES if is_unicode else PLAIN_FRAMES

    def turn(self) -> None:
        elapsed_s = time.monotonic() - self._began
        if elapsed_s < FIRST_TICK_S:
            return
        frame = self._frames[int(elapsed_s / TICK_S) % len(self._frames)]
        line = f"{frame} {one_line(self.doing, 1000)} {elapsed_s:.0f} s"
        write_all(2, CLEAR_LINE + line[: _width() - 1].encode("utf-8", "replace"))
        self._is_drawn = True

    def erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            write_all(2, CLEAR_LINE)


def is_terminal(fd: int) -> bool:
    return os.isatty(fd)


def open_standard_streams() -> None:
    """Descriptors 0 to 2 that were closed would be given to the next socket, and the answer written into it."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def write_all(fd: int, data: bytes) -> None:
    """To standard error: whoever closed it does not want to know."""
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        pass


def _encode(text: str, *, fd: int) -> bytes:
    """The exact text for a pipe or a file; a terminal gets marks for what would drive it."""
    return (for_terminal(text) if is_terminal(fd) else text).encode("utf-8", "replace")


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

"""Output to the terminal: Textual's driver, and `FramePace`, which says when the next frame may be drawn.

A terminal may read more slowly than an answer streams. Textual puts each frame into a queue, and behind it the kernel,
ssh and others have queues of their own: what the user sees would be as old as these are long. Here no frame is drawn
while the terminal is busy with earlier ones; the next frame shows the state of its own time, and those between are
dropped.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from textual import events
from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from textual.app import App
    from textual.message import Message

WINDOW_BYTES = 2048  # that may be on their way: a typed letter need not wait for the one before
FRAME_S = 0.03  # a terminal that has read a frame within this time is not slow
ANSWER_S = 10.0  # after which an answer is not expected any more
LAST_ANSWER_S = 1.0  # the most that leaving waits
LOOK_S = 0.05  # between two looks at a slow terminal that does not answer
PIECE_BYTES = 4096
QUERY = "\x1b[6n"  # the cursor's position, which nearly all terminals answer when they have shown what came before

# Without answers: what is known of a terminal is how fast it empties the kernel's buffer, once that is full.
BUFFER_BYTES = 22_000  # that a pty of Linux holds
STALL_S = 0.05  # a write that takes longer found the buffer full
MIN_SAMPLE_BYTES = 8_192  # read in several steps: a terminal that only paused would read them at once
SLOW_BYTES_PER_S = 300_000.0  # a faster terminal keeps up
CAUTION = 0.9  # a rate that is too high would fill the buffer again
TRUST_S = 60.0  # after which a slow terminal is tried at full speed again


class FramePace:
    """Counts bytes on their way to the terminal. Used by the event loop and by the threads that write and read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_progress: Callable[[], None] = lambda: None  # called by those threads
        self._clock = clock
        self._changed = threading.Condition()
        self._queued = 0  # bytes that are not written yet
        self._answers = False  # whether the terminal answers queries
        self._can_ask = True
        self._asked: deque[tuple[int, float]] = deque()  # bytes before each query without an answer, and its time
        self._unasked = 0  # bytes since the last query
        self._busy_since: float | None = None  # when more than a window was on its way
        self._is_slow = False
        # Estimates for a terminal that does not answer.
        self._rate: float | None = None  # bytes that it reads in a second, if it is slow
        self._rate_until = 0.0
        self._backlog = (0.0, 0.0)  # bytes in the kernel's buffer, and at which time
        self._stalled_at = float("-inf")
        self._sample = (0.0, 0)  # since when the buffer is full, and how much was written meanwhile

    # output

    def add(self, size: int) -> None:
        """Note bytes that are going to be written."""
        with self._changed:
            self._queued += size
            self._unasked += size
            now = self._clock()
            if self._busy_since is None and self._on_way(now) > WINDOW_BYTES:
                self._busy_since = now

    def note_write(self, size: int, took_s: float) -> None:
        """Note bytes that were written, and how long that took."""
        with self._changed:
            self._queued = max(0, self._queued - size)
            self._estimate_rate(size, took_s)
            self._note_progress(self._clock())
        self.on_progress()

    def begin_query(self) -> bool:
        """Return whether a query should follow the frame. The first one finds out whether there are answers."""
        with self._changed:
            if not self._can_ask or (self._asked and not self._answers):
                return False
            self._asked.append((self._unasked, self._clock()))
            self._unasked = 0
            return True

    def take_answer(self) -> bool:
        """Take the answer to the oldest query; return False if no query was open."""
        with self._changed:
            if not self._asked:
                return False
            self._asked.popleft()
            self._answers = True
            self._note_progress(self._clock())
            self._changed.notify_all()
        self.on_progress()
        return True

    def stop_asking(self, wait_s: float) -> None:
        """Wait for the open answers: a later one would be typed into the shell."""
        with self._changed:
            self._can_ask = False
            if self._answers:
                self._changed.wait_for(lambda: not self._asked, wait_s)

    def resume_asking(self) -> None:
        with self._changed:
            self._can_ask = True
            self._asked.clear()

    # the next frame

    def wait_s(self) -> float:
        """Return 0 if a frame may be drawn, else the time after which to look again, unless `on_progress` is first."""
        with self._changed:
            now = self._clock()
            if self._answers and self._asked and now - self._asked[0][1] > ANSWER_S:
                self._answers = False  # something between this program and the terminal may have lost it
                self._asked.clear()
            self._note_progress(now)
            if self._busy_since is None or (now - self._busy_since <= FRAME_S and not self._is_slow):
                return 0.0
            self._is_slow = True
            return LOOK_S

    def _note_progress(self, now: float) -> None:
        if self._busy_since is not None and self._on_way(now) <= WINDOW_BYTES:
            self._is_slow = now - self._busy_since > FRAME_S
            self._busy_since = None

    def _on_way(self, now: float) -> float:
        """Return the bytes that the terminal has not read, as far as is known."""
        if self._answers:
            return self._queued + sum(size for size, _ in self._asked)
        if self._rate is None or now > self._rate_until:
            self._rate = None
            return self._queued
        size, at = self._backlog
        return self._queued + max(0.0, size - (now - at) * self._rate)

    def _estimate_rate(self, size: int, took_s: float) -> None:
        """Measure how fast bytes leave the kernel's buffer while it is full."""
        now = self._clock()
        is_stalled = took_s >= STALL_S
        if is_stalled and now - took_s - self._stalled_at > STALL_S * 4:
            self._sample = (now, 0)  # without this write: some of it found room
        else:
            self._sample = (self._sample[0], self._sample[1] + size)
        if is_stalled:
            self._stalled_at = now
        since, written = self._sample
        if is_stalled and written >= MIN_SAMPLE_BYTES:
            rate = written / (now - since) * CAUTION
            self._rate, self._rate_until = (rate, now + TRUST_S) if rate < SLOW_BYTES_PER_S else (None, now)
            self._backlog = (BUFFER_BYTES, now)
        elif self._rate is not None:
            before, at = self._backlog
            self._backlog = (max(0.0, before - (now - at) * self._rate) + size, now)


class TerminalDriver(LinuxDriver):
    """Survives a closed terminal: output is dropped, and nothing waits."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pace = FramePace()
        # Textual's writer thread would end at the first error, and the next write would wait for it forever.
        self._file = cast(TextIO, _PacedFile(self._file, self.pace))

    def write(self, data: str) -> None:
        self.pace.add(len(data.encode(errors="replace")))
        super().write(data)

    def end_frame(self) -> None:
        """Called behind each frame."""
        if self.pace.begin_query():
            self.write(QUERY)

    def process_message(self, message: Message) -> None:
        if not (isinstance(message, events.CursorPosition) and self.pace.take_answer()):
            super().process_message(message)

    def start_application_mode(self) -> None:
        self.pace.resume_asking()
        super().start_application_mode()

    def stop_application_mode(self) -> None:
        self.pace.stop_asking(LAST_ANSWER_S)
        super().stop_application_mode()


class _PacedFile:
    """Writes in pieces, which are counted. Errors are ignored: a closed terminal is reported by SIGHUP."""

    def __init__(self, file: IO[str], pace: FramePace) -> None:
        self._fd = file.fileno()
        self._pace = pace

    def write(self, text: str) -> int:
        data = memoryview(text.encode(errors="replace"))
        while data:
            began = time.monotonic()
            try:
                select.select([], [self._fd], [])
                written = os.write(self._fd, data[:PIECE_BYTES])
            except OSError:
                written = len(data)
            self._pace.note_write(written, time.monotonic() - began)
            data = data[written:]
        return len(text)

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._fd


class FrameGate:
    """Holds frames back while the terminal is busy.

    Textual has no hook in front of a frame. Within `batch_update` it draws nothing, and remembers what has changed.
    """

    def __init__(self, app: App[Any], driver: TerminalDriver) -> None:
        self._app = app
        self._driver = driver
        self._batch: ExitStack | None = None  # while frames are held back
        self._is_frame_lost = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        driver.pace.on_progress = self._wake

    def close(self) -> None:
        self._driver.pace.on_progress = lambda: None
        if self._timer is not None:
            self._timer.cancel()

    def note_frame(self) -> None:
        """Called behind each frame, also one that Textual dropped within the batch."""
        if self._batch is not None:
            self._is_frame_lost = True
            return
        self._driver.end_frame()
        self._check()

    def _wake(self) -> None:
        if self._batch is not None:
            self._loop.call_soon_threadsafe(self._check)

    def _check(self) -> None:
        pace = self._driver.pace
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if pace.wait_s() and self._batch is None:
            self._batch = ExitStack()
            self._batch.enter_context(self._app.batch_update())
        if wait_s := pace.wait_s():  # again: `_wake` did nothing before the batch
            self._timer = self._loop.call_later(wait_s, self._check)
        elif self._batch is not None:
            self._batch.close()
            self._batch = None
            if self._is_frame_lost:
                self._is_frame_lost = False
                self._app.screen.refresh()
            self._app.screen.check_idle()

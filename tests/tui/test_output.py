"""A terminal that reads slowly sees the newest frame, not a queue of old ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kedge.tui.output import BUFFER_BYTES, FramePace
from tests.e2e.home import Home
from tests.tui.terminal import Terminal
from tests.tui.test_terminal import EDITOR, ENTER, ESC, MODEL

FRAME_BYTES = 8_000
TRY_S = 1 / 30
SLOW = 20_000.0  # bytes a second
QUERY_BYTES = 4


class SimulatedTerminal:
    """A terminal that reads at a constant pace, behind a buffer. Time passes only in `run`."""

    def __init__(self, bytes_per_s: float, *, buffer: float, answers: bool) -> None:
        self.now = 0.0
        self.pace = FramePace(lambda: self.now)
        self.unread = 0.0
        self.drawn: list[float] = []
        self.worst_unread = 0.0
        self._bytes_per_s = bytes_per_s
        self._buffer = buffer
        self._answers = answers
        self._total = self._read = 0.0
        self._queries: list[float] = []  # totals at which they are read

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            if self.pace.wait_s() == 0:
                self.drawn.append(self.now)
                self._write(FRAME_BYTES)
                if self.pace.begin_query():
                    self._write(QUERY_BYTES)
                    if self._answers:
                        self._queries.append(self._total)
            self._pass(TRY_S)

    def _write(self, size: int) -> None:
        self.pace.add(size)
        for _ in range(0, size, 4000):
            piece = min(4000, size)
            room = self._buffer - self.unread
            began = self.now
            if room < piece:
                self._pass((piece - room) / self._bytes_per_s)
            self._total += piece
            self.unread += piece
            self.worst_unread = max(self.worst_unread, self.unread)
            self.pace.note_write(piece, self.now - began)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        took = min(self.unread, seconds * self._bytes_per_s)
        self.unread -= took
        self._read += took
        while self._queries and self._queries[0] <= self._read + 1e-6:
            self._queries.pop(0)
            assert self.pace.take_answer()


@pytest.mark.parametrize("answers", [True, False])
def test_a_terminal_that_keeps_up_gets_every_frame(answers: bool) -> None:
    terminal = SimulatedTerminal(10_000_000, buffer=BUFFER_BYTES, answers=answers)
    terminal.run(10)
    assert len(terminal.drawn) >= 10 / TRY_S - 2


def test_a_slow_terminal_that_answers_has_two_frames_at_most_on_their_way() -> None:
    """However large the buffers between are: ssh has megabytes."""
    terminal = SimulatedTerminal(SLOW, buffer=2_000_000, answers=True)
    terminal.run(2)
    terminal.worst_unread = 0
    terminal.run(30)
    assert terminal.worst_unread <= 2 * FRAME_BYTES
    assert len(terminal.drawn) >= 32 * SLOW / FRAME_BYTES / 2, "and it is kept busy"


def test_a_slow_terminal_that_does_not_answer_is_not_kept_full() -> None:
    terminal = SimulatedTerminal(SLOW, buffer=BUFFER_BYTES, answers=False)
    terminal.run(5)
    terminal.worst_unread = 0
    terminal.run(30)
    assert terminal.worst_unread <= 2 * FRAME_BYTES
    assert len(terminal.drawn) >= 35 * SLOW / FRAME_BYTES / 2


def test_a_terminal_that_stood_still_once_is_not_taken_for_a_slow_one() -> None:
    terminal = SimulatedTerminal(10_000_000, buffer=BUFFER_BYTES, answers=False)
    terminal.pace.add(FRAME_BYTES)
    terminal.pace.note_write(FRAME_BYTES // 2, 5.0)  # Ctrl+S, then Ctrl+Q
    terminal.pace.note_write(FRAME_BYTES // 2, 0.0)
    terminal.run(10)
    assert len(terminal.drawn) >= 10 / TRY_S - 2


def test_answers_that_stop_do_not_stop_the_frames() -> None:
    terminal = SimulatedTerminal(10_000_000, buffer=BUFFER_BYTES, answers=True)
    terminal.run(1)
    terminal._answers = False
    terminal.run(60)
    assert terminal.drawn[-1] > 50


@pytest.mark.slow
@pytest.mark.parametrize("answers", [True, False])
async def test_a_cancellation_shows_soon_on_a_slow_terminal(home: Home, tmp_path: Path, answers: bool) -> None:
    """In bytes, which depend less on how busy the machine is. Queued frames would be hundreds of kilobytes.

    Without answers the buffer of the kernel may just be full, because its reader's pace is measured again.
    """
    home.models.on({"text": "The end.", "chunks": 100_000, "delay_ms": 0.5}, prompt="say much")
    command = [sys.executable, "-m", "kedge"]
    async with Terminal(
        command, env=home.env, cwd=tmp_path, columns=120, lines=40, bytes_per_s=SLOW, answers=answers
    ) as terminal:
        await terminal.shows(EDITOR, MODEL)
        terminal.type("say much" + ENTER)
        streamed = len(terminal.heard)
        await terminal.until(lambda: len(terminal.heard) > streamed + 100_000, "much was streamed")
        terminal.type(ESC)
        await terminal.shows("Esc again")
        canceled_at = len(terminal.heard)
        terminal.type(ESC)
        await terminal.shows("Canceled")
        assert len(terminal.heard) - canceled_at < (30_000 if answers else BUFFER_BYTES + 30_000)
        terminal.type("/quit" + ENTER)
        assert await terminal.left() == 0
        assert terminal.is_restored

"""A real terminal: a program on a pty, and an emulator that shows what a person would see. Waits for what appears."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

LIMIT_S = 45.0  # generous: the machine may be busy
SLOW_PIECE = 400  # bytes that a slow terminal reads at once
DA1 = b"\x1b[?62;22c"  # a terminal like most


class Screen(pyte.Screen):
    """One that answers, as terminals do."""

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__(columns, lines)
        self.titles: list[str] = []

    def set_title(self, param: str) -> None:
        super().set_title(param)
        self.titles.append(param)

    def select_graphic_rendition(self, *attrs: int, private: bool = False) -> None:  # `CSI > 4 m` is not for us
        if not private:
            super().select_graphic_rendition(*attrs)


class Terminal:
    """Use it as a context. `background` is what it says when asked, as in `ffff/ffff/ffff`; None: it does not say.

    With `bytes_per_s` it reads that slowly; with `answers` it says where the cursor is.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        columns: int = 100,
        lines: int = 30,
        background: str | None = None,
        bytes_per_s: float | None = None,
        answers: bool = False,
        term: str = "xterm-256color",
    ) -> None:
        self.screen = Screen(columns, lines)
        self.heard = bytearray()  # everything the program wrote
        self._stream = pyte.ByteStream(self.screen)
        self._background = background
        self._bytes_per_s = bytes_per_s
        self._answers = answers
        self._changed = asyncio.Condition()
        self._is_open = True
        self._master, slave = pty.openpty()
        self._size(columns, lines)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**env, "TERM": term, "COLORTERM": "truecolor"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.settings = termios.tcgetattr(slave)
        self._slave = slave  # kept open, so that its settings can be read when the program has left

    async def __aenter__(self) -> Self:
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)
        self.close()
        os.close(self._slave)
        if error is not None:
            print("\n".join(["the screen at the end:", *self.screen.display]))

    # what a person does

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        self._size(columns, lines)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def close(self) -> None:
        """The window."""
        if self._is_open:
            self._is_open = False
            asyncio.get_running_loop().remove_reader(self._master)
            os.close(self._master)

    # what a person sees

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    async def shows(self, *texts: str) -> None:
        """Until all of them are on the screen at once."""
        await self.until(lambda: all(text in self.text for text in texts), f"{texts} on the screen")

    async def hides(self, text: str) -> None:
        await self.until(lambda: text not in self.text, f"{text!r} gone from the screen")

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(LIMIT_S), self._changed:
                await self._changed.wait_for(is_so)
        except TimeoutError:
            raise AssertionError(f"never: {what}\n{self.text}") from None

    async def left(self) -> int:
        """The exit code, when the program has ended by itself."""
        return await asyncio.to_thread(self.process.wait, LIMIT_S)

    @property
    def is_restored(self) -> bool:
        """Whether the line settings are as they were, the cursor shows, and the first screen is back."""
        return (
            termios.tcgetattr(self._slave)[:4] == self.settings[:4]
            and self.heard.rfind(b"\x1b[?1049l") > self.heard.rfind(b"\x1b[?1049h")
            and self.heard.rfind(b"\x1b[?25h") > self.heard.rfind(b"\x1b[?25l")
        )

    @property
    def is_raw(self) -> bool:
        """Whether the program takes every key as it is; else the terminal makes a signal of Ctrl+C."""
        return not termios.tcgetattr(self._slave)[3] & termios.ISIG

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536 if self._bytes_per_s is None else SLOW_PIECE)
        except (BlockingIOError, OSError):
            return
        if self._bytes_per_s is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._master)
            loop.call_later(len(data) / self._bytes_per_s, self._read_on)
        for _ in range(data.count(b"\x1b[6n") if self._answers else 0):
            os.write(self._master, b"\x1b[1;1R")
        self.heard += data
        if b"\x1b]11;?" in data and self._background is not None:
            os.write(self._master, f"\x1b]11;rgb:{self._background}\x1b\\".encode())
        if b"\x1b[c" in data:
            os.write(self._master, DA1)
        self._stream.feed(data)
        self._tell = asyncio.get_running_loop().create_task(self._notify())

    def _read_on(self) -> None:
        if self._is_open:
            asyncio.get_running_loop().add_reader(self._master, self._read)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

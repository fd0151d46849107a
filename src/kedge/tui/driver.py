"""The way to the terminal, also to one that is gone: what is written to a closed window is lost, nothing waits."""

from __future__ import annotations

from typing import Any, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Textual's writer would die of the first error, and whoever writes then waits for it without end.
        self._file = cast(TextIO, _Lossy(self._file))


class _Lossy:
    """All that is used of a file, without its errors: a hang-up is told by its signal."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:
            pass

    def fileno(self) -> int:
        return self._file.fileno()

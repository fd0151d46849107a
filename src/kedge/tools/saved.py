"""The whole output of a command in a file that the model can view: written as it comes, bounded on the disk."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 256 * 1024 * 1024  # of one command; nobody reads further
MAX_DIRECTORY_BYTES = 1024 * 1024 * 1024  # of one session: beyond it the oldest files go
_KEPT_BACK = 32_000  # characters that need no file: the model sees all of them


class Saved:
    """There is no file before it is needed. A disk that fails loses the file, and nothing else."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / f"output-{secrets.token_hex(4)}.txt"
        self._kept_back: list[str] | None = []
        self._chars = 0
        self._bytes = 0
        self._file: BinaryIO | None = None
        self._is_whole = True

    @property
    def where(self) -> str:
        """A sentence for the model."""
        if self._is_whole:
            return f"All of it is in {self.path}: use view with an offset, or grep."
        if not self._bytes:
            return "The rest could not be saved."
        return f"Its first {self._bytes:,} bytes are in {self.path}: use view with an offset, or grep."

    def write(self, text: str) -> None:
        if self._kept_back is None:
            self._append(text)
            return
        self._kept_back.append(text)
        self._chars += len(text)
        if self._chars > _KEPT_BACK:
            self.spill()

    def spill(self) -> None:
        """From now on there is a file."""
        if self._kept_back is None:
            return
        text, self._kept_back = "".join(self._kept_back), None
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_room(self.path.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self.path, flags, 0o600), "wb", buffering=0)
        except OSError:
            self._is_whole = False
        self._append(text)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _append(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        if self._file is None or not self._is_whole:
            return
        if self._bytes + len(data) > MAX_BYTES:
            self._is_whole = False
            return
        try:
            self._file.write(data)
            self._bytes += len(data)
        except OSError:
            self._is_whole = False


def _make_room(directory: Path) -> None:
    """Another call of the session may do the same beside us."""
    files: list[tuple[float, int, Path]] = []
    for path in directory.glob("output-*.txt"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    size = sum(file_size for _, file_size, _ in files)
    for _, file_size, path in sorted(files):
        if size <= MAX_DIRECTORY_BYTES:
            return
        path.unlink(missing_ok=True)
        size -= file_size

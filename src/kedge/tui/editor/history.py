"""Prompts that were sent, of all sessions, newest last: lines of JSON in a file that only its owner reads.

Two interfaces may write at once: each line is appended whole, and whoever shortens the file keeps the others waiting.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

import msgspec

from kedge.tui.editor.draft import Content

MAX_ENTRIES = 1_000
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_ENTRY_CHARS = 20_000  # longer ones are known to this interface alone: a file of prompts is no place for logs
MAX_OWN = 50  # whose images and pastes are still at hand


class _Line(msgspec.Struct, frozen=True):
    text: str


_decode = msgspec.json.Decoder(_Line).decode


class History:
    """Without a path it is kept in memory alone. A file that cannot be used loses nobody's prompt: it is not there."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._read: tuple[int, int] = (-1, -1)  # the file's identity and size when it was read
        self._stored: list[Content] = []
        self._own: dict[str, Content] = {}  # what was sent from here, with its chips; by its text
        self._beside: list[Content] = []  # what is in no file

    def entries(self) -> list[Content]:
        """Oldest first, each text once, where it was used last."""
        self._refresh()
        latest = {each.text: each for each in (*self._stored, *self._beside)}
        order = dict.fromkeys(each.text for each in reversed((*self._stored, *self._beside)))
        return [self._own.get(text, latest[text]) for text in reversed(order)]

    def add(self, content: Content) -> None:
        if content.is_blank:
            return
        text = content.expanded
        if content.chips:
            self._own.pop(text, None)
            self._own[text] = content
            for old in list(self._own)[:-MAX_OWN]:
                del self._own[old]
        if self._path is None or len(text) > MAX_ENTRY_CHARS or not self._append(text):
            self._beside = [*(each for each in self._beside if each.text != text), Content(text)][-MAX_ENTRIES:]

    def _append(self, text: str) -> bool:
        assert self._path is not None
        try:
            self._refresh()
            if self._stored and self._stored[-1].text == text:
                return True
            with self._locked():
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.write(file, msgspec.json.encode(_Line(text)) + b"\n")
                finally:
                    os.close(file)
        except (OSError, UnicodeError):
            return False
        return True

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            found = self._path.stat()
            if (found.st_ino, found.st_size) == self._read:
                return
            lines = self._path.read_bytes().splitlines()
            if len(lines) > 2 * MAX_ENTRIES or found.st_size > MAX_FILE_BYTES:
                lines = self._shortened()
                found = self._path.stat()
        except OSError:
            return
        self._read = (found.st_ino, found.st_size)
        self._stored = [content for line in lines[-2 * MAX_ENTRIES :] if (content := _content(line)) is not None]

    def _shortened(self) -> list[bytes]:
        assert self._path is not None
        with self._locked():
            lines = self._path.read_bytes().splitlines()[-MAX_ENTRIES:]
            while lines and sum(map(len, lines)) > MAX_FILE_BYTES // 2:
                del lines[: max(1, len(lines) // 4)]
            beside = self._path.with_suffix(".new")
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as writing:
                writing.write(b"".join(line + b"\n" for line in lines))
            beside.replace(self._path)
        return lines

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        assert self._path is not None
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _content(line: bytes) -> Content | None:
    try:
        return Content(_decode(line).text)
    except msgspec.DecodeError:  # cut by a full disk, or somebody's hand
        return None

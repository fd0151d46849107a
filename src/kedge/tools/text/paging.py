"""Files read for a model: text in pages, images whole.

A file is read in pieces from its start, so memory does not grow with its size. A digest needs the whole file.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kedge.files.safe_open import open_file
from kedge.files.states import compute_digest
from kedge.protocol.bounds import detect_image_type
from kedge.tools.text import encodings

MAX_LINES = 2_000
MAX_PAGE_BYTES = 200_000
MAX_LINE_CHARS = 2_000
MAX_IMAGE_BYTES = 3_750_000  # 5 MB in base64, the maximum of providers
# A larger file is read only as far as the page needs: its lines are not counted, and it cannot be edited.
MAX_WHOLE_BYTES = 64 * 1024 * 1024
_PIECE = 256 * 1024


class Unreadable(Exception):
    """The file cannot be shown. The text continues a sentence: "is a pipe; use …"."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    lines: list[str]
    size: int
    goes_on: bool
    total: int | None  # lines; None: not counted
    digest: str | None
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.total == 0


class ImageFile(msgspec.Struct, frozen=True, kw_only=True):
    mime_type: str
    size: int
    data: bytes | None  # None: too large
    digest: str | None


Content = Page | ImageFile


def read(path: Path, offset: int, limit: int, max_bytes: int, stop: threading.Event) -> Content:
    """Read one page of text, or an image. Raises `Unreadable` or OSError. Ends early when `stop` is set.

    `max_bytes` limits a page of text, with line numbers.
    """
    # Without O_NONBLOCK, opening a FIFO waits for a writer. O_NOCTTY: a terminal must not become our controlling one.
    fd = open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(fd)
        _check_kind(status.st_mode)
        head = os.read(fd, _PIECE)
        if mime_type := detect_image_type(head):
            return _read_image(fd, head, mime_type, status.st_size)
        if what := encodings.describe_binary(head):
            raise Unreadable(what)
        window = _Window(offset, limit, min(max_bytes, MAX_PAGE_BYTES))
        return _read_page(fd, head, window, status.st_size, stop)
    except BlockingIOError as error:
        raise Unreadable("has no data now, and may never have; use bash with a timeout.") from error
    finally:
        os.close(fd)


def _check_kind(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    kind = kinds.get(stat.S_IFMT(mode), "not a regular file")
    raise Unreadable(f"is {kind}, not a file; reading it could block forever. Use bash with a timeout.")


def _read_image(fd: int, head: bytes, mime_type: str, size: int) -> ImageFile:
    if size > MAX_IMAGE_BYTES:
        return ImageFile(mime_type=mime_type, size=size, data=None, digest=None)
    data = b"".join(_read_pieces(fd, head, threading.Event()))
    return ImageFile(mime_type=mime_type, size=len(data), data=data, digest=compute_digest(data))


def _read_pieces(fd: int, head: bytes, stop: threading.Event) -> Iterator[bytes]:
    piece = head
    while piece and not stop.is_set():
        yield piece
        piece = os.read(fd, _PIECE)


def _read_page(fd: int, head: bytes, window: _Window, size: int, stop: threading.Event) -> Page:
    encoding = encodings.detect_encoding(head)
    decoder = encoding.decoder()
    digest = hashlib.sha256()
    read_bytes = 0
    for piece in _read_pieces(fd, head, stop):
        read_bytes += len(piece)
        digest.update(piece)
        window.add(decoder.decode(piece))
        if window.is_full and max(size, read_bytes) > MAX_WHOLE_BYTES:
            return Page(lines=window.lines, size=max(size, read_bytes), goes_on=True, total=None, digest=None)
    window.add(decoder.decode(b"", True))
    window.end()
    return Page(
        lines=window.lines,
        size=read_bytes,
        goes_on=window.first - 1 + len(window.lines) < window.total,
        total=window.total,
        digest=digest.hexdigest(),
        notes=encoding.notes(has_replaced=window.has_replaced),
    )


class _Window:
    """Collects the lines of one page from text that arrives in pieces. Keeps only the beginning of long lines."""

    def __init__(self, offset: int, limit: int, max_bytes: int) -> None:
        self.first = offset
        self.lines: list[str] = []
        self.total = 0
        self.has_replaced = False
        self._limit = limit
        self._max_bytes = max_bytes
        self._bytes = 0
        self._start = ""  # of the current line
        self._length = 0
        self._ends_with_return = False

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= self._limit or self._bytes >= self._max_bytes

    def add(self, text: str) -> None:
        if not text:
            return
        self.has_replaced = self.has_replaced or "\ufffd" in text
        if self.is_full:
            self._skip(text)
            return
        *ended, rest = text.split("\n")
        for line in ended:
            self._extend(line)
            self._end_line()
        self._extend(rest)

    def end(self) -> None:
        if self._length:
            self._end_line()

    def _skip(self, text: str) -> None:
        """Count lines after the page is full."""
        self.total += text.count("\n")
        self._length = 0 if text.endswith("\n") else 1

    def _extend(self, text: str) -> None:
        if not text:
            return
        self._length += len(text)
        self._ends_with_return = text.endswith("\r")
        if len(self._start) <= MAX_LINE_CHARS:  # one more than is shown, to know whether it was cut
            self._start += text[: MAX_LINE_CHARS + 1 - len(self._start)]

    def _end_line(self) -> None:
        self.total += 1
        if self.total >= self.first and not self.is_full:
            self._add_to_page()
        self._start = ""
        self._length = 0
        self._ends_with_return = False

    def _add_to_page(self) -> None:
        length = self._length - self._ends_with_return
        line = self._start[:length] if length <= MAX_LINE_CHARS else _cut(self._start, length)
        size = len(line.encode("utf-8", "replace")) + 8  # with the line number
        if self.lines and self._bytes + size > self._max_bytes:
            self._bytes = self._max_bytes
            return
        self._bytes += size
        self.lines.append(line)


def _cut(start: str, length: int) -> str:
    return f"{start[:MAX_LINE_CHARS]}… [this line has {length:,} characters; {length - MAX_LINE_CHARS:,} are not shown]"

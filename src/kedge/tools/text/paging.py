"""Reading a file for a model: text in pages, pictures whole, and of anything else what it is.

A file is read once from its start, in pieces: memory does not grow with it. Its digest is had only from all its bytes.
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
from kedge.tools.text import encodings

MAX_LINES = 2_000
MAX_PAGE_BYTES = 200_000
MAX_LINE_CHARS = 2_000
MAX_IMAGE_BYTES = 3_750_000  # in base64 that is 5 MB, the most that providers take
# A larger file is read no further than the page needs; its lines are not counted, and it can't be edited by matching.
MAX_WHOLE_BYTES = 64 * 1024 * 1024
_PIECE = 256 * 1024


class Unreadable(Exception):
    """What the file is, and what to do instead; begins with a verb."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    lines: list[str]
    size: int
    goes_on: bool
    total: int | None  # lines, if they were counted
    digest: str | None
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.total == 0


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    mime_type: str
    size: int
    data: bytes | None  # None: too large
    digest: str | None


Found = Page | Picture


def read(path: Path, offset: int, limit: int, stop: threading.Event) -> Found:
    """Raises `Unreadable`, or the OSError of opening or reading. Ends early when `stop` is set."""
    # Without O_NONBLOCK the opening of a FIFO waits for a writer; a terminal must not become ours.
    fd = open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(fd)
        _check_kind(status.st_mode)
        head = os.read(fd, _PIECE)
        if mime_type := encodings.image_type(head):
            return _picture(fd, head, mime_type, status.st_size)
        if what := encodings.binary_kind(head):
            raise Unreadable(what)
        return _page(fd, head, offset, limit, status.st_size, stop)
    except BlockingIOError as error:
        raise Unreadable("has nothing to read now, and may never have; use bash with a timeout.") from error
    finally:
        os.close(fd)


def _check_kind(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    kind = kinds.get(stat.S_IFMT(mode), "no regular file")
    raise Unreadable(f"is {kind}, not a file; reading it could wait for ever. Use bash with a timeout.")


def _picture(fd: int, head: bytes, mime_type: str, size: int) -> Picture:
    if size > MAX_IMAGE_BYTES:
        return Picture(mime_type=mime_type, size=size, data=None, digest=None)
    data = b"".join(_pieces(fd, head, threading.Event()))
    return Picture(mime_type=mime_type, size=len(data), data=data, digest=hashlib.sha256(data).hexdigest())


def _pieces(fd: int, head: bytes, stop: threading.Event) -> Iterator[bytes]:
    piece = head
    while piece and not stop.is_set():
        yield piece
        piece = os.read(fd, _PIECE)


def _page(fd: int, head: bytes, offset: int, limit: int, size: int, stop: threading.Event) -> Page:
    encoding = encodings.encoding_of(head)
    decoder = encoding.decoder()
    window = _Window(offset, limit)
    digest = hashlib.sha256()
    read_bytes = 0
    for piece in _pieces(fd, head, stop):
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
        goes_on=offset - 1 + len(window.lines) < window.total,
        total=window.total,
        digest=digest.hexdigest(),
        notes=encoding.notes(has_replaced=window.has_replaced),
    )


class _Window:
    """The lines of one page, out of text that comes in pieces. Of a long line only its beginning is kept."""

    def __init__(self, offset: int, limit: int) -> None:
        self.lines: list[str] = []
        self.total = 0
        self.has_replaced = False
        self._first = offset
        self._limit = limit
        self._bytes = 0
        self._start = ""  # of the line that has not ended
        self._length = 0
        self._ends_with_return = False

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= self._limit or self._bytes >= MAX_PAGE_BYTES

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
        """Only counts: nothing of this is shown."""
        self.total += text.count("\n")
        self._length = 0 if text.endswith("\n") else 1

    def _extend(self, text: str) -> None:
        if not text:
            return
        self._length += len(text)
        self._ends_with_return = text.endswith("\r")
        if len(self._start) <= MAX_LINE_CHARS:  # one more than is shown, so that it is known whether it was cut
            self._start += text[: MAX_LINE_CHARS + 1 - len(self._start)]

    def _end_line(self) -> None:
        self.total += 1
        if self.total >= self._first and not self.is_full:
            self._keep()
        self._start = ""
        self._length = 0
        self._ends_with_return = False

    def _keep(self) -> None:
        length = self._length - self._ends_with_return
        line = self._start[:length] if length <= MAX_LINE_CHARS else _cut(self._start, length)
        size = len(line.encode("utf-8", "replace")) + 8  # its number, too
        if self.lines and self._bytes + size > MAX_PAGE_BYTES:
            self._bytes = MAX_PAGE_BYTES
            return
        self._bytes += size
        self.lines.append(line)


def _cut(start: str, length: int) -> str:
    return f"{start[:MAX_LINE_CHARS]}… [this line has {length:,} characters; {length - MAX_LINE_CHARS:,} are not shown]"

"""Positions in a text as language servers count them, and file URIs. No IO.

A server counts lines and characters from 0, and characters in code units of UTF-8, UTF-16 or UTF-32. A line ends with
`\\n`, `\\r\\n` or `\\r`; nothing else ends one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote_to_bytes, urlsplit

from kedge.lsp.messages import Position, Range

PositionEncoding = Literal["utf-8", "utf-16", "utf-32"]

_LINE_END = re.compile(r"\r\n|\n|\r")
_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Return text that JSON can carry. Bytes that are no text (surrogate escapes) become U+FFFD, one for one."""
    return _SURROGATE.sub("\ufffd", text)


class LineIndex:
    """Converts between offsets in a text (code points) and positions of a server."""

    def __init__(self, text: str, encoding: PositionEncoding) -> None:
        self.text = text
        self._encoding = encoding
        self._is_simple = encoding == "utf-32" or text.isascii()
        self._starts = [0, *(end.end() for end in _LINE_END.finditer(text))]

    @property
    def line_count(self) -> int:
        return len(self._starts)

    def line(self, number: int) -> str:
        """Return a line without its end; empty if there is none."""
        if not 0 <= number < len(self._starts):
            return ""
        return self.text[self._starts[number] : self._end_of(number)]

    def to_offset(self, position: Position) -> int:
        """Return the offset of a position. One outside of the text is moved to its nearest end, as servers do."""
        if position.line < 0:
            return 0
        if position.line >= len(self._starts):
            return len(self.text)
        start, end = self._starts[position.line], self._end_of(position.line)
        if self._is_simple:
            return min(start + max(position.character, 0), end)
        units = 0
        for offset in range(start, end):
            units += self._width(self.text[offset])
            if units > position.character:  # a position inside of a character is its beginning
                return offset
        return end

    def to_position(self, offset: int) -> Position:
        offset = min(max(offset, 0), len(self.text))
        line = bisect_right(self._starts, offset) - 1
        start = self._starts[line]
        before = self.text[start : min(offset, self._end_of(line))]
        if self._is_simple:
            return Position(line, len(before))
        return Position(line, sum(map(self._width, before)))

    def to_span(self, span: Range) -> tuple[int, int]:
        start, end = self.to_offset(span.start), self.to_offset(span.end)
        return (start, end) if start <= end else (end, start)

    def _end_of(self, line: int) -> int:
        if line + 1 == len(self._starts):
            return len(self.text)
        end = self._starts[line + 1] - 1
        return end - 1 if end > self._starts[line] and self.text[end - 1 : end + 1] == "\r\n" else end

    def _width(self, character: str) -> int:
        code = ord(character)
        if self._encoding == "utf-16":
            return 2 if code > 0xFFFF else 1
        return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def path_to_uri(path: Path | str) -> str:
    """Return the URI of an absolute path; any bytes of a file name survive."""
    return "file://" + quote(str(path).encode("utf-8", "surrogateescape"))


def uri_to_path(uri: str) -> Path | None:
    """Return the absolute path of a file URI of this machine; None for any other URI."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    path = unquote_to_bytes(parts.path).decode("utf-8", "surrogateescape")
    return Path(path) if path.startswith("/") and "\0" not in path else None

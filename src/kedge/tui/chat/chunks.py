"""Splits growing Markdown into chunks. A finished chunk never changes, so it is drawn once.

The split depends on the text alone, not on the pieces in which it arrived. A chunk is a paragraph, a heading, a list
item, a table, a quote, or some lines of a code fence, and has a maximum size.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_CHUNK_CHARS = 8_000  # the last chunk is drawn again with each delta: that must not get slower as the answer grows
MAX_CODE_LINES = 40  # of a fence in a chunk, for the same reason

_FENCE = re.compile(r"( {0,3})(`{3,}(?=[^`]*$)|~{3,})\s*([^\s`]*)")
_ITEM = re.compile(r"([-*+]|(\d{1,9})([.)]))(?:( {1,4})(?! )| |$)")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
_DEFINITION = re.compile(r" {0,3}\[((?:[^\[\]\\]|\\.){1,200})\]:\s*\S")


def is_definition(line: str) -> bool:
    """Whether the line defines the target of a link: it is not drawn."""
    return _DEFINITION.match(line) is not None


class Chunk(NamedTuple):
    text: str
    is_code: bool = False
    language: str = ""
    lead: str = ""  # code of the same fence before this chunk, for highlighting
    gap: bool = False  # an empty line above it
    ordinal: int | None = None  # number of an item of an ordered list
    definitions: str = ""  # of links in it that are defined elsewhere in the text
    is_growing: bool = False  # code whose last line may be incomplete


class _Fence(NamedTuple):
    mark: str
    indent: int
    language: str

    def is_closed_by(self, line: str) -> bool:
        stripped = line.strip(" \t\r")
        return (
            len(stripped) >= len(self.mark)
            and stripped == self.mark[0] * len(stripped)
            and len(line) - len(line.lstrip(" ")) <= 3 + self.indent
        )


class _Item(NamedTuple):
    kind: str  # its bullet, or the character after its number
    width: int  # column of its text
    ordinal: int | None


class Splitter:
    """`chunks` are finished, `tail` may still change. `grow` returns the index of the first chunk that changed."""

    def __init__(self) -> None:
        self.text = ""
        self.chunks: list[Chunk] = []
        self._start = 0  # offset of the unfinished chunk
        self._at = 0  # offset of the first unread line
        self._lines = 0  # lines read since `_start`
        self._fence: _Fence | None = None
        self._item: _Item | None = None
        self._inner: _Fence | None = None  # a fence inside an item
        self._is_after_blank = False
        self._gap = False
        self._lead = ""
        self._definitions: dict[str, str] = {}
        self._changed = 0

    @property
    def tail(self) -> Chunk | None:
        rest = self.text[self._start :]
        if self._fence is not None:
            last = rest[rest.rfind("\n") + 1 :].strip()
            if last and last == self._fence.mark[0] * len(last):  # perhaps an incomplete closing fence
                rest = rest[: rest.rfind("\n") + 1]
            if not rest and self._lead:
                return None
            return self._make_code(rest.removesuffix("\n"))._replace(is_growing=not rest.endswith("\n"))
        return self._make_text(rest) if rest.strip() else None

    def grow(self, text: str) -> int:
        if not text.startswith(self.text):
            self.__init__()  # a different text: start again
        self.text = text
        self._changed = len(self.chunks)
        while self._at < len(text):
            end = text.find("\n", self._at)
            stop = len(text) if end < 0 else end
            if stop - self._at > MAX_CHUNK_CHARS:
                self._cut_line()
            elif end < 0:
                break
            else:
                self._read(text[self._at : end], end + 1)
        return self._changed

    def _cut_line(self) -> None:
        """Cut a line that is too long, between two words if possible."""
        limit = self._at + MAX_CHUNK_CHARS
        at = self.text.rfind(" ", limit - 200, limit)
        self._at = limit if at < 0 else at + 1
        self._finish(self._at)

    def _read(self, line: str, after: int) -> None:
        if self._fence is not None:
            self._read_code(line, after)
        elif not line.strip():
            self._is_after_blank = True
            self._at = after
        else:
            self._read_text(line, after)
        self._at = after

    def _read_code(self, line: str, after: int) -> None:
        assert self._fence is not None
        if self._fence.is_closed_by(line):
            if self._at > self._start or not self._lead:
                self._finish(self._at)
            self._fence, self._lead, self._start, self._gap = None, "", after, True
            self._is_after_blank = True
            return
        self._lines += 1
        if self._lines >= MAX_CODE_LINES or after - self._start > MAX_CHUNK_CHARS:
            self._finish(after)

    def _read_text(self, line: str, after: int) -> None:
        indent = len(line) - len(line.lstrip(" "))
        if self._item is not None and indent >= self._item.width:
            self._read_inside(line[self._item.width :])
        elif self._begin_chunk(line, indent):
            return  # it has set the position of the next line
        if after - self._start > MAX_CHUNK_CHARS:
            self._finish(after)
        self._is_after_blank = _HEADING.match(line) is not None and self._item is None

    def _read_inside(self, line: str) -> None:
        if self._inner is not None:
            if self._inner.is_closed_by(line):
                self._inner = None
        elif fence := _FENCE.match(line):
            self._inner = _Fence(fence[2], len(fence[1]), fence[3])

    def _begin_chunk(self, line: str, indent: int) -> bool:
        """Start a new chunk if one begins with this line. Returns whether the line opens a fence."""
        is_new = self._is_after_blank or self._inner is not None or self._start == self._at
        if (definition := _DEFINITION.match(line)) and is_new:
            self._define(definition[1], line)
        if fence := _FENCE.match(line):
            self._break(gap=True)
            self._fence = _Fence(fence[2], len(fence[1]), fence[3])
            self._start = self._at + len(line) + 1
            self._lines = 0
            return True
        item = None if _RULE.match(line) or indent else _ITEM.match(line)
        if item is not None and (is_new or _interrupts(item) or _continues(self._item, item)):
            before = self._item if _continues(self._item, item) else None
            self._break(gap=self._is_after_blank)
            self._item = _make_item(item, before)
        elif _HEADING.match(line) or (is_new and indent < 4):
            self._break(gap=True)
        return False

    def _break(self, *, gap: bool) -> None:
        """Finish the current chunk: the next one begins with the current line."""
        if self.text[self._start : self._at].strip():
            self._finish(self._at)
            self._gap = gap
        self._start = self._at
        self._item = self._inner = None
        self._is_after_blank = False

    def _finish(self, end: int) -> None:
        text = self.text[self._start : end]
        if self._fence is not None:
            self.chunks.append(self._make_code(text.removesuffix("\n")))
            self._lead = text
        elif text.strip():
            self.chunks.append(self._make_text(text))
        self._start = end
        self._lines = 0
        self._gap = False
        if self._item is not None:
            self._item = self._inner = None

    def _make_text(self, text: str) -> Chunk:
        lowered = text.casefold() if self._definitions else ""
        definitions = [line for label, line in self._definitions.items() if f"[{label}]" in lowered]
        return Chunk(
            text,
            gap=self._gap and bool(self.chunks),
            ordinal=self._item.ordinal if self._item else None,
            definitions="\n".join(definitions),
        )

    def _make_code(self, text: str) -> Chunk:
        assert self._fence is not None
        if indent := self._fence.indent:
            text = re.sub(rf"^ {{1,{indent}}}", "", text, flags=re.MULTILINE)
        gap = self._gap and bool(self.chunks) and not self._lead
        return Chunk(text, is_code=True, language=self._fence.language, lead=self._lead, gap=gap)

    def _define(self, label: str, line: str) -> None:
        """Add a link definition, also to earlier chunks that refer to it."""
        label = " ".join(label.split()).casefold()
        if label in self._definitions or len(self._definitions) >= 1000:
            return
        self._definitions[label] = line.strip()
        for index, chunk in enumerate(self.chunks):
            if not chunk.is_code and f"[{label}]" in chunk.text.casefold():
                definitions = "\n".join(filter(None, [chunk.definitions, line.strip()]))
                self.chunks[index] = chunk._replace(definitions=definitions)
                self._changed = min(self._changed, index)


def _interrupts(item: re.Match[str]) -> bool:
    """Whether a list may start here without an empty line before: only with a bullet or the number 1."""
    return item.end() < len(item.string) and item[2] in (None, "1")


def _continues(before: _Item | None, item: re.Match[str]) -> bool:
    return before is not None and before.kind == (item[3] or item[1])


def _make_item(match: re.Match[str], before: _Item | None) -> _Item:
    marker = match[1]
    number = int(match[2]) if match[2] else None
    if number is not None and before is not None and before.ordinal is not None:
        number = before.ordinal + 1
    return _Item(match[3] or marker, len(marker) + len(match[4] or " "), number)

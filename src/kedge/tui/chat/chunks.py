"""Markdown that still grows, cut where what came before can no longer change: each chunk is drawn once.

Where it is cut depends on the text alone, not on the pieces it came in. A chunk is a paragraph, a heading, an item of
a list, a table, a quote, or some lines of a fence, and is bounded in size whatever the text is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_CHUNK_CHARS = 8_000  # drawn again with each piece that comes: what that costs must not grow with the answer
MAX_CODE_LINES = 40  # of a fence in a chunk, for the same reason

_FENCE = re.compile(r"( {0,3})(`{3,}(?=[^`]*$)|~{3,})\s*([^\s`]*)")
_ITEM = re.compile(r"([-*+]|(\d{1,9})([.)]))(?:( {1,4})(?! )| |$)")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
_DEFINITION = re.compile(r" {0,3}\[((?:[^\[\]\\]|\\.){1,200})\]:\s*\S")


def is_definition(line: str) -> bool:
    """Whether it says where a link leads, and is not to be seen."""
    return _DEFINITION.match(line) is not None


class Chunk(NamedTuple):
    text: str
    is_code: bool = False
    language: str = ""
    lead: str = ""  # of a fence that goes on: the code before, for those who colour it
    gap: bool = False  # whether an empty line is above it
    ordinal: int | None = None  # of an item of an ordered list
    definitions: str = ""  # of links that it refers to, from elsewhere in the text
    is_growing: bool = False  # code whose last line may not be whole


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
    kind: str  # its bullet, or what follows its number
    width: int  # where its text begins
    ordinal: int | None


class Splitter:
    """`chunks` are done; `tail` is what may still change. `grow` says from which chunk on something is different."""

    def __init__(self) -> None:
        self.text = ""
        self.chunks: list[Chunk] = []
        self._start = 0  # of the chunk that is not done
        self._at = 0  # of the first line that was not read yet
        self._lines = 0  # read since `_start`
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
            if last and last == self._fence.mark[0] * len(last):  # perhaps the fence's end, half of it here
                rest = rest[: rest.rfind("\n") + 1]
            if not rest and self._lead:
                return None
            return self._code(rest.removesuffix("\n"))._replace(is_growing=not rest.endswith("\n"))
        return self._words(rest) if rest.strip() else None

    def grow(self, text: str) -> int:
        if not text.startswith(self.text):
            self.__init__()  # another text than before: begin again
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
        """A line without end is cut between two words, if there are any."""
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
            self._read_words(line, after)
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

    def _read_words(self, line: str, after: int) -> None:
        indent = len(line) - len(line.lstrip(" "))
        if self._item is not None and indent >= self._item.width:
            self._read_inside(line[self._item.width :])
        elif self._begins(line, indent):
            return  # it said where the next line is read
        if after - self._start > MAX_CHUNK_CHARS:
            self._finish(after)
        self._is_after_blank = _HEADING.match(line) is not None and self._item is None

    def _read_inside(self, line: str) -> None:
        if self._inner is not None:
            if self._inner.is_closed_by(line):
                self._inner = None
        elif fence := _FENCE.match(line):
            self._inner = _Fence(fence[2], len(fence[1]), fence[3])

    def _begins(self, line: str, indent: int) -> bool:
        """Whether a fence began with this line; a chunk that begins with it is begun."""
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
        if item is not None and (is_new or _interrupts(item) or _goes_on(self._item, item)):
            before = self._item if _goes_on(self._item, item) else None
            self._break(gap=self._is_after_blank)
            self._item = _item(item, before)
        elif _HEADING.match(line) or (is_new and indent < 4):
            self._break(gap=True)
        return False

    def _break(self, *, gap: bool) -> None:
        """A chunk begins with the line that is read."""
        if self.text[self._start : self._at].strip():
            self._finish(self._at)
            self._gap = gap
        self._start = self._at
        self._item = self._inner = None
        self._is_after_blank = False

    def _finish(self, end: int) -> None:
        text = self.text[self._start : end]
        if self._fence is not None:
            self.chunks.append(self._code(text.removesuffix("\n")))
            self._lead = text
        elif text.strip():
            self.chunks.append(self._words(text))
        self._start = end
        self._lines = 0
        self._gap = False
        if self._item is not None:
            self._item = self._inner = None

    def _words(self, text: str) -> Chunk:
        lowered = text.casefold() if self._definitions else ""
        definitions = [line for label, line in self._definitions.items() if f"[{label}]" in lowered]
        return Chunk(
            text,
            gap=self._gap and bool(self.chunks),
            ordinal=self._item.ordinal if self._item else None,
            definitions="\n".join(definitions),
        )

    def _code(self, text: str) -> Chunk:
        assert self._fence is not None
        if indent := self._fence.indent:
            text = re.sub(rf"^ {{1,{indent}}}", "", text, flags=re.MULTILINE)
        gap = self._gap and bool(self.chunks) and not self._lead
        return Chunk(text, is_code=True, language=self._fence.language, lead=self._lead, gap=gap)

    def _define(self, label: str, line: str) -> None:
        """What was drawn before may refer to it."""
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
    """Whether it may follow a paragraph without an empty line: a year that begins a line is no list."""
    return item.end() < len(item.string) and item[2] in (None, "1")


def _goes_on(before: _Item | None, item: re.Match[str]) -> bool:
    return before is not None and before.kind == (item[3] or item[1])


def _item(match: re.Match[str], before: _Item | None) -> _Item:
    marker = match[1]
    number = int(match[2]) if match[2] else None
    if number is not None and before is not None and before.ordinal is not None:
        number = before.ordinal + 1
    return _Item(match[3] or marker, len(marker) + len(match[4] or " "), number)

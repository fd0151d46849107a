"""Positions of keys in a TOML text, which `tomllib` does not report: for error messages and for editing.

Only for texts that `tomllib` accepts. For those, a few rules find every key exactly.
"""

from __future__ import annotations

from typing import NamedTuple

from kedge.config.keys import Key, read_key, skip_blanks


class Entry(NamedTuple):
    """One `key = value`, with the offsets of its key and its value."""

    path: Key
    base: Key  # the table it is written in; the rest of `path` is the key as written
    start: int
    value_start: int
    value_end: int
    is_inline: bool  # inside { … }


class Header(NamedTuple):
    path: Key
    start: int
    end: int  # behind the closing bracket
    is_array: bool


class TomlLayout:
    """All headers and entries in order, and the first position of each key and table."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.entries: list[Entry] = []
        self.headers: list[Header] = []
        self._lengths: dict[Key, int] = {}  # arrays of tables: number of elements so far
        self._starts: dict[Key, int] = {}
        self._read()

    def line_of(self, path: Key) -> int:
        """Return the line of a key, or of the nearest table around it; 0 if there is none."""
        while path and path not in self._starts:
            path = path[:-1]
        return self.text.count("\n", 0, self._starts[path]) + 1 if path else 0

    def paths(self) -> list[Key]:
        return list(self._starts)

    def _read(self) -> None:
        at, table = 0, ()
        while (at := self._skip_space(at)) < len(self.text):
            if self.text.startswith("[", at):
                at, table = self._read_header(at)
            else:
                at = self._read_entry(at, table, is_inline=False)

    def _read_header(self, at: int) -> tuple[int, Key]:
        is_array = self.text.startswith("[[", at)
        names, end = read_key(self.text, at + (2 if is_array else 1))
        path: Key = ()
        for index, name in enumerate(names, 1):
            path = (*path, name)
            self._starts.setdefault(path, at)
            if is_array and index == len(names):
                self._lengths[path] = self._lengths.get(path, 0) + 1
            if path in self._lengths:
                path = (*path, self._lengths[path] - 1)
                self._starts.setdefault(path, at)
        end = self.text.index("]", end) + (2 if is_array else 1)
        self.headers.append(Header(path, at, end, is_array))
        return end, path

    def _read_entry(self, at: int, table: Key, *, is_inline: bool) -> int:
        names, end = read_key(self.text, at)
        path: Key = table
        for name in names:
            path = (*path, name)
            self._starts.setdefault(path, at)
        start = skip_blanks(self.text, self.text.index("=", end) + 1)
        index = len(self.entries)
        end = self._read_value(start, path)
        self.entries.insert(index, Entry(path, table, at, start, end, is_inline))
        return end

    def _read_value(self, at: int, path: Key) -> int:
        for mark in ('"""', "'''", '"', "'"):
            if self.text.startswith(mark, at):
                return self._string_end(at, mark)
        if self.text.startswith("[", at):
            return self._read_array(at, path)
        if self.text.startswith("{", at):
            return self._read_inline_table(at, path)
        end = at
        while end < len(self.text) and self.text[end] not in ",]}#\r\n":
            end += 1
        return at + len(self.text[at:end].rstrip(" \t"))

    def _read_array(self, at: int, path: Key) -> int:
        at, index = self._skip_space(at + 1), 0
        while not self.text.startswith("]", at):
            element = (*path, index)
            self._starts.setdefault(element, at)
            at = self._skip_space(self._read_value(at, element))
            if self.text.startswith(",", at):
                at = self._skip_space(at + 1)
            index += 1
        return at + 1

    def _read_inline_table(self, at: int, path: Key) -> int:
        at = self._skip_space(at + 1)
        while not self.text.startswith("}", at):
            at = self._skip_space(self._read_entry(at, path, is_inline=True))
            if self.text.startswith(",", at):
                at = self._skip_space(at + 1)
        return at + 1

    def _string_end(self, at: int, mark: str) -> int:
        end = at + len(mark)
        while not self.text.startswith(mark, end):
            end += 2 if mark[0] == '"' and self.text[end] == "\\" else 1
        end += len(mark)
        if len(mark) == 3:  # up to two quotes may precede the closing three
            while self.text.startswith(mark[0], end):
                end += 1
        return end

    def _skip_space(self, at: int) -> int:
        while at < len(self.text):
            if self.text[at] == "#":
                end = self.text.find("\n", at)
                at = len(self.text) if end < 0 else end
            elif self.text[at] in " \t\r\n":
                at += 1
            else:
                break
        return at

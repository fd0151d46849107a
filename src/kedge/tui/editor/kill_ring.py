"""Shell-style cutting: what to cut at the cursor, and the texts that were cut."""

from __future__ import annotations

import re

from textual.document._document import DocumentBase, Location

MAX_KILLS = 50
_LAST_WORD = re.compile(r"\S*\s*$")


class KillRing:
    def __init__(self) -> None:
        self.texts: list[str] = []  # newest last

    def add(self, text: str) -> None:
        self.texts = [*self.texts, text][-MAX_KILLS:]


def line_start(document: DocumentBase, cursor: Location) -> Location:
    """Return the start of the line; at the start, the end of the line before."""
    row, column = cursor
    return (row, 0) if column else _end_of_previous_line(document, row)


def line_end(document: DocumentBase, cursor: Location) -> Location:
    """Return the end of the line; at the end, the start of the next line."""
    row, column = cursor
    end = len(document.get_line(row))
    is_last = row + 1 >= document.line_count
    return (row, end) if column < end or is_last else (row + 1, 0)


def word_start(document: DocumentBase, cursor: Location) -> Location:
    row, column = cursor
    found = _LAST_WORD.search(document.get_line(row)[:column])
    return (row, found.start()) if found and column else _end_of_previous_line(document, row)


def _end_of_previous_line(document: DocumentBase, row: int) -> Location:
    return (row - 1, len(document.get_line(row - 1))) if row else (0, 0)

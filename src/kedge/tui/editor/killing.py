"""Cutting as shells do it: to the ends of a line, or a word; what was cut last can be inserted anywhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kedge.tui.editor.chips import ChipArea

if TYPE_CHECKING:
    from textual.widgets.text_area import Location

MAX_KILLS = 50
_LAST_WORD = re.compile(r"\S*\s*$")


class KillArea(ChipArea):
    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder)
        self.kills: list[str] = []  # what was cut, newest last

    def action_kill_to_start(self) -> None:
        row, column = self.cursor_location
        self._kill((row, 0) if column else self._line_before(row), (row, column))

    def action_kill_to_end(self) -> None:
        row, column = self.cursor_location
        end = len(self.document.get_line(row))
        is_last = row + 1 >= self.document.line_count
        self._kill((row, column), (row, end) if column < end or is_last else (row + 1, 0))

    def action_kill_word(self) -> None:
        row, column = self.cursor_location
        found = _LAST_WORD.search(self.document.get_line(row)[:column])
        self._kill((row, found.start()) if found and column else self._line_before(row), (row, column))

    def action_yank(self) -> None:
        if self.kills:
            self.insert_text(self.kills[-1])

    def keep_killed(self, text: str) -> None:
        self.kills = [*self.kills, text][-MAX_KILLS:]

    def _line_before(self, row: int) -> Location:
        return (row - 1, len(self.document.get_line(row - 1))) if row else (0, 0)

    def _kill(self, start: Location, end: Location) -> None:
        if not self.selection.is_empty:
            start, end = sorted(self.selection)
        if start != end:
            self.keep_killed(self.delete(start, end, maintain_selection_offset=False).replaced_text)

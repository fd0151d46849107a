"""The list above the editor: what can be taken, one line each. It has no focus; the editor moves it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.geometry import Region
from textual.widgets import Static

from kedge.protocol.text_safety import visible_line
from kedge.tui.editor.wishes import Choice

MAX_ROWS = 8
MAX_WIDTH = 100
_HELP_FROM = 16  # columns for what is taken, at least: so that helps begin below each other


class Popup(Static):
    can_focus = False

    def __init__(self) -> None:
        super().__init__()
        self.choices: Sequence[Choice] = ()
        self._at = 0
        self._first = 0  # the row at the top
        self.display = False

    @property
    def is_open(self) -> bool:
        return bool(self.display)

    @property
    def chosen(self) -> Choice | None:
        return self.choices[self._at] if self.is_open and self.choices else None

    def show(self, choices: Sequence[Choice], editor: Region) -> None:
        """Above the editor. The choice stays where it was if it is still there."""
        before = self.chosen
        self.choices = choices
        self._at = next((i for i, each in enumerate(choices) if before and each.value == before.value), 0)
        self._first = 0
        self.display = bool(choices)
        if choices:
            self._place(editor)

    def close(self) -> None:
        self.display = False
        self.choices = ()

    def move(self, by: int, editor: Region) -> None:
        self._at = (self._at + by) % len(self.choices)
        self._place(editor)

    def _place(self, editor: Region) -> None:
        rows = max(1, min(MAX_ROWS, len(self.choices), editor.y))
        self._first = max(0, min(max(self._first, self._at - rows + 1), self._at))
        width = max(1, min(MAX_WIDTH, editor.width))
        self.styles.width, self.styles.height = width, rows
        self.styles.offset = (editor.x, max(0, editor.y - rows))
        self.update(Content("\n").join(self._line(at, width) for at in range(self._first, self._first + rows)))

    def _line(self, at: int, width: int) -> Content:
        choice = self.choices[at]
        left = f" {visible_line(choice.shown)}"
        if choice.help:
            column = min(max(_HELP_FROM, *(cell_len(each.shown) for each in self.choices)), width // 2)
            left = set_cell_size(left, column + 2) if cell_len(left) < column + 2 else f"{left}  "
        line = set_cell_size(left + visible_line(choice.help), width)
        if at == self._at:
            return Content.styled(line, "reverse")
        split = len(left)
        return Content.assemble(line[:split], (line[split:], "dim"))

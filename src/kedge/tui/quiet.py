"""A text that is drawn only when it changed, and lays out the screen again only when its size may have."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


class Quiet(Static):
    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._shown = Content("")

    def show(self, content: Content) -> None:
        if content != self._shown or content.spans != self._shown.spans:  # `==` is of the words only
            before, self._shown = self._shown, content
            is_sized = content.cell_length != before.cell_length or "\n" in content.plain
            self.update(content, layout=is_sized)

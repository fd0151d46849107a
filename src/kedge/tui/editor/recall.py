"""Walking the history: what was being written is at its end, and every entry that was changed on the way stays so."""

from __future__ import annotations

from typing import NamedTuple

from kedge.tui.editor.draft import Content
from kedge.tui.editor.history import History


class Left(NamedTuple):
    """What a submit leaves behind: what was being written before, and other entries that were changed."""

    draft: Content | None
    changed: list[Content]


class Recall:
    def __init__(self, history: History) -> None:
        self._history = history
        self._entries: list[Content] = []
        self._at = 0  # len(entries): what is being written
        self._changed: dict[int, Content] = {}

    @property
    def held(self) -> list[Content]:
        """What was written and is not shown now: Down, or Up, brings it back."""
        return [content for at, content in sorted(self._changed.items()) if at != self._at and not content.is_blank]

    def older(self, current: Content) -> Content | None:
        """The entry before; None: there is none."""
        if not self._changed and self._at == len(self._entries):
            self._entries = self._history.entries()
            self._at = len(self._entries)
        if self._at == 0:
            return None
        return self._step(current, -1)

    def newer(self, current: Content) -> Content | None:
        if self._at >= len(self._entries):
            return None
        return self._step(current, +1)

    def leave(self) -> Left:
        """The walk is over: what it shows now was sent."""
        end = len(self._entries)
        changed = {at: content for at, content in self._changed.items() if at != self._at and not content.is_blank}
        self._entries, self._at, self._changed = [], 0, {}
        return Left(changed.pop(end, None), list(changed.values()))

    def _step(self, current: Content, by: int) -> Content:
        if self._at == len(self._entries) or current.text != self._entries[self._at].text:
            self._changed[self._at] = current
        else:
            self._changed.pop(self._at, None)
        self._at += by
        shown = self._entries[self._at] if self._at < len(self._entries) else Content()
        return self._changed.get(self._at, shown)

"""A text area in which a chip's label is one character: the cursor steps over it, and an edit takes it whole or not."""

from __future__ import annotations

import dataclasses
import re

from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult, Location, Selection

from kedge.protocol.runs import Attachment
from kedge.tui.editor import attachments, clipboard
from kedge.tui.editor.draft import Chip, Content, content_of, label_around, labels

_NUMBER = re.compile(r" #(\d+)")
_NAME_CHARS = 40


class ChipArea(TextArea):
    def __init__(self, placeholder: str) -> None:
        self._chips: dict[str, Chip] = {}  # all that there were: an undo may bring one back
        self._labels: re.Pattern[str] | None = None
        self._numbers = 0
        super().__init__(compact=True, highlight_cursor_line=False, placeholder=placeholder)

    @property
    def content(self) -> Content:
        return content_of(self.text, self._chips.values())

    def put(self, content: Content) -> None:
        """Instead of what is there, which an undo brings back; the cursor is at the end."""
        self.know(content)
        self.history.checkpoint()
        self.replace(content.text, (0, 0), self.document.end, maintain_selection_offset=False)
        self.history.checkpoint()
        self.move_cursor(self.document.end)

    def know(self, content: Content) -> None:
        """Chips that come with a content from elsewhere."""
        for chip in content.chips:
            self._chips[chip.label] = chip
            self._numbers = max(self._numbers, *(int(found) for found in _NUMBER.findall(chip.label)), 0)
        self._labels = labels(self._chips)

    def insert_text(self, text: str) -> None:
        """At the cursor, instead of what is selected."""
        result = self.replace(text, *self.selection, maintain_selection_offset=False)
        self.move_cursor(result.end_location)

    def insert_paste(self, text: str) -> None:
        """A long text in a word. Raises `AttachmentRejected`."""
        number = self._numbers + 1
        lines = text.count("\n") + 1
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        label = f"[Pasted text #{number}, {size}]"
        if len(text) > clipboard.ATTACH_CHARS:
            attachment = attachments.pasted_text(number, text)
            attachments.check_room(self.content.attachments, attachment)
            self._insert_chip(Chip(label, attachment=attachment))
        else:
            self._insert_chip(Chip(label, text))

    def insert_file(self, attachment: Attachment) -> None:
        """Raises `AttachmentRejected`."""
        attachments.check_room(self.content.attachments, attachment)
        what = "Image" if attachment.mime_type.startswith("image/") else "File"
        name = "".join(char for char in attachment.file_name if char.isprintable() and char not in "[]")
        self._insert_chip(Chip(f"[{what} #{self._numbers + 1} {name[-_NAME_CHARS:]}]", attachment=attachment))

    def show_paste(self, *, most: int) -> bool:
        """Put a pasted text where its label is: the one at the cursor, or else the last. Whether there was one."""
        texts = {chip.label: chip.text for chip in self.content.chips if chip.text and len(chip.text) <= most}
        pattern = labels(texts)
        if pattern is None:
            return False
        row, column = self.cursor_location
        places = [(line, found) for line in range(self.document.line_count) for found in self._matches(pattern, line)]
        at_cursor = [(line, found) for line, found in places if line == row and found.start() <= column <= found.end()]
        line, found = (at_cursor or places)[-1]
        self.history.checkpoint()
        self.replace(texts[found[0]], (line, found.start()), (line, found.end()), maintain_selection_offset=False)
        return True

    def edit(self, edit: Edit) -> EditResult:
        if self._labels is not None:
            start, end = sorted((edit.from_location, edit.to_location))
            if start == end:
                start = end = self._outside(start, towards_end=True)
            else:
                start, end = self._outside(start, towards_end=False), self._outside(end, towards_end=True)
            if (start, end) != (edit.from_location, edit.to_location):
                edit = dataclasses.replace(edit, from_location=start, to_location=end)
        return super().edit(edit)

    # The text area looks for the cursor in the text before it has put it back: it must be where any text has a place.

    def undo(self) -> None:
        if self.history.undo_stack:
            self.move_cursor((0, 0))
            super().undo()

    def redo(self) -> None:
        if self.history.redo_stack:
            self.move_cursor((0, 0))
            super().redo()

    def validate_selection(self, selection: Selection) -> Selection:
        if self._labels is None:
            return selection
        end = self._outside(selection.end, towards_end=selection.end > self.selection.end)
        return Selection(end if selection.is_empty else selection.start, end)

    def _outside(self, location: Location, *, towards_end: bool) -> Location:
        row, column = location
        if self._labels is None or row >= self.document.line_count:
            return location
        around = label_around(self.document.get_line(row), column, self._labels)
        return location if around is None else (row, around[1] if towards_end else around[0])

    def _matches(self, pattern: re.Pattern[str], line: int) -> list[re.Match[str]]:
        return list(pattern.finditer(self.document.get_line(line)))

    def _insert_chip(self, chip: Chip) -> None:
        self.know(Content(chip.label, (chip,)))
        self.history.checkpoint()
        self.insert_text(chip.label)
        self.history.checkpoint()

"""What comes into the editor from outside: pastes, dropped files, the clipboard, and the user's own editor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from textual import events
from textual.app import SuspendNotSupported
from textual.message import Message

from kedge.protocol.text_safety import pasted_text
from kedge.tui.editor import attachments, clipboard
from kedge.tui.editor.attachments import AttachmentRejected
from kedge.tui.editor.draft import Content
from kedge.tui.editor.killing import KillArea


class OutsideArea(KillArea):
    class Told(Message):
        """A line for the person: something was refused, or could not be done."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    workspace: Path | None = None  # if it is on this machine

    def tell(self, text: str) -> None:
        self.post_message(self.Told(text))

    def _environ(self) -> Mapping[str, str]:
        """Of programs that are started here: none of them is found in the workspace, where commands can put one."""
        from kedge.files.environment import with_safe_path

        return os.environ if self.workspace is None else with_safe_path(os.environ, self.workspace)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.take_paste(event.text)

    def take_paste(self, text: str) -> None:
        """Text goes in as it is, in a word if it is long; the names of dropped images become the images."""
        text = pasted_text(text)
        try:
            files = clipboard.dropped_files(text)
            if files and all(attachments.is_attachable(path) for path in files):
                for path in files:
                    self.insert_file(attachments.read(path))
            elif clipboard.is_long(text):
                self.insert_paste(text)
            else:
                self.insert_text(text)
        except AttachmentRejected as error:
            self.tell(f"Not attached: {error}")

    def action_paste(self) -> None:
        self.run_worker(self._paste_clipboard(), group="clipboard", exclusive=True)

    async def _paste_clipboard(self) -> None:
        image = await clipboard.image(self._environ())
        try:
            if image is not None:
                self.insert_file(attachments.checked("clipboard.png", "image/png", image))
            elif self.app.clipboard:
                self.take_paste(self.app.clipboard)
        except AttachmentRejected as error:
            self.tell(f"Not attached: {error}")

    def action_expand(self) -> None:
        if not self.show_paste(most=clipboard.ATTACH_CHARS):
            self.tell("Nothing here was pasted that could be shown")

    def action_edit_outside(self) -> None:
        """In the user's own editor, which has the terminal meanwhile; the server goes on."""
        from kedge.tui.editor import external_editor

        text = self.content.expanded
        try:
            with self.app.suspend():
                edited = external_editor.edited(text, self._environ())
        except SuspendNotSupported:
            self.tell("This terminal cannot be lent to an editor")
            return
        if edited.problem:
            self.tell(edited.problem)
        elif edited.text != text:
            self.put(Content(pasted_text(edited.text)))
        self.refresh()

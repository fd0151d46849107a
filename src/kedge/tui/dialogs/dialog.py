"""The base of all dialogs: a box with a title and a footer, closed by Esc."""

from __future__ import annotations

import time
from typing import TypeVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from kedge.protocol.text_safety import visible_line

T = TypeVar("T")
# Keys that follow the opening of a dialog, or each other, more closely than this were not meant for the dialog.
QUIET_S = 0.6


class Dialog(ModalScreen[T]):
    """Subclasses set `title` and yield their widgets in `body()`; `FOOTER` lists the keys."""

    BINDINGS = [Binding("escape", "close", "close", show=False)]  # noqa: RUF012 - as Textual has it
    FOOTER = "Esc close"

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            if self.title:
                yield Static(visible_line(self.title), classes="dialog-title", markup=False)
            yield from self.body()
            yield Static(self.footer, classes="dialog-footer", markup=False)

    @property
    def footer(self) -> str:
        return self.FOOTER

    def body(self) -> ComposeResult:
        yield Widget()

    def action_close(self) -> None:
        self.dismiss(None)


class GuardedDialog(Dialog[T]):
    """A dialog that opens by itself. It takes keys only after a pause: text typed ahead must not become an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._last_key_at = time.monotonic()
        self._is_awake = False

    def on_mount(self) -> None:
        self._last_key_at = time.monotonic()  # visible from now on

    def accepts_key(self, key: str) -> bool:
        """Called with each key before any widget gets it. Esc is always accepted: it only postpones the answer."""
        now = time.monotonic()
        self._is_awake = self._is_awake or now - self._last_key_at >= QUIET_S
        self._last_key_at = now
        return self._is_awake or key == "escape"

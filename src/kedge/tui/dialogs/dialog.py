"""What all dialogs share: a box with a title, closed by Esc.

One that opens by itself takes no key that was typed before it was seen.
"""

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
# A dialog that opens under somebody's fingers: what was on its way when it came, and what still is a moment later.
QUIET_S = 0.6


class Dialog(ModalScreen[T]):
    """Subclasses give `TITLE` and `body()`; `FOOTER` names the keys."""

    BINDINGS = [Binding("escape", "close", "close", show=False)]  # noqa: RUF012 - as Textual has it
    FOOTER = "Esc closes"

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            if heading := self.heading():
                yield Static(visible_line(heading), classes="dialog-title", markup=False)
            yield from self.body()
            yield Static(self.footer, classes="dialog-footer", markup=False)

    @property
    def footer(self) -> str:
        return self.FOOTER

    def heading(self) -> str:
        return self.title or ""

    def body(self) -> ComposeResult:
        yield Widget()

    def action_close(self) -> None:
        self.dismiss(None)


class Guarded(Dialog[T]):
    """Takes keys only after the keyboard was quiet: a word typed ahead is never an answer, nor a part of one."""

    def __init__(self) -> None:
        super().__init__()
        self._last_key_at = time.monotonic()
        self._is_awake = False

    def on_mount(self) -> None:
        self._last_key_at = time.monotonic()  # seen from now on

    def takes(self, key: str) -> bool:
        """Asked of each key before any widget is: one that follows the dialog, or another key, too closely was not
        meant for us. To put it off is always possible."""
        now = time.monotonic()
        self._is_awake = self._is_awake or now - self._last_key_at >= QUIET_S
        self._last_key_at = now
        return self._is_awake or key == "escape"

"""What all dialogs share: a box with a title, closed by Esc.

One that asks for leave takes no key that was typed before it was seen.
"""

from __future__ import annotations

import time
from typing import TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

T = TypeVar("T")
# A dialog that opens under somebody's fingers: what was on its way when it came, and what still is a moment later.
QUIET_S = 0.5


class Dialog(ModalScreen[T]):
    """Subclasses give `TITLE` and `body()`; `FOOTER` names the keys."""

    BINDINGS = [Binding("escape", "close", "close", show=False)]  # noqa: RUF012 - as Textual has it
    FOOTER = "Esc closes"
    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self.heading(), classes="dialog-title", markup=False)
            yield from self.body()
            yield Static(self.FOOTER, classes="dialog-footer", markup=False)

    def heading(self) -> str:
        return self.title or ""

    def body(self) -> ComposeResult:
        yield Widget()

    def action_close(self) -> None:
        self.dismiss(None)


class Guarded(Dialog[T]):
    """Takes keys only after the keyboard was quiet: a word typed ahead is never an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._last_key_at = time.monotonic()

    def on_mount(self) -> None:
        self._last_key_at = time.monotonic()  # seen from now on

    async def _on_key(self, event: events.Key) -> None:
        if self.is_too_early():
            event.stop()
            event.prevent_default()

    def is_too_early(self) -> bool:
        """Called for each key: one that follows another closely, from before on, was not meant for us."""
        now = time.monotonic()
        is_early = now - self._last_key_at < QUIET_S
        if is_early:
            self._last_key_at = now
        return is_early

"""What all dialogs share: a box with a title, closed by Esc.

One that asks for leave takes no key that was typed before it was seen.
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

from kedge.tui.chat.clean import clean_line

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
                yield Static(clean_line(heading), classes="dialog-title", markup=False)
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
    """Takes keys only after the keyboard was quiet: a word typed ahead is never an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._last_key_at = time.monotonic()

    def on_mount(self) -> None:
        self._last_key_at = time.monotonic()  # seen from now on

    def on_key(self) -> None:
        """One that means nothing here shows that somebody is in the middle of a word."""
        self.is_too_early()

    def is_too_early(self) -> bool:
        """To be asked for each key: one that follows the dialog, or another key, too closely was not meant for us."""
        now = time.monotonic()
        is_early = now - self._last_key_at < QUIET_S
        if is_early:
            self._last_key_at = now
        return is_early

"""A question with a few answers, of which a key typed ahead can choose the harmless one alone."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from kedge.tui.dialogs.dialog import Dialog


class ConfirmDialog(Dialog[str]):
    """The last choice is the harmless one, and the one that is lit."""

    FOOTER = "Enter chooses · Esc closes"

    def __init__(self, text: str, choices: Sequence[tuple[str, str]], title: str = "") -> None:
        super().__init__()
        self._text = text
        self._choices = choices
        self.title = title

    def body(self) -> ComposeResult:
        yield Static(self._text, markup=False)
        yield Static("")
        yield OptionList(*(Option(label, id=value) for value, label in self._choices), markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).highlighted = len(self._choices) - 1

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

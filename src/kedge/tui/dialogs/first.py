"""The first start: what was found, and a way to an answer from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from kedge.protocol.models import Offered
from kedge.protocol.text_safety import visible
from kedge.tui.dialogs.dialog import Dialog

if TYPE_CHECKING:
    from kedge.tui.app import KedgeApp


class FirstStart(Dialog[str]):
    FOOTER = "Enter chooses · Esc: later, /login and /model are there"

    def __init__(self, offered: Offered) -> None:
        super().__init__()
        self.title = "Welcome to Kedge"
        self._offered = offered

    def body(self) -> ComposeResult:
        usable = [each for each in self._offered.providers if each.usable]
        found = [f"✓ {each.title}: {each.why}" for each in usable] or ["No key, no model server was found."]
        yield Static(visible("\n".join([self._offered.why, "", *found])), markup=False)
        yield Static("")
        yield OptionList(
            *([Option("Choose a model", id="model")] if usable else []),
            Option("Enter a provider's key", id="key"),
            Option("Look again: I started a model server, or set a key", id="again"),
            markup=False,
        )

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


async def first_start(app: KedgeApp) -> None:
    """Until there is a model, or the person wants to look around first."""
    from kedge.tui.models import log_in, pick

    while not await app.choose_model():
        choice = await app.ask(FirstStart(await app.desk.offered()))
        if choice is None:
            app.chat.hint("No model yet: /login enters a key, /model chooses one")
            return
        if choice == "model" or (choice == "key" and await log_in(app, "")):
            await pick(app, "")

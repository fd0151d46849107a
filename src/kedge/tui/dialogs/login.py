"""A provider's key: entered unseen, checked by the server with a real call, and kept only if it is right."""

from __future__ import annotations

from textual import on, work
from textual.app import ComposeResult
from textual.widgets import Input, Static

from kedge.client.errors import ClientError
from kedge.protocol.api import LoginProvider
from kedge.protocol.text_safety import visible
from kedge.tui.desk import Desk
from kedge.tui.dialogs.dialog import Dialog


class KeyDialog(Dialog[bool]):
    FOOTER = "Enter checks and stores · Esc closes"

    def __init__(self, desk: Desk, provider: LoginProvider) -> None:
        super().__init__()
        self.title = f"Key for {provider.title}"
        self._desk = desk
        self._provider = provider

    def body(self) -> ComposeResult:
        yield Input(placeholder=f"paste it here; {self._provider.key_variable} works too", password=True, compact=True)
        yield Static("Checked with the provider; stored where only you can read it.", id="login-note", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        if key := event.value.strip():
            self._check(key)

    @work(exclusive=True)
    async def _check(self, key: str) -> None:
        note, field = self.query_one("#login-note", Static), self.query_one(Input)
        note.update("checking…")
        field.disabled = True
        try:
            stored = await self._desk.log_in(self._provider.provider_id, key)
        except ClientError as error:
            note.update(visible(f"Not stored: {error}"))
            field.disabled = False
            field.focus()
            return
        ending = f" (…{stored.last_four})" if stored.last_four else ""
        self.notify(f"The key{ending} works and is stored")
        self.dismiss(True)

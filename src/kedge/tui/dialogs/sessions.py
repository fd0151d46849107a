"""The list of sessions: open, search, rename, delete. Changes by other clients show at once."""

from __future__ import annotations

import time
from collections.abc import Awaitable

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.protocol.sessions import Session
from kedge.protocol.text_safety import visible, visible_line
from kedge.tui import formats
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import ConfirmDialog, Dialog
from kedge.tui.state.workspace import WorkspaceState

REFRESH_S = 0.25  # between two looks at whether the list has changed


class SessionDialog(Dialog[str]):
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("ctrl+r", "rename", "rename", priority=True),
        Binding("ctrl+d,delete", "remove", "delete", priority=True),
    ]
    FOOTER = "Enter open · Ctrl+R rename · Ctrl+D delete · Esc close"

    def __init__(self, api: Api, workspace: WorkspaceState, current: str | None) -> None:
        super().__init__("Sessions")
        self._api = api
        self._workspace = workspace
        self._current = current
        self._found: list[str] | None = None  # ids of sessions whose messages match the search; None: no search
        self._renaming: str | None = None
        self._drawn_revision = -1

    def body(self) -> ComposeResult:
        yield Input(placeholder="Search", compact=True)
        yield OptionList(markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._draw()
        self.set_interval(REFRESH_S, self._refresh)

    def _refresh(self) -> None:
        if self._workspace.revision != self._drawn_revision:
            self._draw()

    def _draw(self) -> None:
        self._drawn_revision = self._workspace.revision
        options = self.query_one(OptionList)
        highlighted = self._get_highlighted()
        shown = [Option(self._line(each), id=each.id) for each in self._list_shown()]
        options.clear_options()
        options.add_options(shown)
        ids = [option.id for option in shown]
        options.highlighted = ids.index(highlighted) if highlighted in ids else (0 if ids else None)

    def _list_shown(self) -> list[Session]:
        own = [each for each in self._workspace.sessions.values() if each.parent_session_id is None]
        own.sort(key=lambda each: each.updated_at, reverse=True)
        typed = self.query_one(Input).value.casefold() if self._renaming is None else ""
        if not typed:
            return own
        return [each for each in own if typed in each.title.casefold() or each.id in (self._found or ())]

    def _line(self, session: Session) -> Content:
        width = min(self.app.size.width * 9 // 10, 100) - 24  # without the frame and the time
        is_busy = any(run.session_id == session.id for run in self._workspace.runs.values())
        return _draw_line(session, session.id == self._current, is_busy, width)

    def _get_highlighted(self) -> str | None:
        option = self.query_one(OptionList).highlighted_option
        return option.id if option else None

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        if self._renaming is None:
            self._found = None
            self._draw()
            if event.value.strip():
                self._search(event.value)

    @work(exclusive=True)
    async def _search(self, text: str) -> None:
        try:
            self._found = [each.id for each in await self._api.sessions(text)]
        except ClientError:
            return  # titles have been searched already
        self._draw()

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        if self._renaming is None:
            if (session_id := self._get_highlighted()) is not None:
                self.dismiss(session_id)
            return
        session_id, self._renaming = self._renaming, None
        if event.value.strip():
            self._send(self._api.rename(session_id, event.value.strip()))
        event.input.value, event.input.placeholder = "", "Search"

    @on(OptionList.OptionSelected)
    def _select(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def on_key(self, event: events.Key) -> None:
        if event.key in ("up", "down") and self._renaming is None:
            event.stop()
            options = self.query_one(OptionList)
            (options.action_cursor_up if event.key == "up" else options.action_cursor_down)()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a title is edited, the keys that delete a session delete letters."""
        return action != "remove" or self._renaming is None

    def action_rename(self) -> None:
        session = self._workspace.sessions.get(self._get_highlighted() or "")
        if session is not None:
            self._renaming = session.id
            field = self.query_one(Input)
            field.value, field.placeholder = visible_line(session.title), "New title"

    def action_remove(self) -> None:
        session = self._workspace.sessions.get(self._get_highlighted() or "")
        if session is None:
            return

        def confirm(choice: str | None) -> None:
            if choice == "delete":
                self._send(self._api.delete(session.id))

        text = f"Delete “{visible(session.title) or 'New session'}”? Its runs are canceled; files stay as they are."
        self.app.push_screen(ConfirmDialog(text, [("delete", "Delete"), ("keep", "Cancel")]), confirm)

    @work
    async def _send(self, request: Awaitable[None]) -> None:
        try:
            await request
        except ClientError as error:
            self.notify(str(error), severity="error")

    def action_close(self) -> None:
        if self._renaming is None:
            self.dismiss(None)
            return
        self._renaming = None
        field = self.query_one(Input)
        field.value, field.placeholder = "", "Search"


def _draw_line(session: Session, is_current: bool, is_busy: bool, width: int) -> Content:
    mark = "●" if is_busy else ("▸" if is_current else " ")
    age = formats.format_age(time.time() - session.updated_at)
    title = formats.one_line(visible(session.title) or "New session", width)
    return Content.assemble((f"{mark} {title}", "bold" if is_current else ""), (f"  {age}", "$foreground-muted"))

"""The list of sessions, of this directory or of all: open, search, rename, delete. Changes by other clients show at
once in this directory; the others are read when the list opens."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len
from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.protocol.sessions import ListedSession, Session, SessionState
from kedge.protocol.text_safety import visible, visible_line
from kedge.tui import formats
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import ConfirmDialog, Dialog
from kedge.tui.state.workspace import WorkspaceState

REFRESH_S = 0.25  # between two looks at whether the list has changed
MAX_WIDTH = 130  # columns, as in kedge.tcss


class SessionChoice(NamedTuple):
    session_id: str
    directory: str | None = None  # if it is another one


class _Row(NamedTuple):
    """A session as a line shows it."""

    session: Session
    state: SessionState
    model: str
    cost: str
    path: str | None  # None: of this directory


class SessionDialog(Dialog[SessionChoice]):
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("tab", "toggle_all", "all directories", priority=True),
        Binding("ctrl+r", "rename", "rename", priority=True),
        Binding("ctrl+d,delete", "remove", "delete", priority=True),
    ]
    FOOTER = "Enter open · Tab all directories, or this one · Ctrl+R rename · Ctrl+D delete · Esc close"

    def __init__(self, api: Api, workspace: WorkspaceState, current: str | None) -> None:
        super().__init__("Sessions")
        self._api = api
        self._workspace = workspace
        self._current = current
        self._listed: dict[str, ListedSession] = {}  # of all directories, as read last
        self._is_all = False
        self._found: list[str] | None = None  # ids of sessions whose messages match the search; None: no search
        self._renaming: str | None = None
        self._drawn_revision = -1

    def body(self) -> ComposeResult:
        yield Input(placeholder="Search", compact=True)
        yield OptionList(markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._draw()
        self._read_all()
        self.set_interval(REFRESH_S, self._refresh)

    def on_resize(self) -> None:
        self.limit_list()
        self._draw()

    @work(exclusive=True, group="all")
    async def _read_all(self) -> None:
        try:
            self._listed = {each.id: each for each in await self._api.all_sessions()}
        except ClientError as error:
            if self._is_all:
                self.notify(str(error), severity="error")
            return
        self._draw()

    def action_toggle_all(self) -> None:
        self._is_all = not self._is_all
        self.query_one(".dialog-title", Static).update("Sessions of all directories" if self._is_all else "Sessions")
        self._draw()
        if self._is_all:
            self._read_all()

    def _refresh(self) -> None:
        if self._workspace.revision != self._drawn_revision:
            self._draw()

    def _draw(self) -> None:
        self._drawn_revision = self._workspace.revision
        options = self.query_one(OptionList)
        highlighted = self._get_highlighted()
        rows = self._list_shown()
        widths = _measure(rows, self.size.width)
        shown = [Option(_draw_row(row, row.session.id == self._current, widths), id=row.session.id) for row in rows]
        options.clear_options()
        options.add_options(shown)
        ids = [option.id for option in shown]
        options.highlighted = ids.index(highlighted) if highlighted in ids else (0 if ids else None)

    def _list_shown(self) -> list[_Row]:
        own = {each.id: each for each in self._workspace.sessions.values() if each.parent_session_id is None}
        rows = [self._make_row(each) for each in own.values()]
        if self._is_all:
            here = {self._listed[each].workspace_id for each in own if each in self._listed}
            others = [each for each in self._listed.values() if each.id not in own and each.workspace_id not in here]
            rows += [_Row(each, each.state, _name_model(each, each), _cost(each), each.path) for each in others]
        rows.sort(key=lambda row: row.session.updated_at, reverse=True)
        typed = self.query_one(Input).value.casefold() if self._renaming is None else ""
        if not typed:
            return rows
        return [row for row in rows if self._matches(row, typed)]

    def _matches(self, row: _Row, typed: str) -> bool:
        return typed in f"{row.session.title}\n{row.path or ''}".casefold() or row.session.id in (self._found or ())

    def _make_row(self, session: Session) -> _Row:
        state: SessionState = "idle"
        if self._workspace.requests_of(session.id):
            state = "needs_you"
        elif any(run.session_id == session.id for run in self._workspace.runs.values()):
            state = "running"
        listed = self._listed.get(session.id)
        return _Row(session, state, _name_model(session, listed), _cost(listed), None)

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
                self._choose(session_id)
            return
        session_id, self._renaming = self._renaming, None
        if event.value.strip():
            self._send(self._api.rename(session_id, event.value.strip()))
        event.input.value, event.input.placeholder = "", "Search"

    @on(OptionList.OptionSelected)
    def _select(self, event: OptionList.OptionSelected) -> None:
        self._choose(event.option_id or "")

    def _choose(self, session_id: str) -> None:
        is_here = session_id in self._workspace.sessions
        self.dismiss(SessionChoice(session_id, None if is_here else self._listed[session_id].path))

    def _get_own(self) -> Session | None:
        """Return the highlighted session if it is of this directory; else say that it has to be opened first."""
        session_id = self._get_highlighted()
        session = self._workspace.sessions.get(session_id or "")
        if session is None and session_id is not None:
            self.notify("Open it first: only sessions of this directory are renamed and deleted here")
        return session

    def on_key(self, event: events.Key) -> None:
        if event.key in ("up", "down") and self._renaming is None:
            event.stop()
            options = self.query_one(OptionList)
            (options.action_cursor_up if event.key == "up" else options.action_cursor_down)()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a title is edited, the keys that delete a session delete letters."""
        return action != "remove" or self._renaming is None

    def action_rename(self) -> None:
        session = self._get_own()
        if session is not None:
            self._renaming = session.id
            field = self.query_one(Input)
            field.value, field.placeholder = visible_line(session.title), "New title"

    def action_remove(self) -> None:
        session = self._get_own()
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


_STATES: dict[SessionState, tuple[str, str]] = {
    "needs_you": ("needs you", "$text-warning"),
    "running": ("running", "$text-success"),
    "idle": ("", "$foreground-muted"),
}
_LEAST_TITLE = 16


class _Widths(NamedTuple):
    title: int
    path: int
    state: int
    model: int
    cost: int
    age: int


def _name_model(session: Session, listed: ListedSession | None) -> str:
    """Return the model of a session without its provider, which would not fit."""
    name = session.model or (listed.last_model if listed else None) or ""
    return visible_line(name.partition("/")[2] or name)


def _cost(listed: ListedSession | None) -> str:
    return formats.format_cost(listed.usage) if listed else ""


def _age(session: Session) -> str:
    return formats.format_age(time.time() - session.updated_at)


def _measure(rows: Sequence[_Row], screen_width: int) -> _Widths:
    """Return the widths of the columns: as wide as their longest text, as far as the titles leave room."""
    width = min(screen_width * 9 // 10, MAX_WIDTH) - 5  # without the frame and the scroll bar
    state = max((len(_STATES[row.state][0]) for row in rows), default=0)
    cost = max((len(row.cost) for row in rows), default=0)
    age = max((len(_age(row.session)) for row in rows), default=0)
    model = min(max((cell_len(row.model) for row in rows), default=0), 14 if width < 90 else 24)
    path = min(max((cell_len(_shorten(row.path)) for row in rows), default=0), 14 if width < 90 else 30)
    title = width - 2 - sum(each + 2 for each in (path, state, model, cost, age) if each)
    if title < _LEAST_TITLE:
        title, model = title + model + 2, 0
    return _Widths(max(title, 8), path, state, model, cost, age)


def _shorten(path: str | None) -> str:
    home = str(Path.home())
    return "" if path is None else f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


def _draw_row(row: _Row, is_current: bool, widths: _Widths) -> Content:
    word, color = _STATES[row.state]
    mark = "●" if row.state != "idle" else "▸" if is_current else " "
    title = formats.one_line(visible(row.session.title) or "New session", widths.title)
    columns = (
        (
            formats.one_line_end(_shorten(row.path), widths.path) if widths.path else "",
            widths.path,
            "$foreground-muted",
        ),
        (word, widths.state, color),
        (formats.one_line(row.model, widths.model) if widths.model else "", widths.model, "$foreground-muted"),
        (f"{row.cost:>{widths.cost}}", widths.cost, "$foreground-muted"),
        (f"{_age(row.session):>{widths.age}}", widths.age, "$foreground-muted"),
    )
    cells = [(f"  {formats.pad(text, width)}", style) for text, width, style in columns if width]
    return Content.assemble(
        (f"{mark} ", color), (formats.pad(title, widths.title), "bold" if is_current else ""), *cells
    )

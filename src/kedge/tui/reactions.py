"""Reactions to changes of the workspace's state: read again, ask, notify; and the window's title and task bar."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kedge.protocol.events import AgentEvent, ConfigChanged, SkillsChanged
from kedge.protocol.lsp import LspEvent
from kedge.protocol.mcp import McpEvent
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from kedge.tui import formats, terminal
from kedge.tui.state.workspace import (
    ModelChanged,
    RequestResolved,
    RunEnded,
    SessionDeleted,
    SessionRewound,
    StateChange,
    StepEnded,
)
from kedge.tui.sync import read_files, read_session, read_surroundings

if TYPE_CHECKING:
    from kedge.tui.port import Interface
    from kedge.tui.state.session import SessionState


def react(app: Interface, change: StateChange) -> None:
    """Called once for each change."""
    shown = app.chat.session_id
    match change:
        case RequestResolved():
            app.chat.take_resolution(change)
        case StepEnded(session_id):
            if session_id == shown:
                app.read_usage(session_id)
        case RunEnded():
            _react_to_end(app, change)
        case SessionDeleted(session_id):
            if session_id == shown:
                app.chat.action_new_session()
                app.chat.hint("This session was deleted")
        case SessionRewound(session_id):
            app.read(read_session, session_id)
            app.read(read_surroundings, session_id)
        case ConfigChanged() | SkillsChanged():
            app.reload_settings()
        case ModelChanged(session_id):
            if session_id == shown:
                app.reload_settings()
        case McpEvent():
            app.chat.mcp.refresh()
        case LspEvent():
            app.chat.lsp.take(change)
        case AgentEvent():
            if change.type == "re_authenticate" and change.session_id == shown:
                app.log_in(change.provider_id or "")
        case PermissionRequest():
            app.announce("needs you", change.description, change.session_id)
        case QuestionRequest():
            asked = next((str(each.get("question", "")) for each in change.questions), "")
            app.announce("needs you", asked, change.session_id)


def _react_to_end(app: Interface, change: RunEnded) -> None:
    run, end = change
    app.chat.refresh_branch()
    if app.chat.session_id == end.session_id:
        app.read_usage(end.session_id)
        app.read(read_files, end.session_id)
    is_own = run is None or run.parent_run_id is None  # not a sub-agent's
    if is_own and not end.cancelled:
        app.announce("failed" if end.error else "finished", end.error or end.text, end.session_id)


NOTICE_CELLS = 100  # of a request's or an answer's text


class Announcer:
    """Shows the session's state in the window's title and task bar, and notifies users who look elsewhere."""

    def __init__(self, app: Interface) -> None:
        self._app = app
        self._written = ("", "")  # last title and progress sequence
        self.has_focus = True  # whether the terminal's window has the focus

    def show_state(self, session: SessionState | None) -> None:
        is_busy = session is not None and session.is_busy
        name = self._title(session.session_id) if session else "kedge"
        title = terminal.title(f"{'● ' if is_busy else ''}{name}")
        progress = terminal.progress(os.environ, is_busy=is_busy)
        if (title, progress) != self._written:
            self._written = (title, progress)
            self._app.write_terminal(title + progress)

    def clear(self) -> None:
        self._app.write_terminal(terminal.title("") + terminal.progress(os.environ, is_busy=False))

    def announce(self, what: str, text: str, session_id: str) -> None:
        """Notify a user whose window has no focus, or who looks at another session."""
        head, settings = f"{self._title(session_id)}: {what}", self._app.settings
        if not self.has_focus:
            self._app.write_terminal(terminal.notification(head, text, settings.notifications, os.environ))
        elif not self._is_shown(session_id):
            self._app.notify("\n".join(filter(None, [head, formats.one_line(text, NOTICE_CELLS)])))

    def _title(self, session_id: str) -> str:
        return self._app.workspace.title_of(session_id) or "kedge"

    def _is_shown(self, session_id: str) -> bool:
        """Whether the session, or the parent of this sub-agent's session, is shown."""
        shown = self._app.chat.session_id
        return shown is not None and shown in (session_id, self._app.workspace.parent_of(session_id))

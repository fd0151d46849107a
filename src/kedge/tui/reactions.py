"""What the interface does about what the story tells: read again, ask, say a word to somebody who looks elsewhere."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from kedge.protocol.events import AgentEvent, ConfigChanged
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from kedge.tui import formats, terminal
from kedge.tui.state.workspace import (
    ModelChanged,
    RequestResolved,
    RunEnded,
    SessionDeleted,
    SessionRewound,
    StateChange,
)

if TYPE_CHECKING:
    from kedge.tui.port import Interface
    from kedge.tui.state.session import SessionState


def react(app: Interface, what: StateChange) -> None:
    """Told once for each."""
    shown = app.chat.session_id
    match what:
        case RequestResolved():
            app.chat.take_resolution(what)
        case RunEnded():
            _ended(app, what)
        case SessionDeleted(session_id):
            if session_id == shown:
                app.chat.action_new_session()
                app.chat.hint("The session was deleted")
        case SessionRewound(session_id):
            app.read(partial(app.sync.read_session, session_id))
            app.read(partial(app.sync.read_surroundings, session_id))
        case ConfigChanged():
            app.reread()
        case ModelChanged(session_id):
            if session_id == shown:
                app.reread()
        case AgentEvent():
            if what.type == "re_authenticate" and what.session_id == shown:
                app.log_in(what.provider_id or "")
        case PermissionRequest():
            app.announce("asks", what.description, what.session_id)
        case QuestionRequest():
            asked = next((str(each.get("question", "")) for each in what.questions), "")
            app.announce("asks", asked, what.session_id)


def _ended(app: Interface, what: RunEnded) -> None:
    run, end = what
    if app.chat.session_id == end.session_id:
        app.read(partial(app.sync.read_totals, end.session_id))
    is_own = run is None or run.parent_run_id is None  # and not a sub-agent's
    if is_own and not end.cancelled:
        app.announce("failed" if end.error else "finished", end.error or end.text, end.session_id)


# What is said beside the picture: the window's title, its task bar, and a word for somebody who looks elsewhere.


TOLD_CELLS = 100  # of what is asked or was said; the session has the rest


class Announcer:
    def __init__(self, app: Interface) -> None:
        self._app = app
        self._said = ("", "")  # title and progress, as they were told last
        self.is_looked_at = True  # whether the terminal's window has the focus

    def show_state(self, session: SessionState | None) -> None:
        is_busy = session is not None and session.is_busy
        name = self._title(session.session_id) if session else "kedge"
        title = terminal.title(f"{'● ' if is_busy else ''}{name}")
        progress = terminal.progress("busy" if is_busy else "none") if terminal.shows_progress(os.environ) else ""
        if (title, progress) != self._said:
            self._said = (title, progress)
            self._app.say(title + progress)

    def clear(self) -> None:
        self._app.say(terminal.title("") + (terminal.progress("none") if terminal.shows_progress(os.environ) else ""))

    def tell(self, what: str, text: str, session_id: str) -> None:
        """For somebody who looks at another window, or at another session."""
        head, settings = f"{self._title(session_id)}: {what}", self._app.settings
        if not self.is_looked_at:
            self._app.say(terminal.notification(head, text, settings.notifications, os.environ))
        elif not self._is_shown(session_id):
            self._app.notify("\n".join(filter(None, [head, formats.one_line(text, TOLD_CELLS)])))

    def _title(self, session_id: str) -> str:
        return self._app.workspace.title_of(session_id) or "kedge"

    def _is_shown(self, session_id: str) -> bool:
        """Also what a sub-agent of the session does."""
        shown = self._app.chat.session_id
        return shown is not None and shown in (session_id, self._app.workspace.parent_of(session_id))

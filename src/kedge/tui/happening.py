"""What the interface does about what the story tells: read again, ask, say a word to somebody who looks elsewhere."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kedge.protocol.events import AgentEvent, ConfigChanged
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from kedge.tui.state.workspace import Ended, Gone, Happening, Rechosen, Resolved, Rewound

if TYPE_CHECKING:
    from kedge.tui.app import KedgeApp


def react(app: KedgeApp, what: Happening) -> None:
    """Told once for each."""
    shown = app.chat.session_id
    match what:
        case Resolved():
            app.chat.asking.resolved(what)
        case Ended():
            _ended(app, what)
        case Gone(session_id):
            if session_id == shown:
                app.chat.action_new_session()
                app.chat.hint("The session was deleted")
        case Rewound(session_id):
            app.read(partial(app.link.read_page, session_id))
            app.read(partial(app.link.read_surroundings, session_id))
        case ConfigChanged():
            app.reread()
        case Rechosen(session_id):
            if session_id == shown:
                app.reread()
        case AgentEvent():
            if what.type == "re_authenticate" and what.session_id == shown:
                app.log_in(what.provider_id or "")
        case PermissionRequest():
            app.announcer.tell("asks", what.description, what.session_id)
        case QuestionRequest():
            asked = next((str(each.get("question", "")) for each in what.questions), "")
            app.announcer.tell("asks", asked, what.session_id)


def _ended(app: KedgeApp, what: Ended) -> None:
    run, end = what
    if app.chat.session_id == end.session_id:
        app.read(partial(app.link.read_totals, end.session_id))
    is_own = run is None or run.parent_run_id is None  # and not a sub-agent's
    if is_own and not end.cancelled:
        app.announcer.tell("failed" if end.error else "finished", end.error or end.text, end.session_id)

"""The workspace as the interface knows it: sessions, the page that is open, requests to a person, who answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kedge.protocol.events import AgentEvent, Change, ConfigChanged, Event, FileChange
from kedge.protocol.messages import Delta, MessageOf
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.protocol.runs import Run, RunEnd
from kedge.protocol.sessions import Session
from kedge.tui.state.session import Page

Request = PermissionRequest | QuestionRequest


class Resolved(NamedTuple):
    """A request that was answered, here or elsewhere."""

    request: Request
    by: str
    action: str


class Ended(NamedTuple):
    run: Run | None
    end: RunEnd


class Gone(NamedTuple):
    """A session was deleted, here or elsewhere."""

    session_id: str


class Rewound(NamedTuple):
    """Messages went or came back: the session is to be read again."""

    session_id: str


class Rechosen(NamedTuple):
    """A session has another model, here or elsewhere."""

    session_id: str


Happening = Gone | Rewound | Rechosen | Resolved | Ended | Request | ConfigChanged | AgentEvent


class Book:
    """Events go in through `take`; what somebody may have to react to is handed to `on_happening` at once."""

    def __init__(self, on_happening: Callable[[Happening], None] = lambda _: None) -> None:
        self.sessions: dict[str, Session] = {}
        self.requests: dict[str, Request] = {}  # pending, oldest first
        self.runs: dict[str, Run] = {}  # open ones, of all sessions
        self.pages: dict[str, Page] = {}
        self.revision = 0
        self._on_happening = on_happening
        self._heard: set[str] | None = None  # while all is read: sessions and runs that the stream told of meanwhile

    def page(self, session_id: str) -> Page:
        """The page of a session; its children's pages hang below it."""
        page = self.pages.get(session_id)
        if page is None:
            parent = self._parent_of(session_id)
            page = self.pages[session_id] = Page(session_id, parent)
            if parent is not None:
                parent.children[session_id] = page
            for child in self.pages.values():  # of a sub-agent that was looked at by itself
                if self._parent_of(child.session_id) is page:
                    page.children[child.session_id], child.parent = child, page
            for run in self.runs.values():
                if run.session_id == session_id:
                    page.take_run(run)
            for request in self.requests.values():
                if request.session_id == session_id:
                    page.take_request(request)
        return page

    def close(self, keep: Iterable[str]) -> None:
        """Forget the pages of sessions that nobody looks at: memory stays bounded."""
        kept = set(keep)
        for session_id in [each for each in self.pages if kept.isdisjoint(self._line(each))]:
            del self.pages[session_id]

    def begin_reading(self) -> None:
        """What the stream tells from now on is newer than what will be read."""
        self._heard = set()

    def end_reading(self) -> None:
        self._heard = None

    def read_sessions(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            if not self._has_heard(session.id):
                self.sessions[session.id] = session
        self.revision += 1

    def read_runs(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if not self._has_heard(run.run_id):
                self._take_run(run)
        self.revision += 1

    def _has_heard(self, name: str) -> bool:
        return self._heard is not None and name in self._heard

    def _hear(self, name: str) -> None:
        if self._heard is not None:
            self._heard.add(name)

    def forget(self) -> None:
        """Something was missed (P10): what is not read again is not believed."""
        self.sessions.clear()
        self.requests.clear()
        self.runs.clear()
        self.pages.clear()
        self.revision += 1

    def requests_of(self, session_id: str) -> list[Request]:
        """Of a session and its sub-agents."""
        return [request for request in self.requests.values() if session_id in self._line(request.session_id)]

    def children_of(self, session_id: str) -> list[str]:
        """The sessions of its sub-agents, oldest first."""
        found = [each for each in self.sessions.values() if each.parent_session_id == session_id]
        return [each.id for each in sorted(found, key=lambda each: each.created_at)]

    def take(self, event: Event) -> None:
        self.revision += 1
        match event.payload:
            case Delta() as delta:
                if page := self.pages.get(delta.session_id):
                    page.take_delta(delta)
            case MessageOf() as message:
                if page := self._page_for(message.session_id):
                    page.take_message(message, event.seq, is_deleted=event.change == "deleted")
            case Session() as session:
                self._take_session(session, event.change)
            case Run() as run:
                self._hear(run.run_id)
                self._take_run(run)
            case RunEnd() as end:
                run = self.runs.pop(end.run_id, None)
                if page := self._page_for(end.session_id):
                    page.take_end(end)
                self._on_happening(Ended(run, end))
            case AgentEvent() as told:
                if page := self._page_for(told.session_id):
                    page.take_agent_event(told, event.seq)
                self._on_happening(told)
            case PermissionRequest() | QuestionRequest() as request:
                is_new = request.id not in self.requests
                self.requests[request.id] = request
                if page := self._page_for(request.session_id):
                    page.take_request(request)
                if is_new:
                    self._on_happening(request)
            case RequestResolution() as resolution:
                if request := self.requests.pop(resolution.id, None):
                    if page := self._page_for(request.session_id):
                        page.take_resolution(request)
                    self._on_happening(Resolved(request, resolution.by, resolution.action))
            case FileChange() as change:
                for session_id in self._line(change.session_id):
                    if page := self.pages.get(session_id):
                        page.files[change.path] = change
            case ConfigChanged() as changed:
                self._on_happening(changed)
            case _:
                pass

    def _take_session(self, session: Session, change: Change | None) -> None:
        self._hear(session.id)
        if change == "deleted":
            self.sessions.pop(session.id, None)
            self.pages.pop(session.id, None)
            self._on_happening(Gone(session.id))
            return
        before = self.sessions.get(session.id)
        self.sessions[session.id] = session
        page = self._page_for(session.id)
        if page is not None and change == "created":
            page.is_read = True  # it began while we watched
        if before is None:
            return
        if page is not None and before.undone_from != session.undone_from:
            self._on_happening(Rewound(session.id))
        if before.model != session.model:
            self._on_happening(Rechosen(session.id))

    def _take_run(self, run: Run) -> None:
        if run.is_open:
            self.runs[run.run_id] = run
        else:
            self.runs.pop(run.run_id, None)
        if page := self._page_for(run.session_id):
            page.take_run(run)

    def _page_for(self, session_id: str) -> Page | None:
        """The page of a session that is open, or whose parent is."""
        page = self.pages.get(session_id)
        return self.page(session_id) if page is None and self._parent_of(session_id) is not None else page

    def _parent_of(self, session_id: str) -> Page | None:
        session = self.sessions.get(session_id)
        return self.pages.get(session.parent_session_id or "") if session else None

    def _line(self, session_id: str) -> list[str]:
        """A session, the one that sent it out, and so on."""
        line = [session_id]
        while (session := self.sessions.get(line[-1])) and (parent := session.parent_session_id) not in (None, *line):
            line.append(parent)
        return line

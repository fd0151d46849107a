"""The state of the workspace: its sessions, open runs and pending requests, and the sessions that are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from kedge.protocol.events import AgentEvent, Change, ConfigChanged, Event, FileChange, SkillsChanged
from kedge.protocol.lsp import LspEvent
from kedge.protocol.mcp import McpEvent
from kedge.protocol.messages import Delta, MessageOf, finish_of
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.protocol.runs import Run, RunEnd
from kedge.protocol.sessions import Job, Session
from kedge.tui.state.session import Request, SessionState

SessionActivity = Literal["idle", "queued", "running", "asking"]


class RequestResolved(NamedTuple):
    """A request was answered, by this client or another."""

    request: Request
    by: str
    action: str


class RunEnded(NamedTuple):
    run: Run | None
    end: RunEnd


class StepEnded(NamedTuple):
    """A model call ended: tokens and cost have changed."""

    session_id: str


class SessionDeleted(NamedTuple):
    session_id: str


class SessionRewound(NamedTuple):
    """An undo or redo removed or restored messages: the session has to be read again."""

    session_id: str


class ModelChanged(NamedTuple):
    session_id: str


StateChange = (
    SessionDeleted
    | SessionRewound
    | ModelChanged
    | RequestResolved
    | StepEnded
    | RunEnded
    | Request
    | ConfigChanged
    | SkillsChanged
    | AgentEvent
    | McpEvent
    | LspEvent
)


class WorkspaceState:
    """Takes events in by `take`, and calls `on_change` for each change that the interface may have to react to."""

    def __init__(self, on_change: Callable[[StateChange], None] = lambda _: None) -> None:
        self.sessions: dict[str, Session] = {}
        self.requests: dict[str, Request] = {}  # pending, oldest first
        self.runs: dict[str, Run] = {}  # open runs of all sessions
        self.open_sessions: dict[str, SessionState] = {}
        self.jobs: list[Job] = []  # background jobs, newest first
        self.revision = 0
        self._rejected: dict[str, str] = {}  # session ids of runs that wait for a new API key, by run
        self._on_change = on_change
        self._streamed: set[str] | None = None  # ids of sessions and runs whose events came during a read

    def open_session(self, session_id: str) -> SessionState:
        """Return the state of a session, made if it is not there, and connected with those of its sub-agents."""
        state = self.open_sessions.get(session_id)
        if state is None:
            parent = self._open_parent_of(session_id)
            state = self.open_sessions[session_id] = SessionState(session_id, parent)
            if parent is not None:
                parent.children[session_id] = state
            for child in self.open_sessions.values():  # a sub-agent's session that was opened first
                if self._open_parent_of(child.session_id) is state:
                    state.children[child.session_id], child.parent = child, state
            for run in self.runs.values():
                if run.session_id == session_id:
                    state.take_run(run)
            for request in self.requests.values():
                if request.session_id == session_id:
                    state.take_request(request)
        return state

    def close(self, keep: Iterable[str]) -> None:
        """Forget the states of all other sessions, so that memory stays bounded."""
        kept = set(keep)
        for session_id in [each for each in self.open_sessions if kept.isdisjoint(self._lineage(each))]:
            del self.open_sessions[session_id]

    def begin_reading(self) -> None:
        """From now on, events are newer than the result of the read."""
        self._streamed = set()

    def end_reading(self) -> None:
        self._streamed = None

    def read_sessions(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            if session.id not in (self._streamed or ()):
                self.sessions[session.id] = session
        self.revision += 1

    def read_runs(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if run.run_id not in (self._streamed or ()):
                self._take_run(run)
        self.revision += 1

    def _mark_streamed(self, id: str) -> None:
        if self._streamed is not None:
            self._streamed.add(id)

    def forget(self) -> None:
        """Drop everything: events were missed (P10), and all of it is read again."""
        self.sessions.clear()
        self.requests.clear()
        self.runs.clear()
        self.open_sessions.clear()
        self._rejected.clear()
        self.revision += 1

    def requests_of(self, session_id: str) -> list[Request]:
        """Return the pending requests of a session and its sub-agents."""
        return [request for request in self.requests.values() if session_id in self._lineage(request.session_id)]

    def state_of(self, session_id: str) -> SessionActivity:
        """Return what a session, or one of its sub-agents, does: one that asks waits for the user."""
        if session_id in self.list_asking():
            return "asking"
        states = {run.state for run in self.runs.values() if session_id in self._lineage(run.session_id)}
        return "running" if "running" in states else "queued" if states else "idle"

    def list_asking(self) -> list[str]:
        """Return the ids of the sessions that wait for the user, without sub-agents', the longest wait first."""
        asking = [request.session_id for request in self.requests.values()]
        asking += [session_id for run_id, session_id in self._rejected.items() if run_id in self.runs]
        return list(dict.fromkeys(map(self.top_of, asking)))

    def top_of(self, session_id: str) -> str:
        """Return the id of the session to which a sub-agent's session belongs in the end; of another one, its own."""
        return self._lineage(session_id)[-1]

    @property
    def running_jobs(self) -> list[Job]:
        return [job for job in self.jobs if job.state == "running"]

    def title_of(self, session_id: str | None) -> str:
        session = self.sessions.get(session_id or "")
        return session.title if session else ""

    def parent_of(self, session_id: str | None) -> str | None:
        """Return the id of the session whose sub-agent this one belongs to."""
        session = self.sessions.get(session_id or "")
        return session.parent_session_id if session else None

    def children_of(self, session_id: str) -> list[str]:
        """Return the ids of its sub-agents' sessions, oldest first."""
        found = [each for each in self.sessions.values() if each.parent_session_id == session_id]
        return [each.id for each in sorted(found, key=lambda each: each.created_at)]

    def take(self, event: Event) -> None:
        self.revision += 1
        match event.payload:
            case Delta() as delta:
                if state := self.open_sessions.get(delta.session_id):
                    state.take_delta(delta)
            case MessageOf() as message:
                if state := self._find_open(message.session_id):
                    state.take_message(message, event.seq, is_deleted=event.change == "deleted")
                if (finish := finish_of(message.parts)) is not None and finish.usage is not None:
                    self._on_change(StepEnded(message.session_id))
            case Session() as session:
                self._take_session(session, event.change)
            case Run() as run:
                self._mark_streamed(run.run_id)
                self._take_run(run)
            case RunEnd() as end:
                run = self.runs.pop(end.run_id, None)
                self._rejected.pop(end.run_id, None)
                if state := self._find_open(end.session_id):
                    state.take_end(end)
                self._on_change(RunEnded(run, end))
            case AgentEvent() as agent_event:
                if agent_event.type == "re_authenticate":
                    self._rejected[agent_event.run_id] = agent_event.session_id
                else:
                    self._rejected.pop(agent_event.run_id, None)
                if state := self._find_open(agent_event.session_id):
                    state.take_agent_event(agent_event, event.seq)
                self._on_change(agent_event)
            case (McpEvent() | LspEvent()) as server_event:
                self._on_change(server_event)
            case PermissionRequest() | QuestionRequest() as request:
                is_new = request.id not in self.requests
                self.requests[request.id] = request
                if state := self._find_open(request.session_id):
                    state.take_request(request)
                if is_new:
                    self._on_change(request)
            case RequestResolution() as resolution:
                if request := self.requests.pop(resolution.id, None):
                    if state := self._find_open(request.session_id):
                        state.take_resolution(request)
                    self._on_change(RequestResolved(request, resolution.by, resolution.action))
            case FileChange() as change:
                for session_id in self._lineage(change.session_id):
                    if state := self.open_sessions.get(session_id):
                        state.files[change.path] = change
            case (ConfigChanged() | SkillsChanged()) as changed:
                self._on_change(changed)
            case _:
                pass

    def _take_session(self, session: Session, change: Change | None) -> None:
        self._mark_streamed(session.id)
        if change == "deleted":
            self.sessions.pop(session.id, None)
            self.open_sessions.pop(session.id, None)
            self._on_change(SessionDeleted(session.id))
            return
        before = self.sessions.get(session.id)
        self.sessions[session.id] = session
        state = self._find_open(session.id)
        if state is not None and change == "created":
            state.is_read = True  # there is nothing stored before
        if before is None:
            return
        if state is not None and (before.undone_from, before.rewritten) != (session.undone_from, session.rewritten):
            self._on_change(SessionRewound(session.id))
        if before.model != session.model:
            self._on_change(ModelChanged(session.id))

    def _take_run(self, run: Run) -> None:
        if run.is_open:
            self.runs[run.run_id] = run
        else:
            self.runs.pop(run.run_id, None)
        if state := self._find_open(run.session_id):
            state.take_run(run)

    def _find_open(self, session_id: str) -> SessionState | None:
        """Return the state of a session that is open, or whose parent is."""
        if self._open_parent_of(session_id) is not None:
            return self.open_session(session_id)
        return self.open_sessions.get(session_id)

    def _open_parent_of(self, session_id: str) -> SessionState | None:
        return self.open_sessions.get(self.parent_of(session_id) or "")

    def _lineage(self, session_id: str) -> list[str]:
        """Return the ids of a session, its parent, and so on."""
        line = [session_id]
        while (parent_id := self.parent_of(line[-1])) not in (None, *line):
            line.append(parent_id)
        return line

"""The `Store` protocol: named transactions, each all or nothing.

A transaction's events are passed to `on_commit` after its commit, in the order of `seq`, before its caller continues
(P9). A store shared by several servers would add a lease's epoch to the checks of `Claim`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from kedge.protocol.events import AgentEvent, Change
from kedge.protocol.files import Unsure
from kedge.protocol.messages import DeltaKind, Message, Part, RawMessage, Role, ToolResult
from kedge.protocol.requests import (
    Answer,
    AnswerReceipt,
    PermissionRequest,
    QuestionRequest,
    RequestKind,
    RequestResolution,
)
from kedge.protocol.runs import (
    Effort,
    Mode,
    QueuedPrompt,
    Receipt,
    Run,
    RunEnd,
    RunOptions,
    RunState,
    RunStatus,
    Submission,
    Usage,
    Waiting,
)
from kedge.protocol.sessions import ListedSession, Session, SessionChange, SessionDetails, SessionStatus, Workspace


class Claim(msgspec.Struct, frozen=True):
    """The right of one turn to write: checked in each of its transactions, lost when the run is canceled or ends."""

    workspace_id: str
    session_id: str
    run_id: str
    epoch: int


class SessionCost(msgspec.Struct, frozen=True):
    """What a session and its sub-agents cost, in dollars; `session_id` is the topmost one."""

    session_id: str
    cost: float


class DayCost(msgspec.Struct, frozen=True):
    """What all runs of a day cost, in dollars, and the cost up to which a person allowed more."""

    day: str  # YYYY-MM-DD, local time
    cost: float = 0.0
    allowed: float = 0.0


class CostGrant(msgspec.Struct, frozen=True):
    request: PermissionRequest
    answer: Answer


class Started(msgspec.Struct, frozen=True):
    """A run that is now running. `joined`: runs steered into its turn before a restart.

    `model` and `effort` are the run's own, or else its session's at this moment. `command`: the open message of a shell
    run whose command has not started before.
    """

    claim: Claim
    run: Run
    joined: list[Run]
    options: RunOptions = RunOptions()
    model: str | None = None
    effort: Effort | None = None
    command: RawMessage | None = None


class Outcome(msgspec.Struct, frozen=True):
    """How a turn ended. A cancel that was committed before takes precedence (P6)."""

    state: Literal["completed", "failed", "cancelled"]
    error: str | None = None
    code: str | None = None
    survivors: tuple[str, ...] = ()  # processes that outlived SIGKILL, named in the tool's result


class Draft(msgspec.Struct, frozen=True):
    """Text in flight of one part. `head`: the part without its text, only in its first draft."""

    message_id: str
    part: int
    kind: DeltaKind
    text: str
    head: Part | None = None


class KeptCall(msgspec.Struct, frozen=True):
    """A call that goes on after a restart: its open message, and its result so far, which clients have seen."""

    workspace_id: str
    message: RawMessage
    result: ToolResult


class ProcessRecord(msgspec.Struct, frozen=True):
    """A process group that a tool started; `started` distinguishes it from a later one with the same pgid."""

    pgid: int
    started: str


class Committed(msgspec.Struct, frozen=True):
    """One event of the log, just committed: its frame, and its payload for code in this process."""

    workspace_id: str
    seq: int
    type: str
    change: Change
    session_id: str
    frame: bytes
    payload: Run | RunEnd | RawMessage | RequestResolution | PermissionRequest | QuestionRequest | None = None
    is_open: bool = False  # a message still being written, a request still pending


class LogEvent(msgspec.Struct, frozen=True):
    seq: int
    session_id: str
    frame: bytes


class LogPage(msgspec.Struct, frozen=True):
    """Part of the log, complete up to `upto`; retention removed everything up to `floor`."""

    events: list[LogEvent]
    upto: int
    head: int
    floor: int
    log_id: str


class WorkspaceState(msgspec.Struct, frozen=True):
    workspace: Workspace
    log_id: str
    head: int
    pending: list[PermissionRequest | QuestionRequest]


class MessagePage(msgspec.Struct, frozen=True):
    messages: list[Message]
    as_of_seq: int


class Retention(msgspec.Struct, frozen=True):
    max_age_s: float = 30 * 86_400  # of events; runs and messages stay
    max_bytes: int = 256 * 1024 * 1024  # of event rows, for each workspace
    receipts_s: float = 90 * 86_400  # P3: how long a deleted session's run ids are remembered


OnCommit = Callable[[Sequence[Committed]], None]


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What the history may no longer show, because a summary replaced it."""

    prompts: list[Message]  # the newest messages of the user, without the content of attachments; oldest first
    left_out: int  # how many older ones there are
    todos: ToolResult | None  # the last todo list
    skills: list[str]  # names of those that the model loaded, the last one first


class Store(Protocol):
    on_commit: OnCommit

    @property
    def files(self) -> FileRecords: ...

    # workspaces and sessions
    async def open_workspace(self, path: str) -> WorkspaceState: ...
    async def workspaces(self) -> list[WorkspaceState]: ...
    async def delete_workspace(self, workspace_id: str) -> None: ...
    async def create_session(self, workspace_id: str, title: str, parent_session_id: str | None = None) -> Session: ...
    async def change_session(self, workspace_id: str, session_id: str, change: SessionChange) -> Session: ...
    async def retitle_session(self, workspace_id: str, session_id: str, expected: str, title: str) -> bool: ...
    async def session(self, workspace_id: str, session_id: str) -> SessionDetails: ...
    async def sessions(self, workspace_id: str, query: str = "", limit: int = 1000) -> list[Session]: ...
    async def all_sessions(self, query: str = "", limit: int = 1000) -> list[ListedSession]: ...
    async def session_status(self, workspace_id: str, session_id: str) -> SessionStatus: ...
    async def begin_delete_session(self, workspace_id: str, session_id: str) -> list[str]: ...
    async def end_delete_session(self, workspace_id: str, session_id: str) -> None: ...
    async def unfinished_deletes(self) -> list[tuple[str, str]]: ...

    # runs
    async def accept(self, workspace_id: str, run_id: str, submission: Submission) -> Receipt: ...
    async def start(self, workspace_id: str, session_id: str) -> Started | None: ...
    async def join(self, claim: Claim) -> list[Run]: ...
    async def set_waiting(self, claim: Claim, waiting: Waiting | None) -> None: ...
    async def waiting_since(self, workspace_id: str, run_id: str) -> float | None: ...
    async def cancel_session(self, workspace_id: str, session_id: str) -> list[str]: ...
    async def cancel_run(self, workspace_id: str, run_id: str) -> Run: ...
    async def queued_prompt(self, workspace_id: str, session_id: str, run_id: str) -> QueuedPrompt: ...
    async def drop_queued(self, workspace_id: str, session_id: str, run_id: str | None) -> list[str]: ...
    async def move_queued(
        self, workspace_id: str, session_id: str, run_id: str, before: str | None
    ) -> list[Run]: ...  # the queue
    async def promote_queued(
        self, workspace_id: str, session_id: str, run_id: str, on_busy: Literal["steer", "interrupt"]
    ) -> Run: ...
    async def switch_mode(self, workspace_id: str, run_id: str, mode: Mode) -> Run: ...
    async def options_of(self, workspace_id: str, run_id: str) -> RunOptions: ...  # with its current mode
    async def finish(self, claim: Claim, outcome: Outcome) -> Run: ...
    async def suspend(self, claim: Claim) -> None: ...
    async def recover(self) -> None: ...
    async def open_sessions(self) -> list[tuple[str, str]]: ...
    async def run(self, workspace_id: str, run_id: str) -> RunStatus: ...
    async def run_end(self, workspace_id: str, run_id: str) -> RunEnd | None: ...
    async def runs(
        self,
        workspace_id: str,
        session_id: str | None = None,
        state: RunState | None = None,
        limit: int = 1000,
        prefix: str = "",
    ) -> list[RunStatus]: ...

    # messages of a turn
    async def create_message(
        self,
        claim: Claim,
        role: Role,
        *,
        model: str | None = None,
        summary: bool = False,
        call: tuple[str, str, str] | None = None,
    ) -> RawMessage: ...
    async def keep_call_state(self, claim: Claim, message_id: str, state: bytes | None) -> None: ...
    async def call_state(self, message_id: str) -> bytes | None: ...
    async def kept_calls(self) -> list[KeptCall]: ...
    async def append_drafts(self, claim: Claim, drafts: Sequence[Draft]) -> None: ...
    async def finish_parts(
        self, claim: Claim, message_id: str, first: int, parts: Sequence[Part], usage: Usage | None = None
    ) -> None: ...
    async def messages(
        self, workspace_id: str, session_id: str, after: str | None = None, limit: int = 1000
    ) -> MessagePage: ...
    async def history(self, workspace_id: str, session_id: str) -> list[Message]: ...
    async def past(self, workspace_id: str, session_id: str) -> Past: ...
    async def summarized(self, workspace_id: str, run_id: str) -> list[list[Message]]: ...
    async def steps(self, workspace_id: str, run_id: str) -> int: ...
    async def count_usage(self, claim: Claim, usage: Usage) -> None: ...
    async def append_agent_event(self, claim: Claim, event: AgentEvent) -> None: ...

    # surroundings and notes that requests to the model contain
    async def keep_surroundings(self, claim: Claim, body: bytes) -> bytes: ...  # the stored ones, if there are any
    async def surroundings(self, session_id: str) -> bytes | None: ...
    async def keep_tools(self, claim: Claim, body: bytes) -> None: ...  # of a session with surroundings
    async def tools(self, session_id: str) -> bytes | None: ...
    async def set_note(self, claim: Claim, message_id: str, body: bytes) -> None: ...
    async def notes(self, session_id: str) -> dict[str, bytes]: ...  # by message, oldest first

    # requests to a person
    async def ask(
        self,
        claim: Claim,
        kind: RequestKind,
        message_id: str,
        request: PermissionRequest | QuestionRequest,
        answer: Answer | None = None,
    ) -> tuple[str, Answer | None]: ...
    async def answer(self, workspace_id: str, kind: RequestKind, request_id: str, answer: Answer) -> AnswerReceipt: ...
    async def pending_requests(
        self, workspace_id: str, kind: RequestKind
    ) -> list[PermissionRequest | QuestionRequest]: ...
    async def revoke_grant(self, workspace_id: str, session_id: str, request_id: str) -> None: ...
    async def grants(self, workspace_id: str, session_id: str) -> list[PermissionRequest]: ...

    # limits on cost
    async def session_cost(self, workspace_id: str, session_id: str) -> SessionCost: ...
    async def cost_grants(self, workspace_id: str, session_id: str, tool: str) -> list[CostGrant]: ...
    async def day_cost(self) -> DayCost: ...
    async def allow_day_cost(self, day: str, until: float) -> None: ...

    # processes of tools
    async def record_process(self, claim: Claim, process: ProcessRecord) -> None: ...
    async def keep_process(self, claim: Claim, process: ProcessRecord) -> None: ...
    async def record_workspace_process(self, workspace_id: str, process: ProcessRecord) -> None: ...
    async def forget_process(self, process: ProcessRecord) -> None: ...
    async def left_processes(self) -> list[ProcessRecord]: ...

    # the log
    async def append_config_changed(self, workspace_id: str) -> None: ...
    async def read_log(self, workspace_id: str, after: int, limit: int, session_id: str | None = None) -> LogPage: ...
    async def retain(self, policy: Retention) -> int: ...
    async def size_bytes(self) -> int: ...
    async def close(self) -> None: ...


UndoState = Literal["undoing", "undone", "redoing", "redone", "dropped"]


class StoredContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has of a session that is part of its requests."""

    history: Sequence[Message]
    surroundings: bytes | None
    tools: bytes | None  # of MCP servers
    notes: Mapping[str, bytes]


class NewChange(msgspec.Struct, frozen=True, kw_only=True):
    """`shown` is the path as clients see it; `unsure` says why it may not be the run's own change."""

    path: bytes
    shown: str
    before: bytes
    after: bytes
    added: int = 0
    removed: int = 0
    unsure: Unsure | None = None


class RecordedChange(msgspec.Struct, frozen=True, kw_only=True):
    path: bytes
    version: int
    before: bytes
    after: bytes
    added: int
    removed: int
    unsure: Unsure | None = None


class NewWork(msgspec.Struct, frozen=True, kw_only=True):
    """Something is about to change files: a tool one path, or a command (`path` is None) any.

    `after`: the planned state, if known. `hollow`: the directory of a new file, if it was empty before.
    """

    path: bytes | None = None
    before: bytes | None = None
    after: bytes | None = None
    hollow: bytes | None = None


class OpenWork(NewWork, frozen=True, kw_only=True):
    """Work whose changes are not recorded yet."""

    id: int
    workspace_id: str


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A position in a session, before everything from `seq` on. `prompt` is the text of the user message there."""

    seq: int
    message_id: str
    prompt: str | None = None


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    workspace_id: str
    session_id: str
    state: UndoState
    message_id: str
    plan: bytes


Reverts = Literal["all", "sure", "none"]  # which changes count as undone; "sure": those that are certainly a run's


class NewUndo(msgspec.Struct, frozen=True, kw_only=True):
    """What an undo does besides the plan: whether it hides messages, and which changes it reverts.

    `fork_after`: it belongs to a fork, whose last message this is.
    """

    cut: Cut
    plan: bytes
    hides: bool = True
    reverts: Reverts = "all"
    fork_after: str | None = None


class PastTurn(NamedTuple):
    """A user message of a session, also an undone one, with the state of the undo that hides it."""

    seq: int
    message_id: str
    run_id: str
    prompt: str
    created_at: float
    undo_state: str | None


class PastChange(NamedTuple):
    """A change of a session, with the call that made it (its tool's name and encoded input) where that is known."""

    seq: int
    change: RecordedChange
    is_undone: bool
    tool: str | None
    input: str | None
    call_seq: int


class PastUndo(NamedTuple):
    seq: int
    message_id: str
    hides: bool
    reverts: Reverts
    state: str
    at: float | None


class PastOfFiles(NamedTuple):
    """What a session's timeline is made of, oldest first. `omitted`: earlier turns that are left out."""

    turns: list[PastTurn]
    changes: list[PastChange]
    undos: list[PastUndo]
    omitted: int


class FileRecords(Protocol):
    # changes
    async def begin_work(self, workspace_id: str, run_id: str, work: NewWork) -> int: ...
    async def record_changes(self, work_id: int, changes: Sequence[NewChange], *, is_last: bool = True) -> None: ...
    async def open_work(self, workspace_id: str | None = None) -> list[OpenWork]: ...
    async def record_unwatched(self, workspace_id: str, run_id: str, why: str) -> bool: ...
    async def unwatched_reasons(self, workspace_id: str, session_id: str, cut: int = 0) -> list[str]: ...
    async def changes(
        self,
        workspace_id: str,
        session_id: str,
        cut: int = 0,
        run_id: str | None = None,
        *,
        with_unsure: bool = False,
    ) -> list[RecordedChange]: ...
    async def states_in_use(self) -> dict[bytes, int]: ...  # last use of each; larger is later
    async def plans(self) -> Sequence[tuple[int, bytes]]: ...

    # undo, redo, fork
    async def cut_before(self, workspace_id: str, session_id: str, message_id: str | None) -> Cut: ...
    async def cut_after(self, workspace_id: str, session_id: str, message_id: str | None) -> Cut: ...
    async def begin_undo(self, workspace_id: str, session_id: str, undo: NewUndo) -> int: ...
    async def begin_redo(self, workspace_id: str, session_id: str, undo_id: int) -> None: ...
    async def finish_undo(self, undo_id: int, plan: bytes) -> Session: ...
    async def abandon_undo(self, undo_id: int) -> None: ...
    async def past_of_files(self, workspace_id: str, session_id: str) -> PastOfFiles: ...
    async def last_undo(self, workspace_id: str, session_id: str) -> Undo | None: ...
    async def restores_before(self, session_id: str, message_id: str) -> Sequence[bytes]: ...  # plans
    async def unfinished_undos(self) -> list[Undo]: ...
    async def fork(self, workspace_id: str, session_id: str, message_id: str) -> Session: ...

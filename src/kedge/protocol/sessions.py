"""Workspaces, their sessions and background jobs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from kedge.protocol.bounds import MAX_TITLE_CHARS
from kedge.protocol.runs import Effort, Model, Run, Usage

# The engine checks it; this is only for the OpenAPI document.
Title = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_TITLE_CHARS})]


class Workspace(msgspec.Struct, frozen=True):
    id: str
    path: str
    created_at: float


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`model` and `effort` apply to runs that name none; null means the configured ones.

    `undone_from` is the first message that was undone and can be restored. When it changes, clients read the messages
    again. `rewritten` counts undos and redos of any kind: when it changes, they read the changed files again.
    """

    id: str
    title: str
    created_at: float
    updated_at: float
    parent_session_id: str | None = None
    model: str | None = None
    effort: Effort | None = None
    undone_from: str | None = None
    rewritten: int = 0


class SessionChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a session: missing fields stay, null clears."""

    title: Title | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    effort: Effort | UnsetType | None = UNSET


class SessionDetails(Session, frozen=True, kw_only=True):
    """A session with the usage of its runs and their sub-agents, for responses; never an event."""

    usage: Usage


class SessionStatus(SessionDetails, frozen=True, kw_only=True):
    """A session with its open runs; it is busy if it has any."""

    is_busy: bool
    active: Run | None
    queue: list[Run]


SessionState = Literal["running", "needs_you", "idle"]


class ListedSession(SessionDetails, frozen=True, kw_only=True):
    """A session of any directory. `last_model` gave its last answer; `needs_you`: a request waits for a person."""

    workspace_id: str
    path: str
    state: SessionState
    last_model: str | None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A background command, which outlives its run and ends with its workspace or the server."""

    id: str
    command: str
    description: str
    session_id: str
    run_id: str
    state: Literal["running", "ended"]
    exit_code: int | None  # of its shell; negative: the signal that ended it
    started_at: float
    output_file: str


class JobList(msgspec.Struct, frozen=True):
    """Newest first."""

    jobs: list[Job]


MAX_JOB_OUTPUT_BYTES = 65_536  # of one response


class JobOutput(msgspec.Struct, frozen=True):
    """Output of a job, and the byte at which more of it begins."""

    job: Job
    text: str
    next: int

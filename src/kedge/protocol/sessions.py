"""Workspaces, and the sessions in them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from kedge.protocol.bounds import MAX_TITLE_CHARS
from kedge.protocol.runs import Effort, Model, Run, Usage

# Checked below the server, by the function that every way in uses; here it is only described.
Title = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_TITLE_CHARS})]


class Workspace(msgspec.Struct, frozen=True):
    id: str
    path: str
    created_at: float


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`model` and `effort` are those of its runs that name none themselves; none here: what is configured.

    `undone_from` is the first message that was undone and can come back. Where it changes, messages went or came, and
    whoever shows them reads them again.
    """

    id: str
    title: str
    created_at: float
    updated_at: float
    parent_session_id: str | None = None
    model: str | None = None
    effort: Effort | None = None
    undone_from: str | None = None


class SessionChange(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes different in a session; what is not named stays, and null clears."""

    title: Title | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    effort: Effort | UnsetType | None = UNSET


class SessionDetails(Session, frozen=True, kw_only=True):
    """A session with what its runs used, their sub-agents included: the answer of REST, never an event."""

    usage: Usage


class SessionStatus(SessionDetails, frozen=True, kw_only=True):
    """A session with what it is doing: busy means that it has open runs."""

    is_busy: bool
    active: Run | None
    queue: list[Run]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A command that outlives the run that started it. It ends with its workspace or the server."""

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

"""Workspaces, and the sessions in them."""

from __future__ import annotations

import msgspec

from kedge.protocol.runs import Run
from kedge.protocol.usage import Usage


class Workspace(msgspec.Struct, frozen=True):
    id: str
    path: str
    created_at: float


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    title: str
    created_at: float
    updated_at: float
    parent_session_id: str | None = None


class SessionDetails(Session, frozen=True, kw_only=True):
    """A session with what its runs used, their sub-agents included: the answer of REST, never an event."""

    usage: Usage


class SessionStatus(SessionDetails, frozen=True, kw_only=True):
    """A session with what it is doing: busy means that it has open runs."""

    is_busy: bool
    active: Run | None
    queue: list[Run]

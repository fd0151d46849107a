"""Requests to the user: permissions and questions (P14)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

RequestKind = Literal["permission", "question"]
PermissionAction = Literal["allow", "allow_session", "allow_always", "deny"]

# Who answers a request without a person: no client may take one of these names.
BY_MODE = "mode"  # the mode of the run was switched
BY_RUN = "run"  # the permissions of the run
BY_SERVER = "server"  # the run ended first
RESERVED_NAMES = frozenset({BY_MODE, BY_RUN, BY_SERVER})


class PermissionRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    session_id: str
    run_id: str
    tool_call_id: str
    tool: str
    action: str
    description: str
    params: dict[str, Any]
    path: str | None = None


class Skip(msgspec.Struct, frozen=True):
    """Whether runs of a workspace skip permissions (yolo). It ends with the server, so that it is not left on."""

    skip: bool


class QuestionRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    session_id: str
    run_id: str
    tool_call_id: str
    questions: list[dict[str, Any]]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a request: `by` names the client, or is `server` if the run ended first."""

    action: str
    by: str
    answers: list[Any] | None = None
    reason: str | None = None  # of a denial: with it the turn goes on


class RequestResolution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of `permission_notification` and `question_notification`."""

    id: str
    session_id: str
    run_id: str
    tool_call_id: str
    action: str
    by: str
    answers: list[Any] | None = None
    reason: str | None = None  # of a denial: with it the turn goes on


class AnswerReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The response to an answer: the first one counts; a later one gets the first one's client and action."""

    resolved: bool
    by: str
    action: str

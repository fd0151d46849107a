"""Requests to a person: permissions and questions (P14)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

RequestKind = Literal["permission", "question"]
PermissionAction = Literal["allow", "allow_session", "deny"]


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
    """Whether a workspace's runs ask nobody (yolo). In force until the server ends: nobody finds it on months later."""

    skip: bool


class QuestionRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    session_id: str
    run_id: str
    tool_call_id: str
    questions: list[dict[str, Any]]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a request was resolved: `by` names the client, or `server` when its run ended first."""

    action: str
    by: str
    answers: list[Any] | None = None


class RequestResolution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of `permission_notification` and `question_notification`."""

    id: str
    session_id: str
    run_id: str
    tool_call_id: str
    action: str
    by: str
    answers: list[Any] | None = None


class AnswerReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer got: the first wins, a late one learns who was faster."""

    resolved: bool
    by: str
    action: str

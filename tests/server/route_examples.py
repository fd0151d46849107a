"""Every route of the table with something to send: whoever adds a route is made to add its example."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from kedge.protocol import api
from kedge.protocol.files import ForkBody, RedoBody, UndoBody
from kedge.protocol.mcp_requests import McpLoginAnswerBody, McpPromptBody, McpResourceBody
from kedge.protocol.proof import PATH as PROOF
from kedge.protocol.requests import Skip
from kedge.protocol.sessions import SessionChange
from kedge.server.http import Route
from kedge.server.routes import ROUTES

BODIES: dict[type, dict[str, Any]] = {
    api.LoginBody: {"provider_id": "openai", "api_key": "the-key-of-an-example", "check": False},
    api.ControlBody: {"command": "shutdown_if_idle"},
    api.WorkspaceBody: {"path": "/"},
    api.SessionBody: {"title": "a title"},
    SessionChange: {"title": "another title", "model": "a/b", "effort": "low"},
    api.SubmitBody: {"session_id": "SESSION", "prompt": "say hello"},
    api.SummarizeBody: {"run_id": "RUN", "on_busy": "queue"},
    api.ShellBody: {"command": "true"},
    api.ModeBody: {"mode": "plan"},
    api.MoveBody: {"run_id": "RUN", "before": None},
    api.PromoteBody: {"run_id": "RUN", "on_busy": "steer"},
    McpLoginAnswerBody: {"url": "http://127.0.0.1:1/callback?code=x&state=y"},
    McpPromptBody: {"name": "greet"},
    McpResourceBody: {"uri": "note://today"},
    UndoBody: {"dry_run": True},
    RedoBody: {"dry_run": True},
    ForkBody: {"dry_run": True},
    api.GrantBody: {"id": "REQUEST", "action": "allow"},
    Skip: {"skip": False},
    api.AnswerBody: {"id": "REQUEST", "answers": ["yes"]},
    api.RequestBody: {"id": "REQUEST"},
    api.ConfigSetBody: {"scope": "workspace", "key": "model", "value": "a/b"},
    api.ConfigRemoveBody: {"scope": "workspace", "key": "model"},
    api.ConfigModelBody: {"scope": "workspace", "model": "a/b"},
}

ParameterSet = Any  # pytest keeps its type to itself

ALL = [pytest.param(route, id=f"{route.method} {route.path}") for route in ROUTES]


def chosen(is_wanted: Callable[[Route], bool]) -> list[ParameterSet]:
    return [each for each, route in zip(ALL, ROUTES, strict=True) if is_wanted(route)]


# `proof` is answered over TCP alone, and there without a token.
WITH_TOKEN = chosen(lambda route: route.path != PROOF)
# There is no MCP server whose login could be asked for, no job, and no prompt in the queue.
ABSENT = ("{name}", "{job_id}", "/prompts/{run_id}")
GETTING = chosen(
    lambda route: route.method == "GET" and route.path != PROOF and not any(each in route.path for each in ABSENT)
)
OF_WORKSPACE = chosen(lambda route: "{workspace_id}" in route.path)
WITH_BODY = chosen(lambda route: route.body is not None)
HARMLESS = chosen(lambda route: route.body not in (None, api.ControlBody))


def path_of(route: Route, **ids: str) -> str:
    return re.sub(r"{(\w+)}", lambda found: ids.get(found[1], f"no-{found[1]}"), route.path)


def body_of(route: Route, **ids: str) -> dict[str, Any] | None:
    if route.body is None:
        return None
    return {name: ids.get(value, value) if isinstance(value, str) else value for name, value in _example(route)}


def _example(route: Route) -> Any:
    assert route.body is not None
    return BODIES[route.body].items()

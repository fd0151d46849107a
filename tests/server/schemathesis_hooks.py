"""Hooks for schemathesis: made-up ids would only ever be not found, so most requests get some that are there.

It is loaded by the command line of schemathesis (`SCHEMATHESIS_HOOKS`), which tests a server whose socket is named by
`KEDGE_TEST_SOCKET`, with a directory of its own.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.core.parameters import ParameterLocation

from tests.server.client import Client, unix

client = Client(unix(os.environ["KEDGE_TEST_SOCKET"]))
directory = Path.cwd()
count = itertools.count()
MOST_WAIT_S = 0.1  # jobs that nobody starts would be waited for to the end
MADE_UP = 5  # one in so many requests keeps what was made up


def use_real_ids(context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]) -> None:
    del context, kwargs
    if case.meta is None:
        return
    path: dict[str, Any] = case.path_parameters or {}
    ids = made(path) if path and next(count) % MADE_UP else {}
    if not case.meta.is_negative_at(ParameterLocation.PATH):
        case.path_parameters = {name: ids.get(name, value) for name, value in path.items()}
    if case.query and "wait" in case.query and not case.meta.is_negative_at(ParameterLocation.QUERY):
        case.query["wait"] = min(float(case.query["wait"] or 0), MOST_WAIT_S)
    if isinstance(case.body, dict) and not case.meta.is_negative_at(ParameterLocation.BODY):
        setting = {"key": "model", "value": "openai/any"} if "scope" in case.body else {}
        login = {"provider_id": "openai", "check": False, "workspace_id": None} if "api_key" in case.body else {}
        fixed = {"path": str(directory), "prompt": "say hello", "command": "true", **ids, "run_id": None, **setting}
        body: dict[str, Any] = case.body
        case.body = {**{name: fixed.get(name) or value for name, value in body.items()}, **login}


def made(path: dict[str, Any]) -> dict[str, str]:
    workspace = client.workspace(directory)
    session_id = client.session(workspace)
    ids = {"workspace_id": workspace.rpartition("/")[2], "session_id": session_id}
    return {**ids, "run_id": client.submit(workspace, session_id, "say hello")} if "run_id" in path else ids


schemathesis.hook("before_call")(use_real_ids)

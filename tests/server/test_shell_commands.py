"""A person's own command over HTTP, and the files that they may name."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.agent.agent import ShellTurn
from tests.server.client import Client, done
from tests.server.conftest import short_dir
from tests.server.in_process import Inside, serving


@pytest.fixture
async def inside() -> AsyncGenerator[Inside]:
    """The shared server runs no commands."""
    directory = short_dir()
    async with serving(directory) as inside:
        inside.agent.turns["shell"] = ShellTurn(directory, inside.agent.jobs, os.environ)
        yield inside
    shutil.rmtree(directory)


async def test_a_command_is_a_run_of_another_kind(inside: Inside, tmp_path: Path) -> None:
    await inside.ask(_command_is_a_run, inside.client, tmp_path)


def _command_is_a_run(client: Client, tmp_path: Path) -> None:
    workspace = client.workspace(tmp_path)
    session_id = client.session(workspace, "a title")
    target = f"{workspace}/agent/sessions/{session_id}/shell"
    body = {"command": "echo $COLOUR > made; cat made; exit 3", "run_id": "sh", "env": {"COLOUR": "green"}}
    answer = client.post(target, body)
    receipt = done(answer, 202)
    assert answer.headers["location"] == f"{workspace}/runs/sh"
    assert (receipt["run_id"], receipt["session_id"], receipt["replayed"]) == ("sh", session_id, False)
    run = client.ended(workspace, "sh")
    assert (run["kind"], run["state"], run["prompt"]) == ("shell", "completed", body["command"])
    assert (tmp_path / "made").read_text() == "green\n"
    [message] = done(client.get(f"{workspace}/sessions/{session_id}/messages"))["messages"]
    command = {"type": "shell_command", "command": body["command"], "output": "green", "exit_code": 3}
    assert (message["role"], message["parts"]) == ("user", [command])
    assert done(client.post(target, {**body, "env": None}), 202)["replayed"] is True
    assert client.post(target, {**body, "command": "true"}).code == "run_id_conflict"
    assert client.post(target, {"command": " "}).code == "empty_prompt"
    assert client.post(f"{workspace}/agent/sessions/none/shell", {"command": "true"}).status == 404


async def test_a_busy_session_is_the_callers_choice(inside: Inside, tmp_path: Path) -> None:
    await inside.ask(_busy_is_a_choice, inside.client, tmp_path)


def _busy_is_a_choice(client: Client, tmp_path: Path) -> None:
    workspace = client.workspace(tmp_path)
    session_id = client.session(workspace, "a title")
    target = f"{workspace}/agent/sessions/{session_id}/shell"
    done(client.post(target, {"command": "sleep 300", "run_id": "long"}), 202)
    assert client.post(target, {"command": "true", "on_busy": "reject"}).code == "session_busy"
    assert (
        done(client.post(target, {"command": "true", "on_busy": "steer", "run_id": "next"}), 202)["state"] == "queued"
    )
    done(client.post(f"{workspace}/runs/long/cancel"))
    assert client.ended(workspace, "long")["state"] == "cancelled"
    assert client.ended(workspace, "next")["state"] == "completed"


def test_files_are_found_by_a_part_of_their_names(client: Client, workspace: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("src/main.py", "src/domain.py", "notes ü.txt"):
        (tmp_path / name).write_text("x")
    files = f"{workspace}/files"
    assert done(client.get(f"{files}?q=main")) == {"files": ["src/main.py", "src/domain.py"], "cut": False}
    assert done(client.get(f"{files}?q=main&limit=1"))["files"] == ["src/main.py"]
    assert set(done(client.get(files))["files"]) == {"src/", "src/main.py", "src/domain.py", "notes ü.txt"}
    assert client.get(f"{files}?limit=0").status == 422
    assert client.get("/v1/workspaces/none/files").status == 404

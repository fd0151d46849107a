"""The requests of a session begin alike, whatever happens between them: providers cache an unchanged prefix."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess

import pytest

from tests.client.command import Kedge
from tests.e2e.home import Home
from tests.support.model_control import ModelControl
from tests.support.wires import prompt_text


@pytest.fixture
def kedge(home: Home, models: ModelControl) -> Kedge:
    models.reset()
    work = home.directory / "work"
    (work / "lib").mkdir(parents=True)
    (work / "AGENTS.md").write_text("Be kind.")
    (work / "lib" / "AGENTS.md").write_text("Rules of lib.")
    (work / "lib" / "a.py").write_text("x = 1\n")
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    return Kedge(home, work)


def test_through_steps_prompts_modes_and_a_killed_server(kedge: Kedge, models: ModelControl) -> None:
    view = {"name": "view", "input": {"path": "lib/a.py"}}
    edit = {"name": "edit", "input": {"path": "lib/a.py", "old_string": "x = 1", "new_string": "x = 2"}}
    models.on({"tool_calls": [view]}, {"text": "a plan"}, prompt="how")
    models.on({"tool_calls": [edit]}, {"text": "done"}, prompt="do it")
    assert kedge.run("-q", "--mode", "plan", "how would you change it?").code == 0
    assert kedge.run("-q", "-C", "--mode", "auto-edit", "do it").code == 0
    pid = kedge.server_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert kedge.run("-q", "-C", "--mode", "auto-edit", "what did you do?").code == 0

    requests = [call["body"] for call in models.stats()["calls"]]
    assert len(requests) == 5
    for before, after in itertools.pairwise(map(prompt_text, requests)):
        assert after.startswith(before)
    assert "lib/a.py" not in requests[-1]["messages"][0]["content"], "the model's own change is not the session's start"
    told = json.dumps(requests[-1]["messages"])
    assert told.count("Rules of lib.") == 1
    assert told.count("<system-note>") == 1
    session = json.loads(kedge("session", "list", "--json").out.splitlines()[0])["id"]
    for form in ((), ("--json",)):
        shown = kedge("session", "export", session, *form).out
        assert "do it" in shown
        assert "system-note" not in shown

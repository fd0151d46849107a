"""The scripted model server itself, where it is more than a plan: on its own, driven from outside, and at its end."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from typing import Any

from tests.support.model_control import ModelControl, model_process
from tests.support.model_server import HOST

LIMIT_S = 30.0


def ask(control: ModelControl, prompt: str, **fields: Any) -> Any:
    connection = http.client.HTTPConnection(HOST, control.port, timeout=LIMIT_S)
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": "Bearer key"})
    answer = connection.getresponse()
    told = answer.read()
    connection.close()
    return answer.status, told


def test_a_process_is_driven_over_http_and_ends_when_told() -> None:
    with model_process("--plan", '{"text": "hi"}') as (control, process):
        status, told = ask(control, "hello")
        assert status == 200
        assert json.loads(told)["choices"][0]["message"]["content"] == "hi"
        control.plan(echo=True)
        assert b'"content":"hello"' in ask(control, "hello", stream=True)[1]
        assert ask(control, "hello [[fake status=429 times=1]]")[0] == 429
        assert ask(control, "hello [[fake status=429 times=1]]")[0] == 200
        control.plan_next({"status": 500}, {})
        assert [ask(control, "hello")[0] for _ in range(3)] == [500, 200, 200]
        calls = control.wait(calls=7, done=7)
        assert {call["headers"]["authorization"] for call in calls} == {"Bearer key"}
        control.reset()
        assert control.stats() == {"count": 0, "listings": 0, "calls": []}
    assert process.returncode is not None


def test_a_process_ends_after_its_lifetime() -> None:
    with model_process("--lifetime-s", "0.1") as (_, process):
        assert process.wait(LIMIT_S) == 0


def test_a_process_ends_with_its_parent() -> None:
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'tests.support.model_server'])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ModelControl(int(process.stdout.readline())).stats()
        process.kill()
        process.communicate(timeout=LIMIT_S)  # returns when the last who holds the pipe is gone

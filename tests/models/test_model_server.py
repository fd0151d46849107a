"""The scripted model server itself, where it is more than a plan: on its own, driven from outside, and at its end."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from typing import Any

import pytest

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
        stats = control.stats()
        assert {name for name, value in stats.items() if value} == set()
        assert stats["calls"] == []
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


CALLS = [{"name": "view", "input": {"path": "a"}}, {"name": "bash", "input": {"command": "ls"}, "id": "mine"}]


def talk(control: ModelControl, path: str, messages: list[Any], **fields: Any) -> Any:
    connection = http.client.HTTPConnection(HOST, control.port, timeout=LIMIT_S)
    field = "input" if path == "/v1/responses" else "messages"
    connection.request("POST", path, json.dumps({"model": "m", field: messages, **fields}))
    told = json.loads(connection.getresponse().read())
    connection.close()
    if path == "/v1/messages":
        return [block.get("name") or block.get("text") for block in told["content"]]
    if path == "/v1/responses":
        return [item.get("name") or item["content"][0]["text"] for item in told["output"]]
    message = told["choices"][0]["message"]
    return [message["content"], *(call["function"]["name"] for call in message.get("tool_calls", []))]


CHAT_STEP: list[Any] = [
    {"role": "assistant", "content": "a", "tool_calls": []},
    {"role": "tool", "tool_call_id": "mine", "content": "b"},
    {"role": "user", "content": [{"type": "text", "text": "[images of the tool results above]"}]},
]
ANTHROPIC_STEP: list[Any] = [
    {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "mine", "content": "b"}]},
]


RESPONSES_STEP: list[Any] = [
    {"type": "reasoning", "id": "rs", "summary": []},
    {"role": "assistant", "content": "a"},
    {"type": "function_call", "call_id": "mine", "name": "view", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "mine", "output": "b"},
]
STEPS = {"/v1/chat/completions": CHAT_STEP, "/v1/responses": RESPONSES_STEP, "/v1/messages": ANTHROPIC_STEP}


@pytest.mark.parametrize(("path", "step"), STEPS.items(), ids=["chat", "responses", "anthropic"])
def test_a_plan_is_chosen_by_the_conversation(model_control: ModelControl, path: str, step: list[Any]) -> None:
    def ask_at(steps: int, prompt: str = "go", **fields: Any) -> Any:
        return talk(model_control, path, [{"role": "user", "content": prompt}, *step * steps], **fields)

    model_control.plan(text="usual", tool_calls=CALLS)
    assert ask_at(0) == ["usual", "view", "bash"]
    assert ask_at(1) == ["usual"]  # the calls were made
    assert ask_at(0, 'go [[fake text=x tool_calls=\'{"name": "edit"}\']]') == ["x", "edit"]
    model_control.on({"text": "first"}, {"text": "second"}, prompt="go")
    for _ in range(2):  # as often as the step is taken
        assert ask_at(0) == ["first"]
        assert ask_at(1) == ["second"]
    assert ask_at(2) == ["usual"]
    assert ask_at(0, "else") == ["usual", "view", "bash"]


def test_a_title_is_asked_for_beside_the_rest(model_control: ModelControl) -> None:
    model_control.plan_next({"text": "first"})
    ask_title = [{"role": "system", "content": "Write a title."}, {"role": "user", "content": "hello"}]
    assert talk(model_control, "/v1/chat/completions", ask_title) == ["A scripted title"]
    assert talk(model_control, "/v1/chat/completions", ask_title, tools=[{}]) == ["first"]
    assert model_control.stats()["count"] == 1
    assert len(model_control.stats()["title_calls"]) == 1


def test_a_plan_is_chosen_by_what_the_conversation_holds_anywhere(model_control: ModelControl) -> None:
    model_control.on({"text": "asked"}, body="Read it.")
    model_control.on({"text": "read"}, {"text": "read"}, body="word-4711")
    prompt = [{"role": "user", "content": "Read it."}, {"role": "user", "content": "And be kind."}]
    result = [{"role": "assistant", "content": "a"}, {"role": "tool", "tool_call_id": "mine", "content": "word-4711"}]
    assert talk(model_control, "/v1/chat/completions", prompt) == ["asked"]
    assert talk(model_control, "/v1/chat/completions", [*prompt, *result]) == ["read"]
    assert talk(model_control, "/v1/chat/completions", [*prompt, *result, *prompt]) == ["read"]
    assert talk(model_control, "/v1/chat/completions", prompt[1:]) == ["FAKE-ANSWER-OK"]

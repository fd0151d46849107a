"""Calls that a small local model writes as the text of its answer; an answer that only shows a call is never run."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.agent.text_calls import find_text_calls, may_write_calls_as_text
from kedge.models.values import TEXT_CALL_ID, Endpoint
from kedge.protocol.messages import Text, ToolCall, finish_of
from kedge.protocol.requests import PermissionRequest
from kedge.protocol.runs import RunOptions
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.support.harness import Kedge
from tests.support.model_control import ModelControl
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer

BY_NAME = {tool.name: tool for tool in TOOLS}
CALL = '{"name": "view", "arguments": {"path": "a.py"}}'
QWEN_CODER = "<function=view>\n<parameter=path>\na.py\n</parameter>\n<parameter=limit>\n5\n</parameter>\n</function>"
VIEW = ("view", '{"path":"a.py"}')
LS = ("ls", "{}")


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (CALL, [VIEW]),
        (f"\n  {CALL}\n", [VIEW]),
        (f"```json\n{CALL}\n```", [VIEW]),
        (f"```\n{CALL}\n```", [VIEW]),
        (f"<tool_call>\n{CALL}\n</tool_call>", [VIEW]),
        (f"<tool_call>\n{CALL}", [VIEW]),
        (f"<tools>{CALL}</tools>", [VIEW]),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", [VIEW, VIEW]),
        (f"<think>I must look.</think>\n\n{CALL}", [VIEW]),
        (f"<|python_tag|>{CALL.replace('arguments', 'parameters')}<|eom_id|>", [VIEW]),
        (f"[TOOL_CALLS] [{CALL}]", [VIEW]),
        (f"[TOOL_CALLS][{CALL}]</s>", [VIEW]),
        ('[TOOL_CALLS]view[ARGS]{"path": "a.py"}', [VIEW]),
        ('[TOOL_CALLS]view[ARGS]{"path": "a.py"}[TOOL_CALLS]ls[ARGS]{}', [VIEW, LS]),
        (f"functools[{CALL}]", [VIEW]),
        (f"<|tool_call|>[{CALL}]", [VIEW]),
        (f'[{CALL}, {{"name": "ls", "arguments": {{}}}}]', [VIEW, LS]),
        (f'{CALL}\n{{"name": "ls", "arguments": {{}}}}', [VIEW, LS]),
        (f'{{"function": {CALL}}}', [VIEW]),
        (f'{{"type": "function", "id": "1", "function": {CALL}}}', [VIEW]),
        (f'{{"tool_calls": [{CALL}]}}', [VIEW]),
        ('{"function": "view", "arguments": "{\\"path\\": \\"a.py\\"}"}', [VIEW]),
        ('{"tool": "view", "input": {"path": "a.py"}}', [VIEW]),
        ('{"name": "Read", "arguments": {"file_path": "a.py"}}', [("view", '{"file_path":"a.py"}')]),
        ('<function=view>{"path": "a.py"}</function>', [VIEW]),
        (f"<tool_call>\n{QWEN_CODER}\n</tool_call>", [("view", '{"path":"a.py","limit":"5"}')]),
        (
            '{"name": "write", "arguments": {"path": "a", "content": "x\ny"}}',
            [("write", '{"path":"a","content":"x\\ny"}')],
        ),
    ],
)
def test_an_answer_that_is_nothing_but_calls_is_calls(text: str, calls: list[tuple[str, str]]) -> None:
    assert find_text_calls(text, BY_NAME) == calls


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Done.",
        "{}",
        "[]",
        f"To look at a file, call view like this:\n\n```json\n{CALL}\n```",
        f"```json\n{CALL}\n```\nThis would show the file.",
        f"{CALL}\n\nThat is the format.",
        f"I would write <tool_call>{CALL}</tool_call>",
        f"<tool_call>{CALL}</tool_call> is how it looks: <b>",
        '{"name": "view", "version": "1.0"}',
        '{"name": "view", "arguments": {"path": "a.py"}, "description": "an example"}',
        '{"name": "view"}',
        '{"name": "view", "arguments": {}}',
        '{"name": "view", "arguments": {"path": 1}}',
        '{"name": "view", "arguments": {"path": "a.py", "encoding": "utf-8"}}',
        '{"name": "deploy", "arguments": {"path": "a.py"}}',
        '{"name": "kedge", "dependencies": {"bash": "1.0"}}',
        f'[{CALL}, {{"name": "deploy", "arguments": {{}}}}]',
        f"[{CALL}, 1]",
        CALL[:-2],
        f"<think>{CALL}</think>",
        "[" * 10_000 + "]" * 10_000,
        "[" + ",".join([CALL] * 50) + "]",
    ],
)
def test_any_other_answer_is_an_answer(text: str) -> None:
    assert find_text_calls(text, BY_NAME) == []


WORDS = [*"{}[]`\"':, <>/\n", "name", "view", "arguments", "tool_call", "path", "```json\n"]


@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
def test_no_text_breaks_the_search(text: str) -> None:
    for name, _ in find_text_calls(text, BY_NAME):
        assert name in BY_NAME


@pytest.mark.parametrize(
    "text", ["a{}b}}", "```{}```", "<tool_call>{}}}", "<function=bash>{}>", "a[ARGS]{{}}{}x}}", '{{"name":{}}}']
)
@pytest.mark.parametrize("space", [" ", "\n"])
def test_a_long_run_of_white_space_does_not_stop_the_server(text: str, space: str) -> None:
    began = time.process_time()
    assert find_text_calls(text.format(space * 200_000), BY_NAME) == []
    assert time.process_time() - began < 5  # quadratic time takes minutes


def test_half_a_surrogate_pair_is_no_call() -> None:
    assert find_text_calls('{"name":"bash","arguments":{"command":"echo \\ud83d"}}', BY_NAME) == []


def test_a_tool_that_is_not_offered_is_not_called() -> None:
    assert find_text_calls(CALL, {"ls": BY_NAME["ls"]}) == []


@pytest.mark.parametrize(
    ("url", "is_read"),
    [
        ("http://127.0.0.1:11434/v1", True),
        ("http://gpu.lan:8000/v1", True),
        ("https://api.openai.com/v1", False),
        ("https://openrouter.ai/api/v1", False),
        ("https://api.mistral.ai/v1", False),
    ],
)
def test_only_servers_that_are_no_vendors_are_read_so(url: str, is_read: bool) -> None:
    assert may_write_calls_as_text(Endpoint(provider="p", model="m", base_url=url)) == is_read


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        yield driver


@pytest.fixture
def workspace(kedge: Kedge) -> Path:
    return kedge.data.parent / "workspace"


async def test_a_call_as_text_is_stored_beside_the_text_and_sent_back_as_a_call(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    (workspace / "a.py").write_text("x = 1\n")
    text = f"```json\n{CALL}\n```"
    model_server.on([Plan(text=text), Plan(text="It sets x.")])
    session_id = await driver.kedge.session()
    end = await driver.ask("what is in a.py?", session_id)
    assert (end.text, end.error) == ("It sets x.", None)
    (result,) = await driver.kedge.results(session_id)
    assert (result.name, result.content) == ("view", "     1\tx = 1")
    step = next(message for message in await driver.kedge.messages(session_id) if message.role == "assistant")
    said, call, finish = step.parts
    assert (said, finish_of(step.parts)) == (Text(text), finish), "text is never taken back"
    assert isinstance(call, ToolCall)
    assert (call.name, call.input, call.finished) == ("view", '{"path":"a.py"}', True)
    body: dict[str, Any] = model_server.calls[-1].body
    asked, answered = body["messages"][-2:]
    assert asked["content"] is None
    assert asked["tool_calls"][0]["id"].startswith(TEXT_CALL_ID)
    assert answered["tool_call_id"] == asked["tool_calls"][0]["id"]


async def test_a_call_as_text_needs_the_same_permission(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    model_server.on([Plan(text='{"name": "bash", "arguments": {"command": "touch made"}}'), Plan(text="Made.")])
    session_id = await driver.kedge.session()
    receipt = await driver.kedge.send(session_id, "go", permissions="ask")
    request = await driver.kedge.asked()
    assert isinstance(request, PermissionRequest)
    assert (request.tool, request.params["command"]) == ("bash", "touch made")
    assert not (workspace / "made").exists()
    await driver.kedge.engine.answer_permission(driver.kedge.workspace_id, request.id, "deny", by="tester")
    await driver.kedge.end(receipt.run_id)
    assert not (workspace / "made").exists()


async def test_an_answer_in_a_schema_is_no_call(driver: Driver, model_server: ModelServer) -> None:
    model_server.on([Plan(text=CALL)])
    session_id = await driver.kedge.session()
    end = await driver.ask("go", session_id, options=RunOptions(output_schema={"type": "object"}))
    assert end.text == CALL
    assert await driver.kedge.results(session_id) == []


async def test_an_answer_that_shows_a_call_is_the_answer(driver: Driver, model_server: ModelServer) -> None:
    text = f"Call it so:\n\n```json\n{CALL}\n```"
    model_server.on([Plan(text=text)])
    assert (await driver.ask("how do I call view?")).text == text


async def test_a_call_as_text_is_made_once_over_a_crash(
    kedge: Kedge, model_control: ModelControl, workspace: Path
) -> None:
    waiting = '{"name": "bash", "arguments": {"command": "echo x >> count; echo at work; sleep 300"}}'
    model_control.on({"text": waiting}, {"text": "done"})
    session_id = await kedge.session()
    async with Driver(kedge, model_control.base_url, tools=TOOLS) as driver:
        receipt = await kedge.send(session_id, "go", permissions="allow")
        await driver.shown("at work\n")
        await kedge.crash()
    async with Driver(kedge, model_control.base_url, tools=TOOLS):
        await kedge.start()
        assert (await kedge.end(receipt.run_id)).text == "done"
    (result,) = await kedge.results(session_id)
    assert "Interrupted" in result.content
    assert (workspace / "count").read_text() == "x\n"

"""Calls that are written oddly but have one meaning: everybody sees the call that really runs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from kedge.protocol.messages import ToolCall
from kedge.protocol.requests import PermissionRequest
from kedge.protocol.runs import RunOptions
from kedge.tools.builtin.bash import TOOL as BASH
from kedge.tools.builtin.view import TOOL as VIEW
from tests.agent.driver import Driver
from tests.agent.fake_tools import FakeTools
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=[*FakeTools().tools, VIEW, BASH]) as driver:
        yield driver


@pytest.fixture
def workspace(kedge: Kedge) -> Path:
    return kedge.data.parent / "workspace"


def rounds(*calls: PlannedCall, text: str = "done") -> list[Plan]:
    return [*(Plan(text="", tool_calls=(each,)) for each in calls), Plan(text=text)]


async def stored_calls(driver: Driver, session_id: str) -> list[ToolCall]:
    messages = await driver.kedge.messages(session_id)
    return [part for message in messages for part in message.parts if isinstance(part, ToolCall)]


async def test_a_tool_under_another_name_is_judged_stored_and_run_as_itself(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    model_server.on(rounds(PlannedCall("Shell", {"cmd": "touch made"})))
    session_id = await driver.kedge.session()
    receipt = await driver.kedge.send(session_id, "go", permissions="ask")
    request = await driver.kedge.asked()
    assert isinstance(request, PermissionRequest)
    assert (request.tool, request.params["command"]) == ("bash", "touch made")
    assert not (workspace / "made").exists()
    await driver.kedge.engine.answer_permission(driver.kedge.workspace_id, request.id, "allow", by="tester")
    assert (await driver.kedge.end(receipt.run_id)).text == "done"
    assert [call.name for call in await stored_calls(driver, session_id)] == ["bash"]
    assert [result.name for result in await driver.kedge.results(session_id)] == ["bash"]
    assert (workspace / "made").exists()


async def test_a_rule_against_a_tool_holds_for_its_other_names(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    model_server.on(rounds(PlannedCall("run_command", {"cmd": "touch made"})))
    session_id = await driver.kedge.session()
    await driver.ask("go", session_id, permissions="ask", options=RunOptions(deny=("bash",), mode="auto-edit"))
    (result,) = await driver.kedge.results(session_id)
    assert result.is_error
    assert (result.metadata or {})["refused"] == "rule"
    assert not (workspace / "made").exists()


async def test_raw_newlines_and_a_trailing_comma_are_understood_and_sent_back_as_valid_json(
    driver: Driver, model_server: ModelServer
) -> None:
    written = '{"text": "a\n\tb",}'
    model_server.on(rounds(PlannedCall("peek", written)))
    session_id = await driver.kedge.session()
    assert (await driver.ask("go", session_id)).text == "done"
    assert [result.content for result in await driver.kedge.results(session_id)] == ["a\n\tb"]
    assert [call.input for call in await stored_calls(driver, session_id)] == [written], "text is never taken back"
    body: dict[str, Any] = model_server.calls[-1].body
    (sent,) = [message for message in body["messages"] if message.get("tool_calls")]
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"text": "a\n\tb"}


async def test_the_same_call_in_another_form_is_a_repetition(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    (workspace / "a").write_text("text\n")
    forms = ['{"path": "a"}', '{"file_path":"a" }', '{"filename": "a",}']
    names = ["view", "Read", "read_file"]
    model_server.on(rounds(*map(PlannedCall, names, forms)))
    session_id = await driver.kedge.session()
    await driver.ask("go", session_id)
    contents = [result.content for result in await driver.kedge.results(session_id)]
    assert ["same call 3 times" in content for content in contents] == [False, False, True]


async def test_a_tool_that_does_not_exist_is_answered_with_one_that_does(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.on(rounds(PlannedCall("read_many_files", {"paths": ["a"]})))
    session_id = await driver.kedge.session()
    await driver.ask("go", session_id)
    (result,) = await driver.kedge.results(session_id)
    assert "There is no tool `read_many_files`. Did you mean `view`?" in result.content

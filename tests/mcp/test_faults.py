"""Servers that die, go silent or ask without end, at each step of a call: they cost their tools, never the run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.jsonrpc import stdio
from kedge.mcp import servers as supervisor
from kedge.mcp.stdio import StdioTransport
from kedge.protocol.requests import QuestionRequest
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.mcp.odd import ALLOW, Odd, asked, calling, gone, place_of, result_of, until_ready, use
from tests.support.harness import Kedge
from tests.support.model_server import ModelServer


@pytest.fixture
def odd(tmp_path: Path) -> Odd:
    return Odd(tmp_path / "odd")


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Driver]:
    monkeypatch.setattr(supervisor, "RETRY_S", (0.0, 0.0, 0.0, 0.0))
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        yield driver


async def test_a_server_killed_before_a_call_is_started_again_for_it(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    os.kill(odd.pid, signal.SIGKILL)
    await odd.noted("started", 2)
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    assert not (await result_of(driver, session)).is_error
    assert odd.count("tools/call echo") == 2


async def test_a_server_killed_during_a_call_costs_this_call_which_is_not_repeated(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.kedge.send(session, calling("mcp_odd_hang", text="done"), "r", options=ALLOW)
    await odd.noted("tools/call hang")
    os.kill(odd.pid, signal.SIGKILL)
    assert (await driver.kedge.end("r")).text == "done"
    result = await result_of(driver, session)
    assert result.is_error
    assert "not repeated" in result.content
    await odd.noted("started", 2)
    assert odd.count("tools/call hang") == 1


async def test_a_server_killed_while_it_lists_is_asked_again(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config("listless"))
    await driver.kedge.send(await driver.kedge.session(), calling("mcp_find", query="echo", text="done"), "r")
    await odd.noted("tools/list")
    os.kill(odd.pid, signal.SIGKILL)
    assert (await driver.kedge.end("r")).text == "done"
    await odd.noted("tools/list", 2)


async def test_a_server_killed_while_a_person_is_asked_gets_the_same_call_with_the_answer(
    driver: Driver, odd: Odd
) -> None:
    use(driver, odd=odd.config())
    session, kedge = await driver.kedge.session(), driver.kedge
    await kedge.send(session, calling("mcp_odd_ask", text="done"), "r", options=ALLOW)
    request = await asked(driver, QuestionRequest)
    pid = odd.pid
    os.kill(pid, signal.SIGKILL)
    await gone(pid)
    await kedge.engine.answer_question(kedge.workspace_id, request.id, ["Ann", ""], by="test")
    assert (await kedge.end("r")).text == "done"
    assert json.loads((await result_of(driver, session)).content)[1] == "state of {}"
    assert odd.count("started") == 2


async def test_a_server_killed_during_a_task_is_asked_for_it_again(
    driver: Driver, odd: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.agent.mcp_calls.DEFAULT_POLL_S", 0.05)
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.kedge.send(session, calling("mcp_odd_task"), "r", options=ALLOW)
    await odd.noted("tasks/get t-1")
    (odd.place / "finish").touch()
    os.kill(odd.pid, signal.SIGKILL)
    await driver.kedge.end("r")
    assert (await result_of(driver, session)).content == "the task is done"
    assert odd.count("tools/call task") == 1


async def test_a_call_that_wants_input_without_end_is_given_up(
    driver: Driver, odd: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.agent.mcp_calls.RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr("kedge.agent.mcp_calls.MAX_ROUNDS", 3)
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    assert (await driver.ask(calling("mcp_odd_endless", text="done"), session, options=ALLOW)).text == "done"
    result = await result_of(driver, session)
    assert result.is_error
    assert "3 times" in result.content
    assert odd.count("tools/call endless") == 4


@pytest.mark.parametrize(("kind", "protocol"), [("silent", "2025-11-25"), ("late", "2026-07-28")])
async def test_a_server_that_does_not_answer_the_probe_in_time_is_taken_as_either_era(
    driver: Driver, odd: Odd, monkeypatch: pytest.MonkeyPatch, kind: str, protocol: str
) -> None:
    monkeypatch.setattr(StdioTransport, "probe_timeout_s", 0.05)
    use(driver, odd=odd.config(kind))
    await driver.ask('[[fake text="x"]]')
    await until_ready(driver, "odd")
    (server,) = (await (await driver.agent.mcp()).service.describe(*place_of(driver))).servers
    assert server.protocol == protocol
    assert odd.requests[1:3] == ["server/discover", "initialize"]


async def test_a_server_that_never_reads_its_input_blocks_nobody_and_is_ended(
    driver: Driver, odd: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "MAX_UNSENT_BYTES", 100_000)
    use(driver, odd=odd.config("deaf", timeout_s=0.2))
    session = await driver.kedge.session()
    big = calling("mcp_odd_echo", text="done").replace("{}", json.dumps({"text": "x" * 200_000}))
    assert (await driver.ask(big, session, options=ALLOW)).text == "done"
    assert "0.2 s" in (await result_of(driver, session)).content
    assert (await driver.ask(calling("mcp_odd_echo", text="done"), session, options=ALLOW)).text == "done"
    assert "does not read" in (await result_of(driver, session)).content
    pid = odd.pid
    await driver.agent.workspace_deleted(driver.kedge.workspace_id)
    await gone(pid)


async def test_the_instructions_of_a_server_come_with_its_first_result_and_only_then(
    driver: Driver, odd: Odd, model_server: ModelServer
) -> None:
    use(driver, odd=odd.config("wordy"))
    session = await driver.kedge.session()
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    told = [str(message).count("Speak up.") for message in model_server.calls[-1].body["messages"]]
    assert sum(told) == 1

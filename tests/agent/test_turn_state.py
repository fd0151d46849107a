"""Cancelled or killed in the middle of a round: nothing is repeated, nothing is lost (P6, P7, P13)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from kedge.agent.turn_state import DENIED, find_last_step
from kedge.protocol.messages import Finish, FinishReason, Message, Part, Role, ToolCall, ToolResult
from kedge.tools.port import Output, ToolContext
from tests.agent.driver import Driver
from tests.agent.fake_tools import FakeTools, Params, make_tool
from tests.agent.test_tool_calls import call, results, rounds
from tests.support.harness import Kedge
from tests.support.model_control import ModelControl
from tests.support.model_server import ModelServer

LIMIT_S = 30.0


@pytest.fixture
def fake_tools() -> FakeTools:
    return FakeTools()


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, fake_tools: FakeTools) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=fake_tools.tools) as driver:
        yield driver


async def test_cancel_ends_a_call_in_time_and_leaves_a_whole_record(
    driver: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    calls = [call("peek", text="a", gate="a"), call("peek", text="b", gate="b"), call("poke", text="c")]
    model_server.on(rounds(calls))
    session = await driver.kedge.session()
    receipt = await driver.kedge.send(session, "go")
    async with asyncio.timeout(LIMIT_S):
        await fake_tools.gates.reached("a")
        await fake_tools.gates.reached("b")
    began = time.monotonic()
    await driver.kedge.cancel(session)
    end = await driver.kedge.end(receipt.run_id)
    assert time.monotonic() - began < 5
    assert end.cancelled
    told = await results(driver, session)
    assert len(told) == 3
    assert all(result.is_error for result in told)
    notes = [result.content.splitlines()[-1].partition(":")[0] for result in told]
    assert notes == ["Interrupted", "Interrupted", "Not started"]
    assert "poke c begins" not in fake_tools.log
    assert (await driver.assistant_messages(session))[-1][1] == "canceled"
    model_server.on(rounds(text="again"), prompt="again")
    assert (await driver.ask("again", session)).text == "again"


async def test_a_tool_that_swallows_its_cancellation_does_not_hold_up_the_end(
    kedge: Kedge, model_server: ModelServer
) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def run(_ctx: ToolContext, _params: Params) -> Output:
        begun.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        return Output(content="too late")

    stubborn = make_tool("stubborn", run)
    model_server.on(rounds([call("stubborn", text="a")]))
    async with Driver(kedge, model_server.base_url, tools=[stubborn]) as driver:
        session = await kedge.session()
        receipt = await kedge.send(session, "go")
        await begun.wait()
        await kedge.cancel(session)
        assert (await kedge.end(receipt.run_id)).cancelled
        over.set()
        (result,) = await results(driver, session)
        assert result.content.startswith("Interrupted: the run was canceled")


async def test_a_tool_that_is_cancelled_from_inside_is_a_result(kedge: Kedge, model_server: ModelServer) -> None:
    async def run(_ctx: ToolContext, _params: Params) -> Output:
        raise asyncio.CancelledError

    broken = make_tool("broken", run, "nothing")
    model_server.on(rounds([call("broken", text="a"), call("broken", text="b")]))
    async with Driver(kedge, model_server.base_url, tools=[broken]) as driver:
        session = await kedge.session()
        end = await driver.ask("go", session)
        assert (end.text, end.error) == ("done", None)
        assert [result.is_error for result in await results(driver, session)] == [True, True]


async def test_after_a_crash_what_had_begun_is_told_and_what_is_behind_it_is_not_run(
    kedge: Kedge, model_control: ModelControl, fake_tools: FakeTools
) -> None:
    steps = [[call("peek", text="a"), call("poke", text="b", gate="b"), call("poke", text="c")]]
    model_control.on(
        *({"text": plan.text, "tool_calls": [vars(each) for each in plan.tool_calls]} for plan in rounds(*steps))
    )
    session = await kedge.session()
    async with Driver(kedge, model_control.base_url, tools=fake_tools.tools):
        receipt = await kedge.send(session, "go")
        async with asyncio.timeout(LIMIT_S):
            await fake_tools.gates.reached("b")
        await kedge.crash()
    async with Driver(kedge, model_control.base_url, tools=fake_tools.tools) as driver:
        await kedge.start()
        end = await kedge.end(receipt.run_id)
        assert (end.text, end.error) == ("done", None)
        first, second, third = await results(driver, session)
    assert first.content == "a"
    assert second.is_error
    assert third.is_error
    assert third.content.startswith("Not run")
    assert "Interrupted" in second.content
    assert fake_tools.log == ["peek a begins", "peek a ends", "poke b begins"]
    assert model_control.stats()["count"] == 2


@pytest.mark.parametrize("way", ["crash", "restart"])
async def test_a_call_that_waits_for_a_person_goes_on_waiting_under_the_same_request(
    kedge: Kedge, model_control: ModelControl, fake_tools: FakeTools, way: str
) -> None:
    steps = [[call("poke", text="a"), call("risk", text="b")]]
    model_control.on(
        *({"text": plan.text, "tool_calls": [vars(each) for each in plan.tool_calls]} for plan in rounds(*steps))
    )
    session = await kedge.session()
    async with Driver(kedge, model_control.base_url, tools=fake_tools.tools):
        receipt = await kedge.send(session, "go")
        request = await kedge.asked()
        await (kedge.crash() if way == "crash" else kedge.shutdown(grace_s=0))
    async with Driver(kedge, model_control.base_url, tools=fake_tools.tools) as driver:
        await kedge.start()
        assert [each.id for each in await kedge.permissions()] == [request.id]
        await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", by="tester")
        assert (await kedge.end(receipt.run_id)).text == "done"
        assert [result.content for result in await results(driver, session)] == ["a", "b"]
    assert fake_tools.log.count("poke a begins") == fake_tools.log.count("risk b begins") == 1
    asked = [event for event in await kedge.log() if event.type == "permission_request"]
    assert len(asked) == 1


def message(role: Role, *parts: Part, run_id: str = "run") -> Message:
    return Message(id="m", session_id="s", run_id=run_id, role=role, parts=list(parts), created_at=0.0)


def said(reason: FinishReason, *parts: Part) -> Message:
    return message("assistant", *parts, Finish(reason))


CALL = ToolCall("c", "poke", "{}", True)


def test_a_turn_whose_call_was_denied_before_a_crash_is_over() -> None:
    denied = message("tool", ToolResult("c", "poke", "no", True, {DENIED: "tester"}))
    step = find_last_step([said("tool_use", CALL), denied], "run")
    assert step is not None
    assert step.is_denied


@pytest.mark.parametrize(
    "history",
    [
        [],
        [message("user")],
        [message("assistant", Finish("end_turn"), run_id="other")],
        [said("interrupted", CALL)],
        [said("canceled", CALL)],
        [said("error")],
        [message("assistant", CALL)],
        [said("end_turn"), message("user")],
    ],
    ids=["empty", "prompt", "another run", "interrupted", "canceled", "failed", "unfinished", "joined"],
)
def test_only_a_whole_step_of_this_run_counts(history: list[Message]) -> None:
    assert find_last_step(history, "run") is None

"""The limits on the cost of a session and of a day: who is asked, who fails, and what survives a restart."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from kedge.config.schema import AgentConfig, Config, ModelConfig, ProviderConfig
from kedge.protocol.requests import PermissionAction, PermissionRequest
from tests.agent.driver import Driver
from tests.agent.fake_tools import FakeTools
from tests.agent.test_tool_calls import call
from tests.support.harness import Kedge
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer

PRICED = ModelConfig(input_price=1.0, output_price=100.0)
STEP = Plan(text="", tool_calls=(call("poke", text="a"),), input_tokens=0, output_tokens=4000)  # 40 cents
LAST = replace(STEP, text="done", tool_calls=())
CHEAP = replace(LAST, output_tokens=100)  # a cent
DAY_S = 24 * 3600.0


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=FakeTools().tools) as driver:
        yield driver


def limit(driver: Driver, **limits: Any) -> None:
    driver.config = Config(
        agent=AgentConfig(titles=False, **limits), providers={"openai": ProviderConfig(models={"tester": PRICED})}
    )


async def answer(kedge: Kedge, request_id: str, action: PermissionAction) -> None:
    assert (await kedge.engine.answer_permission(kedge.workspace_id, request_id, action, by="a person")).resolved


async def asked(kedge: Kedge) -> PermissionRequest:
    request = await kedge.asked()
    assert isinstance(request, PermissionRequest)
    return request


@pytest.mark.parametrize("permissions", ["deny", "allow"])
@pytest.mark.parametrize("scope", ["session", "day"])
async def test_where_nobody_is_the_run_fails_with_a_code_and_the_next_one_at_once(
    driver: Driver, model_server: ModelServer, permissions: str, scope: str
) -> None:
    limit(driver, **{f"max_cost_{scope}": 0.5})
    model_server.on([STEP, STEP, STEP])
    session = await driver.kedge.session()
    end = await driver.ask("go", session, permissions=permissions)
    assert end.code == f"max_cost_{scope}"
    assert f"agent.max_cost_{scope}" in (end.error or "")
    assert "$0.8" in (end.error or "")
    assert len(model_server.calls) == 2  # 40 cents, 80 cents
    assert (await driver.ask("on", session, permissions=permissions)).code == f"max_cost_{scope}"
    assert len(model_server.calls) == 2
    model_server.on([LAST], prompt="other")
    elsewhere = await driver.ask("other", permissions=permissions)
    assert (elsewhere.code is None) == (scope == "session"), "a day is of all sessions"


@pytest.mark.parametrize("way", ["answer", "restart", "crash"])
@pytest.mark.parametrize("scope", ["session", "day"])
async def test_a_person_is_asked_once_and_may_go_on(
    driver: Driver, model_server: ModelServer, scope: str, way: str
) -> None:
    kedge = driver.kedge
    limit(driver, **{f"max_cost_{scope}": 0.5})
    model_server.on([STEP, STEP, LAST], prompt="go")
    for prompt in ("further", "at last"):
        model_server.on([CHEAP], prompt=prompt)
    session = await kedge.session()
    receipt = await kedge.send(session, "go")
    request = await asked(kedge)
    assert (request.tool, request.action, request.session_id) == ("spending", f"max_cost_{scope}", session)
    assert (request.params["limit"], request.params["until"]) == (0.5, 1.0)
    if way != "answer":
        await (kedge.restart() if way == "restart" else kedge.crash_and_start())
        assert [each.id for each in await kedge.permissions()] == [request.id], "asked once"
    await answer(kedge, request.id, "allow")
    assert (await kedge.end(receipt.run_id)).text == "done"
    assert len(model_server.calls) == 3  # 1.20
    again = await kedge.send(session, "further")  # over what was allowed
    further = await asked(kedge)
    assert further.params["until"] == 1.5
    await answer(kedge, further.id, "allow")
    assert (await kedge.end(again.run_id)).error is None
    more = await driver.ask("at last", session)
    assert more.error is None, "what was allowed holds for the next run"
    assert len(model_server.calls) == 5


async def test_no_ends_the_run_and_for_this_session_ends_the_questions(
    driver: Driver, model_server: ModelServer
) -> None:
    kedge = driver.kedge
    limit(driver, max_cost_session=0.5)
    model_server.on([STEP, STEP, LAST])
    session = await kedge.session()
    receipt = await kedge.send(session, "go")
    await answer(kedge, (await asked(kedge)).id, "deny")
    end = await kedge.end(receipt.run_id)
    assert end.code == "max_cost_session"
    model_server.on([STEP] * 5 + [LAST])
    receipt = await kedge.send(session, "on")
    await answer(kedge, (await asked(kedge)).id, "allow_session")
    assert (await kedge.end(receipt.run_id)).text == "done"


async def test_a_sub_agent_spends_of_its_parents_session_while_it_works(
    driver: Driver, model_server: ModelServer
) -> None:
    limit(driver, max_cost_session=1.0)
    model_server.on([replace(STEP, tool_calls=(call("helper", text="find it"),)), LAST], prompt="go")
    model_server.on([replace(STEP, tool_calls=(call("peek", text="a"),))] * 5, prompt="find it")
    end = await driver.ask("go", permissions="deny")
    assert end.code == "max_cost_session"
    assert len(model_server.calls) == 3  # 40 cents of the parent, two steps of the sub-agent
    assert end.usage.cost == pytest.approx(1.2)


async def test_the_next_day_begins_at_nothing_and_counts_sub_agents_once(
    driver: Driver, model_server: ModelServer
) -> None:
    kedge = driver.kedge
    limit(driver, max_cost_day=5.0)
    model_server.on([replace(STEP, tool_calls=(call("helper", text="find it"),)), LAST], prompt="go")
    model_server.on([LAST], prompt="find it")
    await driver.ask("go")
    assert (await kedge.store.day_cost()).cost == pytest.approx(1.2)
    kedge.clock.ahead_s += DAY_S
    assert (await kedge.store.day_cost()).cost == 0.0
    model_server.on([LAST], prompt="again")
    await driver.ask("again")
    assert (await kedge.store.day_cost()).cost == pytest.approx(0.4)


@pytest.mark.parametrize("name", ["max_cost_session", "max_cost_day"])
async def test_a_limit_that_could_never_hold_is_refused_before_anything_is_spent(
    kedge: Kedge, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("kedge.models.values.Endpoint.is_local", False)  # as if it were somebody's who asks for money
    async with Driver(kedge, model_server.base_url) as driver:
        limits: Any = {name: 0.5}
        driver.config = Config(agent=AgentConfig(titles=False, **limits))
        assert (await driver.ask("go")).code == "bad_config"
    assert not model_server.calls

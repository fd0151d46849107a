"""Which model a run asks whose session has a choice of its own, and how hard; also for sub-agents and summaries."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.config.schema import AgentConfig, Config, ModelConfig, ProviderConfig
from kedge.protocol.errors import Invalid
from kedge.protocol.runs import RunOptions
from kedge.protocol.sessions import SessionChange
from kedge.tools.registry import TOOLS
from tests.agent.driver import KEY, Driver
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer

THINKS = ModelConfig(reasoning_effort="medium")


async def choose(driver: Driver, session_id: str, **choice: Any) -> None:
    await driver.kedge.engine.change_session(driver.kedge.workspace_id, session_id, SessionChange(**choice))


def asked(model_server: ModelServer) -> list[tuple[str, str | None]]:
    return [(call.body["model"], call.body.get("reasoning_effort")) for call in model_server.calls]


@pytest.fixture
def thinking(driver: Driver) -> Driver:
    provider = ProviderConfig(models={"one": THINKS, "two": THINKS})
    driver.config = Config(agent=AgentConfig(titles=False), providers={"openai": provider})
    return driver


async def test_the_model_changes_in_the_middle_of_a_session(thinking: Driver, model_server: ModelServer) -> None:
    session_id = await thinking.kedge.session()
    assert (await thinking.ask("go", session_id, model="openai/one")).error is None
    await choose(thinking, session_id, model="openai/two", effort="high")
    assert (await thinking.ask("go", session_id)).error is None
    once = {"model": "openai/one", "options": RunOptions(effort="low")}
    assert (await thinking.ask("go", session_id, **once)).error is None
    await choose(thinking, session_id, model=None, effort=None)
    assert (await thinking.ask("go", session_id)).error is None
    assert asked(model_server) == [("one", "medium"), ("two", "high"), ("one", "low"), ("tester", None)]
    assert [len(call.body["messages"]) for call in model_server.calls] == [2, 4, 6, 8], "each was told all of it"
    named = [m.model for m in await thinking.kedge.messages(session_id) if m.role == "assistant"]
    assert named == ["openai/one", "openai/two", "openai/one", "openai/tester"]


async def test_a_summary_is_written_by_the_model_of_the_session(thinking: Driver, model_server: ModelServer) -> None:
    session_id = await thinking.kedge.session()
    await thinking.ask("go", session_id)
    await choose(thinking, session_id, model="openai/two", effort="high")
    run = await thinking.kedge.send(session_id, "", kind="summarize")
    assert (await thinking.kedge.end(run.run_id)).error is None
    assert asked(model_server)[-1] == ("two", "high")


async def test_a_sub_agent_uses_the_choice_of_its_parents_session(kedge: Kedge, model_server: ModelServer) -> None:
    call = PlannedCall("agent", {"prompt": "look around"})
    model_server.next_plans = [Plan(tool_calls=(call,)), Plan(text="seen"), Plan(text="done")]
    env = {"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": KEY, "KEDGE_MODEL": "openai/tester"}
    async with Driver(kedge, model_server.base_url, tools=TOOLS, env=env) as driver:
        provider = ProviderConfig(models={"two": THINKS})
        driver.config = Config(agent=AgentConfig(titles=False), providers={"openai": provider})
        session_id = await kedge.session()
        await choose(driver, session_id, model="openai/two", effort="low")
        assert (await driver.ask("go", session_id)).text == "done"
    assert asked(model_server) == [("two", "low")] * 3


async def test_an_effort_that_comes_to_nothing_is_told_once_a_run(kedge: Kedge, model_server: ModelServer) -> None:
    call = PlannedCall("agent", {"prompt": "look around"})
    model_server.next_plans = [Plan(tool_calls=(call,)), Plan(text="seen"), Plan(text="done")]
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        session_id = await kedge.session()
        assert (await driver.ask("go", session_id, options=RunOptions(effort="high"))).text == "done"
        assert (await driver.ask("go", session_id)).error is None
        told = [event for event in await driver.agent_events() if "effort" in (event.details or {})]
    assert [event.session_id for event in told] == [session_id], "not by its sub-agent, nor where none was asked for"
    assert told[0].type == "notice"
    assert told[0].details == {"effort": "high", "model": "openai/tester"}


async def test_a_provider_that_nobody_has_is_refused_before_it_is_chosen(driver: Driver) -> None:
    directory = driver.kedge.data
    for model in ("openai/anything", "ollama/x", "local/starter"):
        await driver.agent.check_model(model, directory)
    with pytest.raises(Invalid, match=r"'opanai'.*'openai'") as caught:
        await driver.agent.check_model("opanai/gpt", directory)
    assert caught.value.code == "invalid_model"
    driver.config = Config(providers={"company": ProviderConfig(base_url="http://127.0.0.1:1/v1")})
    await driver.agent.check_model("company/x", directory)

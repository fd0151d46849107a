"""Titles: written beside the run, which neither waits for one nor fails with one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from kedge.agent.titles import clean_title
from kedge.config.schema import AgentConfig, Config
from kedge.protocol.sessions import Session, SessionChange
from kedge.protocol.text_safety import PROVISIONAL_CHARS, provisional_title
from tests.agent.driver import Driver
from tests.agent.fake_tools import FakeTools
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer

LONG = "please find out why the dates in the export have no zone, and mend it everywhere"


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=FakeTools().tools) as driver:
        driver.config = Config()
        yield driver


async def title_of(driver: Driver, session_id: str) -> str:
    return (await driver.kedge.store.session(driver.kedge.workspace_id, session_id)).title


async def named(driver: Driver, session_id: str, title: str) -> None:
    await driver.kedge.seen(
        lambda event: (
            isinstance(event.payload, Session) and (event.payload.id, event.payload.title) == (session_id, title)
        )
    )


async def until_asked(driver: Driver, model_server: ModelServer, count: int = 1) -> None:
    await model_server.until(lambda _: len([c for c in model_server.title_calls if c.done]) >= count)
    await asyncio.gather(*driver.agent.titles.tasks)


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Fix the dates", "Fix the dates"),
        ('"Fix the dates."', "Fix the dates"),
        ("**Title: Fix the dates**\n\nI chose it because", "Fix the dates"),
        ("\n\n  # Fix the   dates \n", "Fix the dates"),
        ("“Fix the dates”", "Fix the dates"),
        ("a\tb\x07c\u2028d", "a b c"),
        ("", ""),
        ("  \n ''' \n", ""),
        ("x" * 500, "x" * 79 + "…"),
    ],
)
def test_a_title_is_one_plain_line(said: str, title: str) -> None:
    assert clean_title(said) == title


def test_the_provisional_title_is_the_beginning_of_the_prompt() -> None:
    assert provisional_title(" say\n  it ") == "say it"
    assert len(provisional_title(LONG)) == PROVISIONAL_CHARS
    assert provisional_title(LONG).endswith("…")


@pytest.mark.parametrize("before", ["", provisional_title(LONG)])
async def test_a_session_without_a_name_of_its_own_gets_one(
    driver: Driver, model_server: ModelServer, before: str
) -> None:
    model_server.titles = Plan(text='"Mend dates without a zone"')
    session_id = await driver.kedge.session(before)
    await driver.ask(LONG, session_id)
    await named(driver, session_id, "Mend dates without a zone")
    (call,) = model_server.title_calls
    assert LONG in str(call.body["messages"])
    assert "tools" not in call.body


async def test_a_name_that_a_person_gave_stays(driver: Driver, model_server: ModelServer) -> None:
    session_id = await driver.kedge.session("mine")
    await driver.ask(LONG, session_id)
    assert (await title_of(driver, session_id), len(model_server.title_calls)) == ("mine", 0)


async def test_a_name_given_while_the_model_thinks_about_one_stays(driver: Driver, model_server: ModelServer) -> None:
    model_server.titles = Plan(text="too late", gate="title")
    session_id = await driver.kedge.session()
    await driver.ask(LONG, session_id)
    await driver.kedge.engine.change_session(driver.kedge.workspace_id, session_id, SessionChange(title="mine"))
    model_server.release("title")
    await until_asked(driver, model_server)
    assert await title_of(driver, session_id) == "mine"


async def test_the_run_does_not_wait_for_a_title(driver: Driver, model_server: ModelServer) -> None:
    model_server.titles = Plan(text="at last", gate="title")
    session_id = await driver.kedge.session()
    end = await driver.ask(LONG, session_id)
    assert end.error is None
    assert await title_of(driver, session_id) == ""
    model_server.release("title")
    await named(driver, session_id, "at last")
    assert (await driver.kedge.store.run(driver.kedge.workspace_id, end.run_id)).usage == end.usage


async def test_what_a_title_uses_is_counted_while_the_run_is_open(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(text="answer", gate="run", gate_after=0, input_tokens=5)
    model_server.titles = Plan(text="A title", input_tokens=7)
    session_id = await driver.kedge.session()
    receipt = await driver.kedge.send(session_id, LONG)
    await named(driver, session_id, "A title")
    model_server.release("run")
    assert (await driver.kedge.end(receipt.run_id)).usage.input_tokens == 12


@pytest.mark.parametrize("plan", [Plan(status=500), Plan(status=401), Plan(drop_after=0), Plan(text="")])
async def test_a_title_that_fails_is_no_fault_of_the_run(driver: Driver, model_server: ModelServer, plan: Plan) -> None:
    model_server.titles = plan
    session_id = await driver.kedge.session()
    end = await driver.ask(LONG, session_id)
    await until_asked(driver, model_server)
    assert (end.error, await title_of(driver, session_id)) == (None, "")
    assert not [event for event in await driver.agent_events() if event.type in ("error", "retry")]


async def test_titles_can_be_turned_off(driver: Driver, model_server: ModelServer) -> None:
    driver.config = Config(agent=AgentConfig(titles=False))
    await driver.ask(LONG)
    assert not model_server.title_calls
    assert not driver.agent.titles.tasks


async def test_the_session_of_a_sub_agent_is_not_named(driver: Driver, model_server: ModelServer) -> None:
    model_server.next_plans = [
        Plan(tool_calls=(PlannedCall("helper", {"text": "look into it"}),)),
        Plan(text="found"),
        Plan(text="done"),
    ]
    session_id = await driver.kedge.session()
    assert (await driver.ask(LONG, session_id)).text == "done"
    await until_asked(driver, model_server)
    assert len(model_server.title_calls) == 1


async def test_a_title_that_is_not_done_when_the_server_leaves_is_given_up(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.titles = Plan(text="never", gate="title")
    await driver.ask(LONG)
    await model_server.until(lambda _: len(model_server.title_calls) == 1)
    async with asyncio.timeout(5):
        await driver.agent.close()
    assert not driver.agent.titles.tasks

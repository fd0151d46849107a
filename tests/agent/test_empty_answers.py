"""An answer with neither text nor a call: it is asked for once more, and a second one fails the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from kedge.config.schema import WireName
from kedge.protocol.runs import RunOptions
from kedge.tools.builtin.agent import TOOL as AGENT
from tests.agent.driver import KEY, Driver
from tests.agent.fake_tools import FakeTools
from tests.agent.test_tool_calls import call
from tests.models.wires.vendors import CHECKS
from tests.support.harness import Kedge
from tests.support.model_control import ModelControl
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer
from tests.support.wires import WIRES, environ
from tests.support.wires import conversation as said

EMPTY = Plan(text="")
TWICE = "The model's answer was empty twice. Try again, or choose another model."


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=FakeTools().tools) as driver:
        yield driver


async def retries(driver: Driver) -> list[tuple[str | None, str | None]]:
    return [(event.code, event.error) for event in await driver.agent_events() if event.type == "retry"]


def conversation(model_server: ModelServer, place: int = -1) -> list[tuple[str, str | None]]:
    """What the model was sent after the system prompt."""
    return [(message["role"], message.get("content")) for message in model_server.calls[place].body["messages"][1:]]


@pytest.mark.parametrize(
    "empty",
    [EMPTY, Plan(text=" \n"), Plan(text="", reasoning="let me think"), Plan(text="", finish="whatever")],
    ids=["nothing", "blanks", "thoughts alone", "an unknown reason"],
)
async def test_an_empty_answer_is_asked_for_once_more(driver: Driver, model_server: ModelServer, empty: Plan) -> None:
    model_server.next_plans = [empty, Plan(text="now")]
    session = await driver.kedge.session()
    end = await driver.ask("go", session)
    assert (end.text, end.error) == ("now", None)
    assert await retries(driver) == [("empty_answer", "the model's answer was empty")]
    assert [role for role, _ in conversation(model_server)] == ["user", "user"], "the empty answer is not sent back"
    assert "empty" in str(conversation(model_server)[-1]), "the model is told why it is asked again"
    assert end.usage.input_tokens == 20, "both were paid for"


async def test_a_second_empty_answer_fails_the_run_and_the_session_goes_on(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.next_plans = [EMPTY, EMPTY]
    session = await driver.kedge.session()
    end = await driver.ask("go", session)
    assert (end.text, end.error, end.code) == ("", TWICE, "empty_answer")
    assert len(model_server.calls) == 2
    model_server.plan = Plan(text="now")
    assert (await driver.ask("and now?", session)).text == "now"
    assert conversation(model_server) == [("user", "go"), ("user", "and now?")]


async def test_a_model_that_ends_silently_after_its_work_is_asked_for_its_answer(
    driver: Driver, model_server: ModelServer
) -> None:
    peek = Plan(text="", tool_calls=(call("peek", text="a"),))
    model_server.next_plans = [peek, EMPTY, Plan(text="done")]
    end = await driver.ask("go")
    assert (end.text, end.error) == ("done", None)
    assert [role for role, _ in conversation(model_server)] == ["user", "assistant", "tool", "user"]
    model_server.next_plans = [peek, EMPTY, EMPTY]
    assert (await driver.ask("go")).code == "empty_answer"


async def test_only_empty_answers_in_a_row_fail_a_run(driver: Driver, model_server: ModelServer) -> None:
    peek = Plan(text="", tool_calls=(call("peek", text="a"),))
    model_server.next_plans = [EMPTY, peek, EMPTY, Plan(text="done")]
    end = await driver.ask("go")
    assert (end.text, end.error) == ("done", None)
    assert len(await retries(driver)) == 2


async def test_a_sub_agent_without_an_answer_is_an_error_that_its_parent_can_work_around(
    kedge: Kedge, model_server: ModelServer
) -> None:
    delegate = Plan(text="", tool_calls=(call("agent", prompt="look around"),))
    model_server.next_plans = [delegate, EMPTY, EMPTY, Plan(text="without it, then")]
    async with Driver(kedge, model_server.base_url, tools=[AGENT]) as driver:
        session = await kedge.session()
        end = await driver.ask("go", session)
    assert (end.text, end.error) == ("without it, then", None)
    (result,) = await kedge.results(session)
    assert result.is_error
    assert TWICE in result.content


@pytest.mark.parametrize("wire", WIRES)
async def test_every_wire_asks_again(kedge: Kedge, model_server: ModelServer, wire: WireName) -> None:
    peek = Plan(text="", tool_calls=(call("peek", text="a"),))
    model_server.next_plans = [peek, EMPTY, Plan(text="done")]
    env = environ(wire, model_server, KEY)
    async with Driver(kedge, model_server.base_url, tools=FakeTools().tools, env=env) as driver:
        end = await driver.ask("go")
    assert (end.text, end.error) == ("done", None)
    CHECKS[wire]([each for each in said(model_server.calls[-1].body) if each.get("role") != "system"])


async def test_a_crash_between_the_two_requests_does_not_make_them_three(
    kedge: Kedge, model_control: ModelControl
) -> None:
    model_control.on({"text": ""})
    model_control.on({"text": "", "gate": "second", "gate_after": 0}, prompt="was empty")
    async with Driver(kedge, model_control.base_url):
        receipt = await kedge.send(await kedge.session(), "go")
        await asyncio.to_thread(model_control.wait, held="second")
        await kedge.crash()
    model_control.on({"text": ""}, prompt="was empty")
    async with Driver(kedge, model_control.base_url):
        await kedge.start()
        assert (await kedge.end(receipt.run_id)).code == "empty_answer"
    assert model_control.stats()["count"] == 3, "the second was cut off, and made once more"


async def test_a_limit_of_steps_counts_the_second_request(driver: Driver, model_server: ModelServer) -> None:
    model_server.next_plans = [EMPTY, Plan(text="never")]
    end = await driver.ask("go", options=RunOptions(max_steps=1))
    assert (end.code, len(model_server.calls)) == ("max_steps", 1)


@pytest.mark.parametrize(("finish", "code"), [("length", "max_tokens"), ("content_filter", "content_filter")])
async def test_an_answer_that_was_stopped_before_its_first_word_is_not_asked_for_again(
    driver: Driver, model_server: ModelServer, finish: str, code: str
) -> None:
    model_server.plan = Plan(text="", finish=finish)
    end = await driver.ask("go")
    assert (end.code, len(model_server.calls)) == (code, 1)

"""Another model takes over from one that is at a limit, out of order or refused; and what it takes over."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from kedge.config.schema import AgentConfig, Config, ModelConfig, ProviderConfig
from kedge.engine import concurrency
from kedge.protocol.events import AgentEvent, Event
from kedge.protocol.runs import Run
from tests.agent.driver import Driver
from tests.agent.fake_tools import FakeTools
from tests.agent.test_tool_calls import call
from tests.support.harness import Kedge
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer

OWN, OTHER, THIRD = "openai/tester", "other/second", "third/last"
LIMIT = Plan(status=429, error="rate_limit_exceeded", retry_after="7200")
PRICED = ModelConfig(input_price=1.0, output_price=100.0)
THINKER = Plan(text="on", reasoning="hm", signature="c2lnbmVk")


@pytest.fixture
async def other(model_server: ModelServer) -> AsyncGenerator[ModelServer]:
    async with ModelServer(Plan(text="by another")) as server:
        yield server


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, other: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=FakeTools().tools) as driver:
        fall_back(driver, other, OTHER)
        yield driver


def fall_back(driver: Driver, other: ModelServer, *names: str, **agent: float) -> None:
    settings = ProviderConfig(base_url=other.base_url, api_key="sk-other", models={"second": PRICED})
    driver.config = Config(
        fallback_models=names,
        agent=AgentConfig(titles=False, max_wait_s=agent.get("max_wait_s"), max_cost=agent.get("max_cost")),
        providers={
            "openai": ProviderConfig(models={"tester": PRICED}),
            "other": settings,
            "third": ProviderConfig(base_url=other.base_url, api_key="sk-third"),
        },
    )


async def told(driver: Driver) -> list[AgentEvent]:
    return [event for event in await driver.agent_events() if event.type == "fallback"]


async def models_of(driver: Driver, session_id: str) -> list[str | None]:
    return [m.model for m in await driver.kedge.history(session_id) if m.role == "assistant"]


@pytest.mark.parametrize(
    ("plan", "code", "attempts"),
    [
        (LIMIT, "rate_limited", 1),
        (Plan(status=429), "rate_limited", 5),
        (Plan(status=503), "provider_error", 5),
        (Plan(status=404, error="model_not_found"), "model_not_found", 1),
        (Plan(status=403), "auth", 1),
        (Plan(status=429, error="insufficient_quota"), "quota", 1),
        (Plan(text="half", drop_after=1, chunks=3), "dropped", 5),
    ],
    ids=["limit", "limit without end", "outage", "no model", "no access", "no credit", "drops"],
)
async def test_another_model_goes_on_and_everybody_is_told(
    driver: Driver, model_server: ModelServer, other: ModelServer, plan: Plan, code: str, attempts: int
) -> None:
    model_server.plan = plan
    session_id = await driver.kedge.session()
    end = await driver.ask("go", session_id)
    assert (end.text, end.error) == ("by another", None)
    assert (len(model_server.calls), len(other.calls)) == (attempts, 1)
    assert other.calls[0].body["model"] == "second"
    assert other.calls[0].headers["authorization"] == "Bearer sk-other"
    (event,) = await told(driver)
    assert event.code == code
    assert event.details is not None
    assert (event.details["from"], event.details["to"], event.details["reason"]) == (OWN, OTHER, code)
    assert OTHER in (event.message or "")
    assert await models_of(driver, session_id) == [OTHER]


@pytest.mark.parametrize(
    "plan", [Plan(status=400), Plan(malformed="html"), Plan(finish="content_filter", text="")], ids=str
)
async def test_what_another_model_would_not_mend_fails(
    driver: Driver, model_server: ModelServer, other: ModelServer, plan: Plan
) -> None:
    model_server.plan = plan
    assert (await driver.ask("go")).error is not None
    assert not other.calls


async def test_the_run_stays_with_the_other_model_and_the_next_run_tries_its_own(
    driver: Driver, model_server: ModelServer, other: ModelServer
) -> None:
    model_server.next_plans = [replace(THINKER, tool_calls=(call("poke", text="a"),)), LIMIT, Plan(text="own again")]
    other.on(
        [Plan(tool_calls=(call("poke", text="b"),)), Plan(tool_calls=(call("poke", text="c"),)), Plan(text="done")]
    )
    session_id = await driver.kedge.session()
    end = await driver.ask("go", session_id)
    assert end.error is None
    assert len(model_server.calls) == 2
    seen = str(other.calls[0].body["messages"])
    assert "poke" in seen, "the conversation goes with it"
    assert "c2lnbmVk" not in seen, "but not what the other provider signed"
    assert set(await models_of(driver, session_id)) == {OWN, OTHER}
    assert (await driver.ask("again", session_id)).text == "own again"


@pytest.mark.parametrize("way", ["restart", "crash"])
async def test_after_a_restart_the_run_goes_on_with_the_model_that_it_fell_back_to(
    driver: Driver, model_server: ModelServer, other: ModelServer, way: str
) -> None:
    kedge = driver.kedge
    model_server.plan = LIMIT
    other.on([Plan(tool_calls=(call("risk", text="b"),)), Plan(text="done")])
    await kedge.send(await kedge.session(), "go", "r")
    request = await kedge.asked()
    await (kedge.restart() if way == "restart" else kedge.crash_and_start())
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", by="a person")
    assert (await kedge.end("r")).text == "done"
    assert (len(model_server.calls), len(other.calls)) == (1, 2)
    assert len(await told(driver)) == 1


async def test_one_that_cannot_be_used_is_skipped_with_its_reason(
    driver: Driver, model_server: ModelServer, other: ModelServer
) -> None:
    model_server.plan = LIMIT
    fall_back(driver, other, "nobody/x", "groq/x", OWN, OTHER)
    assert (await driver.ask("go")).text == "by another"
    (event,) = await told(driver)
    assert event.details is not None
    assert set(event.details["skipped"]) == {"nobody/x", "groq/x"}
    assert "GROQ_API_KEY" in event.details["skipped"]["groq/x"]


async def test_one_without_a_price_is_skipped_where_cost_is_limited(
    driver: Driver, model_server: ModelServer, other: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.models.values.Endpoint.is_local", False)
    model_server.plan = LIMIT
    fall_back(driver, other, THIRD, OTHER, max_cost=5.0)
    assert (await driver.ask("go")).text == "by another"
    (event,) = await told(driver)
    assert event.details is not None
    assert "price" in event.details["skipped"][THIRD]


async def test_if_all_fail_the_error_names_all(driver: Driver, model_server: ModelServer, other: ModelServer) -> None:
    model_server.plan = Plan(status=404, error="model_not_found")
    other.plan = Plan(status=429, error="insufficient_quota")
    fall_back(driver, other, OTHER, "groq/x", THIRD)
    session_id = await driver.kedge.session()
    end = await driver.ask("go", session_id)
    assert end.code == "model_not_found"
    assert all(name in (end.error or "") for name in (OTHER, "groq/x", THIRD))
    assert (len(model_server.calls), len(other.calls)) == (1, 2)
    assert [event.details and event.details["to"] for event in await told(driver)] == [OTHER, THIRD]


async def test_if_all_are_at_a_limit_the_run_waits_for_its_own(
    driver: Driver, model_server: ModelServer, other: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "CLOCK_READ_S", 0.01)
    model_server.next_plans = [LIMIT]
    model_server.plan = Plan(text="own again")
    other.plan = LIMIT
    await driver.kedge.send(await driver.kedge.session(), "go", "r")

    def is_waiting(event: Event) -> bool:
        return isinstance(event.payload, Run) and event.payload.waiting is not None

    run = (await driver.kedge.seen(is_waiting)).payload
    assert isinstance(run, Run)
    assert run.waiting is not None
    driver.kedge.clock.ahead_s += run.waiting.until - driver.kedge.clock()
    assert (await driver.kedge.end("r")).text == "own again"
    assert (len(model_server.calls), len(other.calls)) == (2, 1)


async def test_a_sub_agent_uses_the_model_that_its_parent_fell_back_to(
    driver: Driver, model_server: ModelServer, other: ModelServer
) -> None:
    model_server.plan = LIMIT
    other.on([Plan(tool_calls=(call("helper", text="find it"),)), Plan(text="done")], prompt="go")
    other.on([Plan(text="found")], prompt="find it")
    assert (await driver.ask("go")).text == "done"
    assert (len(model_server.calls), len(other.calls)) == (1, 3)


async def test_a_server_that_names_no_model_because_it_is_gone_is_replaced(
    kedge: Kedge, other: ModelServer, unused_tcp_port: int
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}/v1"
    env = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-own", "KEDGE_MODEL": "openai"}
    async with Driver(kedge, url, tools=FakeTools().tools, env=env) as driver:
        fall_back(driver, other, OTHER)
        assert (await driver.ask("go")).text == "by another"


async def test_an_untrusted_repository_cannot_name_them() -> None:
    from kedge.config.schema_tree import Leaf, find_node

    leaf = find_node(("fallback_models",))
    assert isinstance(leaf, Leaf)
    assert leaf.untrusted == "no"

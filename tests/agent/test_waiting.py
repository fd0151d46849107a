"""A run waits for a provider's limit, and for a network that is gone, instead of failing; but not for ever."""

from __future__ import annotations

import asyncio

import pytest

from kedge.agent import retry
from kedge.config.schema import AgentConfig, Config
from kedge.engine import concurrency
from kedge.models.providers import Provider
from kedge.protocol.events import AgentEvent, Event
from kedge.protocol.runs import Run, RunEnd, Waiting
from tests.agent.driver import Driver
from tests.support.invariants import run_events
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test sets the clock ahead, and the engine notices at once."""
    monkeypatch.setattr(concurrency, "CLOCK_READ_S", 0.01)


def allow_waits(driver: Driver, max_wait_s: float | None) -> None:
    driver.config = Config(agent=AgentConfig(titles=False, max_wait_s=max_wait_s))


async def seen_waiting(driver: Driver, *, after: Waiting | None = None) -> Waiting:
    """The run's wait, as soon as it is told; the one that comes `after` another."""

    def matches(event: Event) -> bool:
        run = event.payload
        return isinstance(run, Run) and run.waiting is not None and (after is None or run.waiting.until > after.until)

    run = (await driver.kedge.seen(matches)).payload
    assert isinstance(run, Run)
    assert run.waiting is not None
    assert run.state == "running"
    return run.waiting


def pass_time(driver: Driver, waiting: Waiting) -> None:
    """Set the clock to the end of a wait."""
    driver.kedge.clock.ahead_s += max(0.0, waiting.until - driver.kedge.clock())


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(status=429, error="rate_limit_exceeded"), "rate_limit"),
        (Plan(status=429, error="usage_limit_reached", message="The usage limit has been reached"), "usage_limit"),
        (Plan(status=503, error="overloaded_error"), "overload"),
    ],
    ids=["rate limit", "usage limit", "overload"],
)
async def test_a_limit_that_lasts_longer_is_waited_for(
    driver: Driver, model_server: ModelServer, plan: Plan, reason: str
) -> None:
    model_server.plan = plan.changed({"retry_after": "3600", "times": 1, "text": "at last"})
    session_id = await driver.kedge.session()
    await driver.kedge.send(session_id, "go", "r")
    waiting = await seen_waiting(driver)
    assert waiting.reason == reason
    assert 0.9 * HOUR_S < waiting.until - driver.kedge.clock() < HOUR_S + 5
    pass_time(driver, waiting)
    assert (await driver.kedge.end("r")).text == "at last"
    assert len(model_server.calls) == 2, "nothing is asked while it waits"
    assert driver.delays == []
    assert await driver.assistant_messages(session_id) == [("at last", "end_turn")]
    (told,) = await driver.agent_events()
    assert (told.type, told.provider_id) == ("retry", "openai")


async def test_a_limit_without_a_known_end_is_waited_for_longer_and_longer(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.plan = Plan(status=429, text="at last", times=8)
    await driver.kedge.send(await driver.kedge.session(), "go", "r")
    waits: list[float] = []
    waiting: Waiting | None = None
    for _ in range(4):
        waiting = await seen_waiting(driver, after=waiting)
        waits.append(waiting.until - driver.kedge.clock())
        pass_time(driver, waiting)
    assert (await driver.kedge.end("r")).text == "at last"
    assert waits == pytest.approx([60, 60, 120, 240], rel=0.1)
    assert driver.delays == [0.5, 1.5, 4.5, 8.0], "five short attempts come first, and only once"
    retries = [event for event in await driver.agent_events() if event.type == "retry"]
    assert len(retries) == 5, "one for each short attempt, and one for all waits"


@pytest.mark.parametrize(
    ("permissions", "max_wait_s"), [("deny", None), ("allow", None), ("ask", 600.0)], ids=["run", "run -y", "set"]
)
async def test_a_limit_that_lasts_longer_than_a_run_waits_fails_at_once(
    driver: Driver, model_server: ModelServer, permissions: str, max_wait_s: float | None
) -> None:
    allow_waits(driver, max_wait_s)
    model_server.plan = Plan(status=429, retry_after="7200")
    end = await driver.ask("go", permissions=permissions)
    assert end.code == "rate_limited"
    assert end.error is not None
    assert "the limit resets" in end.error
    assert "in 2 h" in end.error
    assert f"agent.max_wait_s ({15 if max_wait_s is None else 10} min)" in end.error
    assert len(model_server.calls) == 1


async def test_a_run_without_a_person_waits_a_quarter_of_an_hour(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(status=429, retry_after="800", times=1, text="at last")
    await driver.kedge.send(await driver.kedge.session(), "go", "r", permissions="deny")
    pass_time(driver, await seen_waiting(driver))
    assert (await driver.kedge.end("r")).text == "at last"


async def wait_in_vain(driver: Driver, run_id: str) -> RunEnd:
    """Let time pass until the run has ended."""
    ended = asyncio.ensure_future(driver.kedge.end(run_id))
    while not ended.done():
        if (waiting := (await driver.kedge.run(run_id)).waiting) is not None:
            pass_time(driver, waiting)
        await asyncio.wait({ended}, timeout=0.01)
    return ended.result()


async def test_waits_in_vain_end_the_run_after_the_longest_time(driver: Driver, model_server: ModelServer) -> None:
    allow_waits(driver, 1000)
    model_server.plan = Plan(status=429)
    await driver.kedge.send(await driver.kedge.session(), "go", "r")
    began = driver.kedge.clock()
    end = await wait_in_vain(driver, "r")
    assert end.code == "rate_limited"
    assert end.error is not None
    assert "agent.max_wait_s (16 min 40 s)" in end.error
    assert driver.kedge.clock() - began == pytest.approx(1000, rel=0.1)


async def test_a_restart_does_not_make_the_longest_wait_longer(driver: Driver, model_server: ModelServer) -> None:
    allow_waits(driver, 1000)
    model_server.plan = Plan(status=429, retry_after="700")
    await driver.kedge.send(await driver.kedge.session(), "go", "r")
    await seen_waiting(driver)
    await driver.kedge.crash()
    driver.kedge.clock.ahead_s += 800
    await driver.kedge.start()
    end = await driver.kedge.end("r")  # 700 s more are longer than the 200 s that are left
    assert end.code == "rate_limited"
    assert end.error is not None
    assert "the limit resets" in end.error


async def test_an_answer_begins_a_new_count(driver: Driver, model_server: ModelServer) -> None:
    allow_waits(driver, 1000)
    session_id = await driver.kedge.session()
    for prompt in ("one", "two"):
        model_server.plan = Plan(status=429, retry_after="700", times=1, text=prompt)
        await driver.kedge.send(session_id, prompt, prompt)
        await wait_in_vain(driver, prompt)
        assert (await driver.kedge.end(prompt)).text == prompt


async def test_a_crash_while_waiting_is_no_attempt_and_the_step_is_taken_later(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.plan = Plan(status=429, retry_after="3600", times=1, text="at last")
    await driver.kedge.send(await driver.kedge.session(), "go", "r")
    waiting = await seen_waiting(driver)
    for _ in range(4):
        await driver.kedge.crash_and_start()
    assert len(model_server.calls) == 1
    assert (await driver.kedge.run("r")).waiting == waiting
    pass_time(driver, waiting)
    assert (await driver.kedge.end("r")).text == "at last"
    assert (await driver.kedge.run("r")).attempt == 1


@pytest.mark.parametrize(
    "plan",
    [
        Plan(status=429, error="insufficient_quota", retry_after="120"),
        Plan(status=401, retry_after="120"),
        Plan(status=400, retry_after="120"),
    ],
    ids=["quota", "key", "request"],
)
async def test_what_waiting_does_not_mend_fails_at_once(driver: Driver, model_server: ModelServer, plan: Plan) -> None:
    model_server.plan = plan
    end = await driver.ask("go", permissions="deny")
    assert end.error is not None
    assert len(model_server.calls) == 1
    assert not any(run.waiting for _, run in run_events(await driver.kedge.log()))


async def test_a_server_that_answered_and_is_gone_is_waited_for(driver: Driver, model_server: ModelServer) -> None:
    session_id = await driver.kedge.session()
    model_server.plan = Plan(text="here")
    assert (await driver.ask("are you there?", session_id)).text == "here"
    await model_server.__aexit__()
    await driver.kedge.send(session_id, "and now?", "r")
    waiting = await seen_waiting(driver)
    assert waiting.reason == "network"
    assert waiting.until - driver.kedge.clock() < 10
    pass_time(driver, waiting)
    again = await seen_waiting(driver, after=waiting)
    async with ModelServer(Plan(text="back again"), port=model_server.port):
        pass_time(driver, again)
        assert (await driver.kedge.end("r")).text == "back again"
    events = await driver.agent_events()
    assert [event.code for event in events] == ["unreachable"] * 5, "the waits are told once"
    assert (await driver.kedge.run("r")).attempt == 1


async def test_a_server_that_never_answered_is_not_waited_for(driver: Driver, model_server: ModelServer) -> None:
    await model_server.__aexit__()
    end = await driver.ask("are you there?")
    assert end.code == "unreachable"
    assert end.error is not None
    assert "after 5 attempts" in end.error
    assert "kedge doctor" in end.error


async def test_a_providers_own_address_is_waited_for_from_the_first_prompt_on(
    driver: Driver, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await model_server.__aexit__()
    monkeypatch.setattr(retry, "BUILT_IN", [Provider(id="openai", base_url=model_server.base_url)])
    await driver.kedge.send(await driver.kedge.session(), "are you there?", "r")
    waiting = await seen_waiting(driver)
    assert waiting.reason == "network"
    async with ModelServer(Plan(text="here"), port=model_server.port):
        pass_time(driver, waiting)
        assert (await driver.kedge.end("r")).text == "here"


async def test_a_summary_waits_as_a_step_does(driver: Driver, model_server: ModelServer) -> None:
    session_id = await driver.kedge.session()
    await driver.ask("hello", session_id)
    model_server.plan = Plan(status=429, retry_after="3600", times=1, text="in short")
    await driver.kedge.send(session_id, "", "r", kind="summarize")
    pass_time(driver, await seen_waiting(driver))
    assert (await driver.kedge.end("r")).error is None
    assert [m.summary for m in await driver.kedge.history(session_id)] == [True]


async def test_waits_tell_no_key(driver: Driver, model_server: ModelServer) -> None:
    key = "sk-planted-0123456789abcdef"
    model_server.plan = Plan(status=429, retry_after="3600", message=f"limit of {key} reached")
    await driver.kedge.send(await driver.kedge.session(), "go", "r")
    await seen_waiting(driver)
    events = [event.payload for event in await driver.kedge.log() if isinstance(event.payload, (Run, AgentEvent))]
    assert key not in repr(events)
    await driver.kedge.cancel_run("r")
    assert (await driver.kedge.end("r")).cancelled

"""Faults of a provider are folded into one outcome (P8), and what was shown is never taken back (P12)."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from kedge import failpoints
from kedge.config.schema import AgentConfig, Config, ProviderConfig
from kedge.engine.turn import TurnContext
from tests.agent.driver import KEY, Driver
from tests.support.harness import Kedge
from tests.support.model_control import ModelControl
from tests.support.model_plan import AT_ONCE, Plan
from tests.support.model_server import ModelServer

LIMIT_S = 30.0


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 529])
async def test_what_passes_is_waited_out_and_ends_once(driver: Driver, model_server: ModelServer, status: int) -> None:
    model_server.plan = Plan(text="at last", status=status, times=3)
    session = await driver.kedge.session()
    end = await driver.ask("go", session)
    assert (end.text, end.error) == ("at last", None)
    assert len(model_server.calls) == 4
    assert driver.delays == [0.5, 1.5, 4.5]
    events = await driver.agent_events()
    assert [(event.type, event.run_id, event.session_id) for event in events] == [("retry", end.run_id, session)] * 3
    assert [event.details and event.details["attempt"] for event in events] == [2, 3, 4]
    assert await driver.assistant_messages(session) == [("at last", "end_turn")]


async def test_what_does_not_pass_fails_after_bounded_attempts(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(status=500, message="out of order")
    session = await driver.kedge.session()
    end = await driver.ask("go", session)
    assert end.code == "provider_error"
    assert end.error is not None
    assert "out of order" in end.error
    assert "5 attempts" in end.error
    assert len(model_server.calls) == 5
    assert [event.type for event in await driver.agent_events()] == ["retry"] * 4 + ["error"]
    assert await driver.assistant_messages(session) == [("", "error")]
    model_server.plan = Plan(text="fine")
    assert (await driver.ask("again", session)).text == "fine"


async def test_a_wish_to_wait_is_obeyed_within_reason(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(status=429, retry_after="30", times=1)
    assert (await driver.ask("go")).error is None
    assert driver.delays == [30.0]
    driver.config = Config(agent=AgentConfig(titles=False, max_wait_s=0))
    model_server.plan = Plan(status=429, retry_after="3600")
    end = await driver.ask("go on")
    assert end.code == "rate_limited"
    assert end.error is not None
    assert "3600 s" in end.error
    assert driver.delays == [30.0]


@pytest.mark.parametrize(
    "fault",
    [Plan(drop_after=2), Plan(malformed="error", error="server_error"), Plan(malformed="no_finish")],
    ids=["dropped", "error in the stream", "ended early"],
)
async def test_an_attempt_that_spoke_and_failed_is_interrupted_and_not_the_answer(
    driver: Driver, model_server: ModelServer, fault: Plan
) -> None:
    model_server.next_plans = [fault.changed({"chunks": 2, "text": "half"}), Plan(text="whole"), Plan(text="more")]
    session = await driver.kedge.session()
    end = await driver.ask("go", session)
    assert (end.text, end.error) == ("whole", None)
    assert await driver.assistant_messages(session) == [("w0 half", "interrupted"), ("whole", "end_turn")]
    await driver.ask("on", session)
    for call in model_server.calls:
        assert "half" not in str(call.body)


async def test_attempts_that_spoke_and_all_failed_leave_a_whole_record(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.plan = Plan(text="half", drop_after=1)
    session = await driver.kedge.session()
    end = await driver.ask("go", session)
    assert (end.text, end.code) == ("", "dropped")
    assert await driver.assistant_messages(session) == [("half", "interrupted")] * 5 + [("", "error")]


@pytest.mark.parametrize("place", [AT_ONCE, 0, 1])
async def test_a_stalled_stream_is_tried_again(kedge: Kedge, model_server: ModelServer, place: int) -> None:
    model_server.next_plans = [Plan(text="half", hang_after=place), Plan(text="whole")]
    async with Driver(kedge, model_server.base_url) as driver:
        driver.config = msgspec.structs.replace(driver.config, providers={"openai": ProviderConfig(max_silence_s=0.2)})
        assert (await driver.ask("go")).text == "whole"
        assert [event.code for event in await driver.agent_events()] == ["stalled"]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_fails_at_once_without_showing_it(
    driver: Driver, model_server: ModelServer, status: int
) -> None:
    model_server.plan = Plan(status=status, message=f"Incorrect API key provided: {KEY}")
    end = await driver.ask("go", permissions="deny")
    assert end.code == "auth"
    assert end.error is not None
    assert "OPENAI_API_KEY" in end.error
    assert KEY not in end.error
    assert len(model_server.calls) == 1
    assert [event.type for event in await driver.agent_events()] == ["error"]


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, "context_length_exceeded", "context_too_long"),
        (429, "insufficient_quota", "quota"),
        (400, "content_filter", "content_filter"),
        (404, "model_not_found", "model_not_found"),
        (400, "whatever", "bad_request"),
    ],
)
async def test_what_another_attempt_cannot_help_fails_at_once(
    driver: Driver, model_server: ModelServer, status: int, error: str, code: str
) -> None:
    model_server.plan = Plan(status=status, error=error)
    assert (await driver.ask("go")).code == code
    assert len(model_server.calls) == 1


@pytest.mark.parametrize("malformed", ["json", "types", "utf8", "html"])
async def test_a_malformed_stream_is_a_clear_failure(driver: Driver, model_server: ModelServer, malformed: str) -> None:
    model_server.plan = Plan(text="so far", malformed=malformed)
    session = await driver.kedge.session()
    end = await driver.ask("go", session)
    assert (end.code, end.text) == ("bad_response", "")
    assert len(model_server.calls) == 1
    model_server.plan = Plan(text="fine")
    assert (await driver.ask("again", session)).text == "fine"
    assert "so far" not in str(model_server.calls[-1].body)


@pytest.mark.parametrize(
    ("model", "env", "code"),
    [
        (None, {}, "no_model"),
        ("openai/a", {}, "bad_config"),
        ("nobody/a", {"OPENAI_API_KEY": "sk-1"}, "bad_config"),
    ],
)
async def test_without_a_model_the_run_fails_before_any_call(
    driver: Driver, model_server: ModelServer, model: str | None, env: dict[str, str], code: str
) -> None:
    session = await driver.kedge.session()
    end = await driver.ask("go", session, model=model, env=env)
    assert end.code == code
    assert end.error is not None
    assert "\n" not in end.error
    assert len(model_server.calls) == 0
    assert await driver.assistant_messages(session) == [("", "error")]


async def test_a_listing_that_fails_is_tried_again(driver: Driver, model_server: ModelServer) -> None:
    async with ModelServer() as gone:
        pass
    end = await driver.ask("go", env={"OPENAI_BASE_URL": gone.base_url})
    assert end.code == "unreachable"
    assert len(driver.delays) == 4


@pytest.mark.parametrize("place", [AT_ONCE, 0, 1], ids=["before the first byte", "before the first word", "after it"])
async def test_cancel_ends_a_hung_call_and_closes_its_connection(
    driver: Driver, model_server: ModelServer, place: int
) -> None:
    model_server.plan = Plan(text="half", hang_after=place)
    session = await driver.kedge.session()
    receipt = await driver.kedge.send(session, "go")
    if place > 0:
        await driver.shown("half")
    await model_server.until(lambda calls: len(calls) == 1)
    began = time.monotonic()
    await driver.kedge.cancel(session)
    end = await driver.kedge.end(receipt.run_id)
    assert time.monotonic() - began < 5  # P6
    assert end.cancelled
    assert end.text == ("half" if place > 0 else "")
    await model_server.until(lambda calls: calls[0].is_gone)
    assert await driver.agent_events() == []
    model_server.plan = Plan(text="fine")
    assert (await driver.ask("again", session)).text == "fine"


async def test_cancel_ends_a_wait_for_the_next_attempt(kedge: Kedge, model_server: ModelServer) -> None:
    waiting = asyncio.Event()

    async def wait(delay_s: float) -> None:
        waiting.set()
        await asyncio.sleep(delay_s)

    model_server.plan = Plan(status=429, retry_after="50")
    async with Driver(kedge, model_server.base_url, sleep=wait), asyncio.timeout(LIMIT_S):
        session = await kedge.session()
        receipt = await kedge.send(session, "go")
        await waiting.wait()
        await kedge.cancel(session)
        assert (await kedge.end(receipt.run_id)).cancelled


async def test_after_a_crash_the_step_is_taken_again_without_what_was_cut_off(
    kedge: Kedge, model_control: ModelControl
) -> None:
    model_control.plan_next({"text": "half", "hang_after": 1}, {"text": "whole"})
    session = await kedge.session()
    kept = asyncio.Event()
    failpoints.arm("draft.published", kept.set)
    async with Driver(kedge, model_control.base_url), asyncio.timeout(LIMIT_S):
        receipt = await kedge.send(session, "go")
        await kept.wait()
        failpoints.disarm()
        await kedge.crash()
    async with Driver(kedge, model_control.base_url) as driver:  # a new server has a new agent
        await kedge.start()
        end = await kedge.end(receipt.run_id)
        assert (end.text, end.error) == ("whole", None)
        assert (await kedge.run(receipt.run_id)).attempt == 2
        assert await driver.assistant_messages(session) == [("half", "interrupted"), ("whole", "end_turn")]
    assert "half" not in str(model_control.stats()["calls"][-1]["body"])


async def test_a_step_that_was_committed_before_a_crash_is_not_taken_again(
    kedge: Kedge, model_control: ModelControl
) -> None:
    done = asyncio.Event()
    async with Driver(kedge, model_control.base_url) as driver:
        real = driver.agent.turns["prompt"]

        async def hang_before_the_end(ctx: TurnContext) -> None:
            await real(ctx)
            done.set()
            await asyncio.Event().wait()

        kedge.turns["prompt"] = hang_before_the_end
        receipt = await kedge.send(await kedge.session(), "go")
        async with asyncio.timeout(LIMIT_S):
            await done.wait()
        await kedge.crash()
    async with Driver(kedge, model_control.base_url):
        await kedge.start()
        end = await kedge.end(receipt.run_id)
    assert (end.text, end.error) == ("FAKE-ANSWER-OK", None)
    assert model_control.stats()["count"] == 1


async def test_a_key_is_found_nowhere_after_a_run(
    driver: Driver, model_server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    caller = "sk-of-the-caller-987654"
    model_server.next_plans = [
        Plan(status=500, message=f"key {KEY} is fine, we are not"),
        Plan(drop_after=0, text="x"),
        Plan(text="fine"),
        Plan(status=403, message=f"key {caller} may not do that"),
        Plan(malformed="error", error="server_error", message=f"lost {KEY}"),
    ]
    session = await driver.kedge.session()
    assert (await driver.ask("go", session)).text == "fine"
    env = {"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": caller}
    assert (await driver.ask("go", session, env=env, permissions="deny")).code == "auth"
    assert (await driver.ask("go", session)).error is None
    await driver.kedge.shutdown()
    assert {call.headers["authorization"] for call in model_server.calls} == {f"Bearer {KEY}", f"Bearer {caller}"}
    stored = b"".join(path.read_bytes() for path in driver.kedge.data.rglob("*") if path.is_file())
    assert b"FAKE-ANSWER-OK" in stored  # the files are those of these runs
    seen = b"".join(frame.raw for frame in driver.kedge.watcher.frames)
    for key in (KEY, caller):
        assert key.encode() not in stored
        assert key.encode() not in seen
        assert key not in caplog.text

"""What is promised of models, kept by the real agent on every wire: whatever a model says, and whatever goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from kedge.config.schema import AgentConfig, Config, ModelConfig, ProviderConfig, WireName
from kedge.protocol.messages import Message, Reasoning, ToolCall, ToolResult, finish_of
from kedge.protocol.runs import Attachment
from tests.agent.driver import KEY, Driver, reason_of
from tests.agent.fake_tools import FakeTools
from tests.models.wires.vendors import CHECKS
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer
from tests.support.wires import WAYS, WIRES, access, conversation, environ

LIMIT_S = 30.0
PNG = "cG5n"  # the picture of `fake_tools`, in base64
SHOT = "iVBORw0KGgpzaG90"  # the one that is attached
SIGNATURE = "c2lnbmVk"
CALLS = (PlannedCall("picture", {"text": "a"}), PlannedCall("peek", {"text": "b"}), PlannedCall("poke", {"text": "c"}))
STEP = Plan(text="I look.", reasoning="hm", signature=SIGNATURE, tool_calls=CALLS, input_piece=3, interleave=True)
MARK = b',"cache_control":{"type":"ephemeral"}'  # moves with the end of the conversation


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> WireName:
    return request.param


@pytest.fixture
async def driver(wire: WireName, kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    env = environ(wire, model_server, KEY)
    async with Driver(kedge, model_server.base_url, tools=FakeTools().tools, env=env) as driver:
        driver.config = config(wire)
        yield driver


def config(*wires: WireName) -> Config:
    """All of their models take an effort."""
    thinks = ProviderConfig(models={"tester": ModelConfig(reasoning_effort="low", max_output_tokens=20_000)})
    return Config(agent=AgentConfig(titles=False), providers={WAYS[wire].provider: thinks for wire in wires})


def check(wire: WireName, body: dict[str, Any]) -> list[Any]:
    """The conversation of a request that the vendor would take."""
    said = [each for each in conversation(body) if each.get("role") != "system"]
    CHECKS[wire](said)
    return said


async def parts(driver: Driver, session_id: str, kind: type[Any]) -> list[Any]:
    messages: list[Message] = await driver.kedge.messages(session_id)
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


async def test_words_thoughts_calls_and_pictures_come_and_go_back(
    driver: Driver, model_server: ModelServer, wire: WireName
) -> None:
    model_server.on([STEP, Plan(text="Done.")])
    session_id = await driver.kedge.session()
    picture = Attachment("shot.png", "image/png", b"\x89PNG\r\n\x1a\nshot")
    end = await driver.ask("look", session_id, attachments=[picture])
    assert (end.text, end.error) == ("Done.", None)
    calls = await parts(driver, session_id, ToolCall)
    assert [(call.name, json.loads(call.input)) for call in calls] == [(call.name, call.input) for call in CALLS]
    results = await parts(driver, session_id, ToolResult)
    assert [result.content for result in results] == ["a", "b", "c"]
    assert [part.text for part in await parts(driver, session_id, Reasoning) if part.text] == ["hm"]
    first, second = (json.dumps(check(wire, call.body)) for call in model_server.calls)
    assert SHOT in first
    assert SHOT in second
    assert PNG in second.replace(SHOT, "")
    assert "I look." in second
    assert "hm" in second if wire == "chat" else SIGNATURE in second


async def test_ten_requests_begin_with_the_same_bytes(driver: Driver, model_server: ModelServer) -> None:
    model_server.raw_bodies = []
    calls = [(PlannedCall("peek", {"text": f"{i}"}), PlannedCall("picture", {"text": f"{i}"})) for i in range(6)]
    steps = [Plan(text="", reasoning="hm", signature=SIGNATURE, tool_calls=each) for each in calls]
    model_server.on([*steps, Plan(text="Done.")], prompt="go")
    session_id = await driver.kedge.session()
    await driver.ask("go", session_id)
    for prompt in ("and", "so", "on"):
        await driver.ask(prompt, session_id)
    assert len(model_server.raw_bodies) == 10
    for before, after in itertools.pairwise(body.replace(MARK, b"") for body in model_server.raw_bodies):
        assert after.startswith(before[: _end_of_conversation(before)])


def _end_of_conversation(body: bytes) -> int:
    """The place behind the last that was said."""
    told = json.loads(body)
    (field,) = [way.conversation for way in WAYS.values() if way.conversation in told][:1]
    text = body.decode()
    start = text.index(f'"{field}":[') + len(field) + 3
    _, end = json.JSONDecoder().raw_decode(text, start)
    return len(text[: end - 1].encode())


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(text="I cannot.", refusal=True), "end_turn"),
        (Plan(text="half", finish="length"), "max_tokens"),
        (Plan(text="half", finish="content_filter"), "content_filter"),
    ],
    ids=["refusal", "length", "filter"],
)
async def test_an_answer_ends_for_the_reason_that_the_model_gives(
    driver: Driver, model_server: ModelServer, plan: Plan, reason: str
) -> None:
    model_server.plan = plan
    session_id = await driver.kedge.session()
    await driver.ask("go", session_id)
    assert await driver.assistant_messages(session_id) == [(plan.text, reason)]


async def test_what_was_used_is_counted_once(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(input_tokens=100, cache_read_tokens=50, output_tokens=7)
    usage = (await driver.ask("go")).usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (100, 50, 7)
    assert not usage.estimated


@pytest.mark.parametrize("status", [429, 500, 529])
async def test_what_passes_is_waited_out(driver: Driver, model_server: ModelServer, status: int) -> None:
    model_server.plan = Plan(text="at last", status=status, times=1)
    end = await driver.ask("go")
    assert (end.text, end.error, driver.delays) == ("at last", None, [0.5])


async def test_a_key_that_is_refused_ends_the_run(driver: Driver, model_server: ModelServer, wire: WireName) -> None:
    model_server.plan = Plan(status=401, message=f"no such key: {KEY}")
    end = await driver.ask("go", permissions="deny")  # with nobody there who could log in
    assert end.code == "auth"
    assert end.error is not None
    assert WAYS[wire].key_variable in end.error
    assert KEY not in end.error


async def test_an_error_in_the_stream_leaves_what_was_said_and_the_next_attempt_answers(
    driver: Driver, model_server: ModelServer, wire: WireName
) -> None:
    fault = Plan(text="half", chunks=2, malformed="error", error="server_error")
    model_server.next_plans = [fault, Plan(text="whole"), Plan(text="more")]
    session_id = await driver.kedge.session()
    assert (await driver.ask("go", session_id)).text == "whole"
    assert await driver.assistant_messages(session_id) == [("w0 half", "interrupted"), ("whole", "end_turn")]
    await driver.ask("on", session_id)
    assert "half" not in str(check(wire, model_server.calls[-1].body))


async def test_a_stream_that_falls_silent_is_left(wire: WireName, kedge: Kedge, model_server: ModelServer) -> None:
    model_server.next_plans = [Plan(chunks=3, hang_after=1)]
    model_server.plan = Plan(text="at last")
    env = environ(wire, model_server, KEY)
    async with Driver(kedge, model_server.base_url, env=env) as driver:
        settings = {WAYS[wire].provider: ProviderConfig(max_silence_s=0.5)}
        driver.config = Config(agent=AgentConfig(titles=False), providers=settings)
        session_id = await driver.kedge.session()
        assert (await driver.ask("go", session_id)).text == "at last"
        said = await driver.assistant_messages(session_id)
        assert (said[0], said[-1]) == (("w0 ", "interrupted"), ("at last", "end_turn"))
        async with asyncio.timeout(LIMIT_S):
            await model_server.until(lambda calls: calls[0].is_gone)


async def test_a_cancel_leaves_the_model_and_a_whole_record(
    driver: Driver, model_server: ModelServer, wire: WireName
) -> None:
    model_server.next_plans = [Plan(text="never said", reasoning="hm", chunks=3, hang_after=2)]
    session_id = await driver.kedge.session()
    receipt = await driver.kedge.send(session_id, "go")
    await driver.shown("w0 ")
    assert await driver.kedge.cancel(session_id) == [receipt.run_id]
    assert (await driver.kedge.end(receipt.run_id)).cancelled
    async with asyncio.timeout(LIMIT_S):
        await model_server.until(lambda calls: calls[0].is_gone)
    messages = await driver.kedge.messages(session_id)
    assert reason_of(messages[-1]) == "canceled"
    assert (await driver.ask("and now?", session_id)).text == "FAKE-ANSWER-OK"
    assert "w0" in str(check(wire, model_server.calls[-1].body))


async def test_a_session_goes_from_model_to_model_and_each_gets_its_own_thoughts_back(
    kedge: Kedge, model_server: ModelServer
) -> None:
    env = {name: value for wire in WIRES for name, value in access(wire, model_server, KEY).items()}
    async with Driver(kedge, model_server.base_url, tools=FakeTools().tools, env=env) as driver:
        driver.config = config(*WIRES)
        session_id = await driver.kedge.session()
        turns: list[WireName] = [*WIRES, *WIRES]
        for turn, wire in enumerate(turns):
            signed = f"{SIGNATURE}{turn:04}"
            plans = [
                Plan(text="I look.", reasoning=f"thought-{turn}", signature=signed, tool_calls=CALLS),
                Plan(text=f"Done {turn}."),
            ]
            model_server.next_plans = plans
            end = await driver.ask(f"go {turn}", session_id, model=f"{WAYS[wire].provider}/tester")
            assert (end.text, end.error) == (f"Done {turn}.", None)
            said = str([check(wire, call.body) for call in list(model_server.calls)[-2:]][-1])
            own = [each for each, other in enumerate(turns) if other == wire and each <= turn]
            told = [each for each in range(turn + 1) if f"{SIGNATURE}{each:04}" in said or f"thought-{each}" in said]
            assert told == own
            assert all(f"go {each}" in said and f"Done {each}." in said for each in range(turn))
        finishes = [finish_of(message.parts) for message in await driver.kedge.messages(session_id)]
        assert {finish.reason for finish in finishes if finish} == {"tool_use", "end_turn"}

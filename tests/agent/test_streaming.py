"""A prompt's answer: shown as it comes, exact, and ended once."""

from __future__ import annotations

import pytest

from kedge.protocol.messages import Finish, FinishReason, MessageOf, Reasoning, Text
from kedge.protocol.runs import Usage
from tests.agent.driver import KEY, Driver
from tests.support.harness import Kedge
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer

# Where the wire has no signature, it notes under which name the thoughts came: they go back under the same.
THOUGHT = Reasoning("let me think", "reasoning_content")
EXACT = "line\u2028sep \u2029 nul\x00 tab\t cr\r\n emoji 😀👩‍👩‍👧 flag 🇩🇪 e\u0301 \x85\x1c end without newline"


async def test_text_is_shown_while_the_model_still_speaks(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(text="end", chunks=4, gate="middle", gate_after=2)
    session = await driver.kedge.session()
    receipt = await driver.kedge.send(session, "go")
    await driver.shown("w1 ")
    assert model_server.calls[0].held == "middle"  # the model has said no more than this
    model_server.release("middle")
    end = await driver.kedge.end(receipt.run_id)
    assert end.text == "w0 w1 w2 end"
    assert await driver.assistant_messages(session) == [("w0 w1 w2 end", "end_turn")]


async def test_reasoning_and_text_are_parts_of_their_own(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(reasoning="let me think", text="42")
    session = await driver.kedge.session()
    end = await driver.ask("go", session)
    assert end.text == "42"
    message = (await driver.kedge.messages(session))[-1]
    used = Usage(input_tokens=10, output_tokens=1)
    assert message.parts == [THOUGHT, Text("42"), Finish("end_turn", usage=used)]
    assert message.model == "openai/tester"


async def test_a_part_is_kept_as_soon_as_the_next_one_begins(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(reasoning="let me think", text="42", gate="spoken", gate_after=2)
    session = await driver.kedge.session()
    receipt = await driver.kedge.send(session, "go")
    await driver.kedge.seen(lambda event: isinstance(event.payload, MessageOf) and event.payload.parts == [THOUGHT])
    model_server.release("spoken")
    assert (await driver.kedge.end(receipt.run_id)).text == "42"


@pytest.mark.parametrize("said", ["stop", "length", "content_filter", "tool_calls", "whatever"])
async def test_why_the_model_stopped_is_kept(driver: Driver, model_server: ModelServer, said: str) -> None:
    reasons: dict[str, FinishReason] = {
        "stop": "end_turn",
        "length": "max_tokens",
        "content_filter": "content_filter",
        "tool_calls": "end_turn",  # it called none
        "whatever": "unknown",
    }
    model_server.plan = Plan(text="so far", finish=said)
    session = await driver.kedge.session()
    is_whole = said not in ("length", "content_filter")
    assert ((await driver.ask("go", session)).error is None) == is_whole
    assert await driver.assistant_messages(session) == [("so far", reasons[said])]


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(units=True),
        Plan(piece=1, raw=True),
        Plan(raw=True, split=1),
        Plan(units=True, split=3, crlf=True, comments=True),
    ],
    ids=["whole", "utf-16 units", "characters", "bytes", "units in pieces"],
)
async def test_text_is_exact_however_it_is_cut(driver: Driver, model_server: ModelServer, plan: Plan) -> None:
    model_server.plan = plan.changed({"text": EXACT})
    session = await driver.kedge.session()
    end = await driver.ask("go", session)
    assert end.text == EXACT
    assert end.message_id is not None
    assert driver.kedge.watcher.texts[end.message_id][0] == EXACT


async def test_half_a_surrogate_pair_becomes_a_replacement_character(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(text="a\ud83d b\ude00 c\ud83d")
    assert (await driver.ask("go")).text == "a\ufffd b\ufffd c\ufffd"


@pytest.mark.slow
async def test_a_large_answer_arrives_whole(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(text="0123456789 äöü\n", size=10_000_000, piece=100_000)
    end = await driver.ask("go")
    assert end.text == ("0123456789 äöü\n" * 1_000_000)[:10_000_000]


async def test_usage_is_told_at_the_end(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(chunks=5)
    assert (await driver.ask("go")).usage == Usage(input_tokens=10, output_tokens=5)
    model_server.plan = Plan(text="x" * 400, usage=False)
    usage = (await driver.ask("go")).usage
    assert usage.estimated
    assert usage.output_tokens == 100
    assert usage.input_tokens > 0


async def test_the_model_is_told_the_conversation_and_its_place(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    session = await kedge.session()
    model_server.plan = Plan(text="one")
    await driver.ask("first", session)
    model_server.plan = Plan(text="two")
    await driver.ask("second", session)
    system, *conversation = model_server.calls[-1].body["messages"]
    assert conversation == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "second"},
    ]
    assert system["role"] == "system"
    assert str(kedge.data.parent / "workspace") in system["content"]
    assert "2031-02-03" in system["content"]
    assert "cannot call tools" in system["content"]


async def test_the_callers_environment_comes_before_the_servers(driver: Driver, model_server: ModelServer) -> None:
    env = {"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": "sk-of-the-caller"}
    end = await driver.ask("go", env=env)
    assert end.error is None
    await driver.ask("go", model="openai/named")
    theirs, ours = model_server.calls
    assert theirs.headers["authorization"] == "Bearer sk-of-the-caller"
    assert theirs.body["model"] == "fake-model"  # none was named: the first that the server offers
    assert ours.headers["authorization"] == f"Bearer {KEY}"
    assert ours.body["model"] == "named"


async def test_prompts_steered_in_get_a_step_of_their_own(driver: Driver, model_server: ModelServer) -> None:
    model_server.plan = Plan(echo=True, gate="held", gate_after=0)
    session = await driver.kedge.session()
    host = await driver.kedge.send(session, "first")
    await model_server.until(lambda calls: any(call.held for call in calls))
    guest = await driver.kedge.send(session, "second", on_busy="steer")
    model_server.release("held")
    ends = await driver.kedge.ends(host.run_id, guest.run_id)
    assert [end.text for end in ends] == ["second", "second"]
    assert [message["content"] for message in model_server.calls[-1].body["messages"][1:]] == [
        "first",
        "first",
        "second",
    ]
    assert await driver.assistant_messages(session) == [("first", "end_turn"), ("second", "end_turn")]
    assert len(model_server.calls) == 2


async def test_an_empty_session_is_summarized_at_once(driver: Driver, model_server: ModelServer) -> None:
    session = await driver.kedge.session()
    end = await driver.ask("", session, kind="summarize")
    assert (end.error, end.text) == (None, "")
    assert len(model_server.calls) == 0

"""P2: every accepted run ends exactly once, and the end is the last that the log says of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kedge.engine.turn import TurnContext
from kedge.protocol.messages import Finish, Text
from kedge.protocol.runs import Run, RunEnd
from tests.support.harness import Kedge
from tests.support.invariants import check_all_ended, check_log, state_of


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("say hello", "completed"),
        ("tool bash done; say hello", "completed"),
        ("fail no model to be had", "failed"),
        ("say half; fail later", "failed"),
        ("raise deep inside", "failed"),
        ("tool bash done; raise deep inside", "failed"),
        ("exit", "failed"),
        ("frobnicate", "failed"),
    ],
)
async def test_each_way_through_a_turn_ends_once(kedge: Kedge, script: str, state: str) -> None:
    session_id = await kedge.session()
    receipt = await kedge.send(session_id, script)
    end = await kedge.end(receipt.run_id)

    log = await kedge.log()
    check_log(log)
    assert state_of(end) == state
    assert [type(event.payload) for event in log[-2:]] == [Run, RunEnd]
    assert log[-1].payload == end
    assert (await kedge.run(receipt.run_id)).state == state


async def test_turn_that_returns_without_a_word_is_completed(kedge: Kedge) -> None:
    async def silent(ctx: TurnContext) -> None:
        assert ctx.run.state == "running"

    kedge.turns["prompt"] = silent
    receipt = await kedge.send(await kedge.session(), "nothing to do")
    end = await kedge.end(receipt.run_id)
    assert (end.message_id, end.text, state_of(end)) == (None, "", "completed")


async def test_turn_that_leaves_a_message_open_has_it_finished(kedge: Kedge) -> None:
    async def careless(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        message.open(Text("")).write("forgot to finish")

    kedge.turns["prompt"] = careless
    session_id = await kedge.session()
    receipt = await kedge.send(session_id, "go")
    assert (await kedge.end(receipt.run_id)).text == "forgot to finish"
    assert (await kedge.messages(session_id))[-1].parts == [Text("forgot to finish"), Finish("unknown")]


async def test_turn_that_cancels_itself_fails_instead_of_hanging(kedge: Kedge) -> None:
    async def confused(_: TurnContext) -> None:
        raise asyncio.CancelledError

    kedge.turns["prompt"] = confused
    receipt = await kedge.send(await kedge.session(), "go")
    assert (await kedge.end(receipt.run_id)).code == "internal"


async def test_turn_that_raises_what_is_no_exception_fails_and_the_next_runs(kedge: Kedge) -> None:
    class Unusual(BaseException):
        pass

    async def odd(_: TurnContext) -> None:
        raise BaseExceptionGroup("several", [Unusual("not an Exception")])

    kedge.turns["shell"] = odd
    session_id = await kedge.session()
    first = await kedge.send(session_id, "go", kind="shell")
    second = await kedge.send(session_id, "say still here")
    assert (await kedge.end(first.run_id)).code == "internal"
    assert (await kedge.end(second.run_id)).text == "still here"


async def test_error_text_with_half_a_surrogate_and_of_any_length_still_ends_the_run(
    kedge: Kedge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # a report of the test could not carry the text

    async def failing(_: TurnContext) -> None:
        raise ValueError("\ud83d" + "x" * 1_000_000)

    kedge.turns["prompt"] = failing
    receipt = await kedge.send(await kedge.session(), "go")
    error = (await kedge.end(receipt.run_id)).error
    assert error is not None
    assert "ValueError" in error
    assert len(error) <= 4_000
    error.encode()


async def test_everything_that_can_befall_runs_of_one_session_ends_each_of_them_once(kedge: Kedge) -> None:
    session_id = await kedge.session()
    host = await kedge.send(session_id, "say one; wait go; say two; wait join; say three", "host")
    await kedge.reached("go")
    await kedge.send(session_id, "say joined", "joined", on_busy="steer")
    await kedge.send(session_id, "say queued", "queued")
    await kedge.send(session_id, "say dropped", "dropped")
    await kedge.send(session_id, "say cancelled", "cancelled")
    await kedge.send(session_id, "fail early", "failed")
    kedge.gates.open("go")
    await kedge.reached("join")
    await kedge.engine.store.drop_queued(kedge.workspace_id, session_id, "dropped")
    await kedge.cancel_run("cancelled")
    await kedge.crash_and_start()
    await kedge.reached("join")
    await kedge.restart()
    await kedge.reached("join")
    kedge.gates.open("join")

    ends = await kedge.ends(host.run_id, "joined", "queued", "dropped", "cancelled", "failed")
    assert [state_of(end) for end in ends] == ["completed"] * 3 + ["cancelled"] * 2 + ["failed"]
    check_all_ended(await kedge.log())


async def test_wait_gives_the_run_as_it_is_when_the_time_is_up(kedge: Kedge) -> None:
    receipt = await kedge.send(await kedge.session(), "wait go; say done")
    await kedge.reached("go")
    assert (await kedge.engine.wait(kedge.workspace_id, receipt.run_id, timeout_s=0)).state == "running"
    kedge.gates.open("go")
    assert (await kedge.engine.wait(kedge.workspace_id, receipt.run_id, timeout_s=30)).state == "completed"
    assert (await kedge.engine.wait(kedge.workspace_id, receipt.run_id, timeout_s=0)).state == "completed"

"""P8: an error names its run, comes once, and disturbs nobody else."""

from __future__ import annotations

import asyncio

import pytest

from kedge.engine.turn import TurnContext
from kedge.protocol.bounds import MAX_ERROR_CHARS
from kedge.protocol.events import AgentEvent, Event
from kedge.protocol.messages import Finish, Text, finish_of
from kedge.protocol.runs import Run, RunEnd
from tests.support.harness import Kedge, place_of
from tests.support.invariants import check_errors_name_their_run
from tests.support.reader import Reader


def errors(log: list[Event]) -> list[AgentEvent]:
    return [e.payload for e in log if isinstance(e.payload, AgentEvent) and e.payload.type == "error"]


@pytest.mark.parametrize("script", ["fail boom", "say half; fail boom", "tool bash done; fail boom"])
async def test_failing_run_tells_its_error_once_then_its_end_with_the_same_text(kedge: Kedge, script: str) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, script, "r")
    end = await kedge.end("r")
    assert (end.error, end.code, end.cancelled) == ("boom", "scripted", False)
    log = await kedge.log()
    check_errors_name_their_run(log)
    (error,) = errors(log)
    assert (error.run_id, error.session_id, error.error) == ("r", session_id, "boom")
    places = [place_of(log, AgentEvent), place_of(log, Run, run_id="r", state="failed"), place_of(log, RunEnd)]
    assert places == sorted(places)
    assert (await kedge.messages(session_id))[-1].parts == [Finish("error", "boom")]


async def test_message_that_was_being_written_is_kept_and_finished_with_the_error(kedge: Kedge) -> None:
    async def breaking(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        message.open(Text("")).write("half a sen")
        raise RuntimeError("boom")

    kedge.turns["prompt"] = breaking
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    end = await kedge.end("r")
    assert end.text == "half a sen"
    assert end.error == "internal error: RuntimeError: boom"
    assert (await kedge.messages(session_id))[-1].parts == [Text("half a sen"), Finish("error", end.error)]


async def test_client_that_watches_another_session_is_not_disturbed(kedge: Kedge) -> None:
    ours, theirs = await kedge.session(), await kedge.session()
    reader = Reader()
    reading = asyncio.create_task(kedge.read(reader, session_id=ours))
    await reader.event(lambda event: event.type == "caught_up")
    await kedge.send(ours, "wait go; say fine", "ours")
    await kedge.reached("go")
    await kedge.send(theirs, "fail boom", "theirs")
    await kedge.end("theirs")
    kedge.gates.open("go")
    await kedge.end("ours")
    await reader.event(lambda event: event.type == "run_complete")
    assert {getattr(event.payload, "run_id", "ours") for event in reader.log} == {"ours"}
    assert errors(reader.log) == []
    reading.cancel()
    await asyncio.wait({reading})


async def test_client_that_watches_another_run_of_the_session_can_tell_them_apart(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "fail boom", "bad")
    await kedge.send(session_id, "say fine", "good")
    await kedge.ends("bad", "good")
    about_good = [e for e in await kedge.log() if getattr(e.payload, "run_id", "") == "good"]
    assert errors(about_good) == []
    assert [e.payload.error for e in about_good if isinstance(e.payload, RunEnd)] == [None]


async def test_attempts_inside_a_run_are_folded_into_one_outcome(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "retry half an ans; retry half an answ; say the answer", "r")
    end = await kedge.end("r")
    assert (end.text, end.error) == ("the answer", None)
    log = await kedge.log()
    assert errors(log) == []
    retries = [e.payload for e in log if isinstance(e.payload, AgentEvent)]
    assert [(retry.type, retry.run_id, retry.session_id) for retry in retries] == [("retry", "r", session_id)] * 2


async def test_attempts_that_all_fail_are_one_error(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), "retry one; retry two; fail gave up", "r")
    assert (await kedge.end("r")).error == "gave up"
    assert [error.error for error in errors(await kedge.log())] == ["gave up"]


async def test_wait_for_a_login_is_told_and_can_be_cancelled(kedge: Kedge) -> None:
    async def logging_in(ctx: TurnContext) -> None:
        await ctx.append_event("re_authenticate", provider_id="acme")
        await kedge.gates.wait("login")

    kedge.turns["prompt"] = logging_in
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    told = (await kedge.seen(lambda event: event.type == "agent_event")).payload
    assert isinstance(told, AgentEvent)
    assert (told.type, told.run_id, told.session_id, told.provider_id) == ("re_authenticate", "r", session_id, "acme")
    await kedge.cancel(session_id)
    end = await kedge.end("r")
    assert (end.cancelled, end.error) == (True, None)


async def test_cancel_after_a_failure_was_decided_leaves_one_of_the_two(kedge: Kedge) -> None:
    for number in range(20):
        session_id = await kedge.session()
        await kedge.send(session_id, f"wait go{number}; fail boom", f"r{number}")
        await kedge.reached(f"go{number}")
        kedge.gates.open(f"go{number}")
        for _ in range(number):
            await asyncio.sleep(0)
        await kedge.cancel(session_id)
        end = await kedge.end(f"r{number}")
        assert (end.error is None) == end.cancelled


async def test_long_error_is_cut_once_and_is_the_same_everywhere(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, f"fail {'x' * 100_000}", "r")
    end = await kedge.end("r")
    assert end.error == "x" * MAX_ERROR_CHARS
    last = finish_of((await kedge.messages(session_id))[-1].parts)
    assert last is not None
    assert last.message == end.error

"""P15: the way out is orderly, and loses nothing that was acknowledged."""

from __future__ import annotations

import asyncio
import time

import pytest

from kedge import failpoints
from kedge.engine import engine
from kedge.engine.turn import TurnContext
from kedge.protocol.errors import Unavailable
from kedge.store.errors import StoreInUse
from tests.support.harness import Kedge
from tests.support.holding import hold_at
from tests.support.reader import LIMIT_S, Reader


async def stopping(kedge: Kedge, grace_s: float) -> asyncio.Task[None]:
    """A shutdown that has begun."""
    task = asyncio.create_task(kedge.shutdown(grace_s))
    await asyncio.sleep(0)
    assert kedge.engine.is_stopping
    return task


async def test_nothing_is_accepted_any_more(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go; say done", "r")
    await kedge.reached("go")
    shutdown = await stopping(kedge, grace_s=LIMIT_S)
    with pytest.raises(Unavailable) as refused:
        await kedge.send(session_id, "say late", "late")
    assert refused.value.code == "shutting_down"
    with pytest.raises(Unavailable):
        await kedge.session()
    kedge.gates.open("go")
    await shutdown
    await kedge.start()
    assert [run.run_id for run in await kedge.store.runs(kedge.workspace_id)] == ["r"]


@pytest.mark.parametrize("env", [None, {"CALLER": "somebody"}], ids=["without_env", "with_env"])
async def test_what_is_being_written_when_the_server_stops_is_acknowledged(
    kedge: Kedge, env: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error answer means that there is no run (P1)."""
    monkeypatch.setattr(engine, "CLOSE_S", LIMIT_S)
    session_id = await kedge.session()
    written, go = hold_at("accept.done")
    sending = asyncio.create_task(kedge.send(session_id, "say hello", "r", env=env))
    await written.wait()
    shutdown = await stopping(kedge, grace_s=0)
    for _ in range(100):  # whatever the server does at once, it does now
        await asyncio.sleep(0)
    go.set()
    assert (await sending).run_id == "r"
    await shutdown
    failpoints.disarm()
    await kedge.start()
    assert (await kedge.end("r")).text == "hello"


@pytest.mark.parametrize("env", [None, {"CALLER": "somebody"}], ids=["without_env", "with_env"])
async def test_what_a_slow_disk_still_writes_when_the_server_stops_is_not_refused(
    kedge: Kedge, env: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written whoever waits: until then nobody knows what came of it (P1)."""
    monkeypatch.setattr(engine, "CLOSE_S", 0.0)
    session_id = await kedge.session()
    written, go = hold_at("accept.done")
    sending = asyncio.create_task(kedge.send(session_id, "say hello", "r", env=env))
    await written.wait()
    await kedge.engine.stop(grace_s=0)
    for _ in range(100):  # whoever was told something hears it now
        await asyncio.sleep(0)
    assert not sending.done()
    go.set()
    await kedge.shutdown()
    assert (await sending).run_id == "r"
    failpoints.disarm()
    await kedge.start()
    assert (await kedge.end("r")).text == "hello"


async def test_run_that_ends_within_the_grace_is_completed_and_the_queue_waits_for_the_next_server(
    kedge: Kedge,
) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go; say done", "r")
    await kedge.send(session_id, "say next", "next")
    await kedge.reached("go")
    shutdown = await stopping(kedge, grace_s=LIMIT_S)
    kedge.gates.open("go")
    await shutdown
    assert [frame.event.type for frame in kedge.watcher.frames].count("run_complete") == 1
    await kedge.start()
    done, following = await kedge.ends("r", "next")
    assert (done.text, following.text) == ("done", "next")
    assert [(await kedge.run(run_id)).attempt for run_id in ("r", "next")] == [1, 1]


async def test_run_that_does_not_end_is_suspended_and_resumed(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say one; wait go; say two", "r")
    await kedge.reached("go")
    began = time.monotonic()
    await kedge.shutdown(grace_s=0.2)
    assert time.monotonic() - began >= 0.2
    await kedge.start()
    await kedge.reached("go")
    run = await kedge.run("r")
    assert (run.state, run.attempt) == ("running", 1)
    kedge.gates.open("go")
    assert (await kedge.end("r")).text == "two"


async def test_call_in_flight_is_interrupted_and_not_repeated(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "tool deploy hang; say carried on", "r")
    await kedge.seen(lambda event: getattr(event.payload, "kind", "") == "tool_output")
    await kedge.restart()
    assert (await kedge.end("r")).text == "carried on"
    (result,) = await kedge.results(session_id)
    assert "nterrupted" in result.content


async def test_run_that_delegates_while_the_server_stops_does_not_fail_for_it(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go; delegate say below; say done", "r")
    await kedge.reached("go")
    shutdown = await stopping(kedge, grace_s=0.3)
    kedge.gates.open("go")
    await shutdown
    await kedge.start()
    kedge.gates.open("go")
    end = await kedge.end("r")
    assert (end.text, end.error) == ("done", None)


async def test_second_call_hastens_the_first(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), "wait go; say done", "r")
    await kedge.reached("go")
    first = await stopping(kedge, grace_s=1000)
    await kedge.engine.shutdown()
    await kedge.engine.shutdown()  # and so does a third
    async with asyncio.timeout(LIMIT_S):
        await first
    await kedge.start()
    kedge.gates.open("go")
    assert (await kedge.end("r")).text == "done"


async def test_streams_end_after_everything_that_was_committed(kedge: Kedge) -> None:
    session_id = await kedge.session()
    readers = [Reader() for _ in range(3)]
    tasks = [asyncio.create_task(kedge.read(reader)) for reader in readers]
    await kedge.send(session_id, "say one; tool bash hang", "r")
    await kedge.seen(lambda event: getattr(event.payload, "kind", "") == "tool_output")
    await kedge.shutdown(grace_s=0)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*tasks)
    await kedge.start()
    logged = await kedge.log_frames()
    for reader in readers:
        assert reader.log_frames == logged[: len(reader.log_frames)]
        assert any("nterrupted" in str(event.payload) for event in reader.log)  # the last word of the server


async def test_data_directory_is_free_afterwards_and_not_before(kedge: Kedge) -> None:
    with pytest.raises(StoreInUse):
        kedge.open_store()
    await kedge.shutdown()
    await kedge.open_store().close()
    await kedge.start()


async def test_open_requests_survive(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), "ask rm done; say after", "r")
    request = await kedge.asked()
    await kedge.restart()
    assert await kedge.permissions() == [request]
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "tui")
    assert (await kedge.end("r")).text == "after"


@pytest.mark.parametrize("first", ["cancel", "shutdown"])
async def test_cancelled_run_is_ended_not_suspended(kedge: Kedge, first: str) -> None:
    released = asyncio.Event()

    async def slow_to_stop(_: TurnContext) -> None:
        try:
            await kedge.gates.wait("never")
        finally:
            await released.wait()

    kedge.turns["prompt"] = slow_to_stop
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    await kedge.reached("never")
    if first == "cancel":
        await kedge.cancel(session_id)
    shutdown = await stopping(kedge, grace_s=0)
    if first == "shutdown":
        await kedge.cancel(session_id)
    released.set()
    await shutdown
    assert kedge.watcher.types[-1] == "run_complete"  # before the streams ended
    await kedge.start()
    assert ((await kedge.end("r")).cancelled, (await kedge.run("r")).attempt) == (True, 1)


async def test_cancel_during_the_grace_still_counts(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait never", "r")
    await kedge.reached("never")
    shutdown = await stopping(kedge, grace_s=LIMIT_S)
    assert await kedge.cancel(session_id) == ["r"]
    await shutdown
    await kedge.start()
    assert (await kedge.end("r")).cancelled


async def test_accepts_that_were_on_their_way_are_answered_truly(kedge: Kedge) -> None:
    session_id = await kedge.session()
    sent = [asyncio.create_task(kedge.send(session_id, "say hello", f"r{n}")) for n in range(10)]
    await asyncio.sleep(0)
    await kedge.shutdown(grace_s=0)
    answers = await asyncio.gather(*sent, return_exceptions=True)
    acknowledged = [answer.run_id for answer in answers if not isinstance(answer, BaseException)]
    await kedge.start()
    assert {run.run_id for run in await kedge.store.runs(kedge.workspace_id)} >= set(acknowledged)
    for run_id in acknowledged:
        assert (await kedge.end(run_id)).text == "hello"


async def test_turn_that_ignores_everything_does_not_hold_up_the_way_out(kedge: Kedge) -> None:
    let_go = asyncio.Event()

    async def deaf(ctx: TurnContext) -> None:
        while ctx.run.attempt == 1 and not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    kedge.turns["prompt"] = deaf
    await kedge.send(await kedge.session(), "go", "r")
    await kedge.seen_run("r", "running")
    began = time.monotonic()
    await kedge.shutdown(grace_s=0)
    assert time.monotonic() - began < 5
    let_go.set()
    await kedge.start()
    assert (await kedge.end("r")).error is None


async def test_turn_may_still_delegate_during_the_grace(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go; delegate say hi; say done", "r")
    await kedge.reached("go")
    stopping = asyncio.create_task(kedge.shutdown(grace_s=30))
    await asyncio.sleep(0)
    kedge.gates.open("go")
    await stopping
    await kedge.start()
    assert (await kedge.end("r")).text == "done"
    assert (await kedge.run("r")).attempt == 1
    assert [result.content for result in await kedge.results(session_id)] == ["hi"]

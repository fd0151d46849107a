"""P13: a run that waits for a provider or the network keeps its state, frees its slot, and survives every stop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from kedge.engine import concurrency
from kedge.protocol.events import Event
from kedge.protocol.runs import Run, Waiting
from tests.support.harness import Kedge
from tests.support.invariants import run_events
from tests.support.stores import StoreKind

LONG = "limit 1000"


@pytest.fixture(autouse=True)
def quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test sets the clock ahead, and the engine notices at once."""
    monkeypatch.setattr(concurrency, "CLOCK_READ_S", 0.01)


async def seen_waiting(kedge: Kedge, run_id: str) -> Run:
    def matches(event: Event) -> bool:
        run = event.payload
        return isinstance(run, Run) and run.run_id == run_id and run.waiting is not None

    run = (await kedge.seen(matches)).payload
    assert isinstance(run, Run)
    return run


async def test_a_wait_is_told_and_the_run_goes_on_when_it_is_over(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, f"say one; {LONG}; say two", "r")
    run = await seen_waiting(kedge, "r")
    assert run.state == "running"
    waiting = run.waiting
    assert isinstance(waiting, Waiting)
    assert waiting.reason == "rate_limit"
    assert 900 < waiting.until - kedge.clock() <= 1000
    assert (await kedge.run("r")).waiting == waiting
    active = (await kedge.store.session_status(kedge.workspace_id, session_id)).active
    assert active is not None
    assert active.waiting == waiting
    kedge.clock.ahead_s += 1000
    assert (await kedge.end("r")).text == "two"
    assert (await kedge.run("r")).waiting is None
    told = [run.waiting for _, run in run_events(await kedge.log())]
    assert told == [None, None, waiting, None, None]


async def test_the_log_tells_a_wait_again_as_it_was_told(kedge: Kedge) -> None:
    """The fixture compares what a client was sent with what the log has, byte for byte."""
    await kedge.send(await kedge.session(), LONG, "r")
    await seen_waiting(kedge, "r")
    await kedge.crash_and_start()
    waits = [run.waiting for _, run in run_events(await kedge.log()) if run.waiting is not None]
    assert waits


@pytest.mark.parametrize("stop", [Kedge.crash_and_start, Kedge.restart], ids=["crash", "orderly"])
async def test_a_stop_while_waiting_is_no_attempt_and_the_next_server_waits_on(
    kedge: Kedge, stop: Callable[[Kedge], Awaitable[None]]
) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, f"say one; {LONG}; say two", "r")
    waiting = (await seen_waiting(kedge, "r")).waiting
    for _ in range(4):  # more often than a run is attempted
        await stop(kedge)
        run = await kedge.seen_run("r", "running")
        assert (run.attempt, (await kedge.run("r")).waiting) == (1, waiting)
    kedge.clock.ahead_s += 1000
    assert (await kedge.end("r")).text == "two"
    assert (await kedge.run("r")).attempt == 1
    said = [message for message in await kedge.messages(session_id) if message.role == "assistant"]
    assert len(said) == 2, "nothing is said twice, and no empty message is left"


async def test_a_wait_that_is_over_when_the_next_server_starts_ends_at_once(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), f"{LONG}; say two", "r")
    await seen_waiting(kedge, "r")
    await kedge.crash()
    kedge.clock.ahead_s += 5000
    await kedge.start()
    assert (await kedge.end("r")).text == "two"
    assert (await kedge.run("r")).attempt == 1


async def test_a_crash_after_the_wait_is_an_attempt(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), f"{LONG}; wait go; say done", "r")
    await seen_waiting(kedge, "r")
    await kedge.crash_and_start()
    kedge.clock.ahead_s += 1000
    await kedge.reached("go")
    assert (await kedge.run("r")).attempt == 1
    await kedge.crash_and_start()
    await kedge.seen_run("r", "running", attempt=2)


@pytest.mark.parametrize("crashes", [0, 1])
async def test_a_cancel_ends_the_wait_at_once(kedge: Kedge, crashes: int) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, f"{LONG}; say never", "r")
    await kedge.send(session_id, "say next", "next")
    await seen_waiting(kedge, "r")
    for _ in range(crashes):
        await kedge.crash_and_start()
    await kedge.cancel_run("r")
    end = await kedge.end("r")
    assert (end.cancelled, end.error) == (True, None)
    assert (await kedge.run("r")).waiting is None
    assert (await kedge.end("next")).text == "next"


async def test_an_interrupting_prompt_ends_the_wait(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, LONG, "r")
    await seen_waiting(kedge, "r")
    await kedge.send(session_id, "say now", "now", on_busy="interrupt")
    assert (await kedge.end("r")).cancelled
    assert (await kedge.end("now")).text == "now"


async def test_joined_runs_wait_with_their_host(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, f"wait go; say one; {LONG}", "host")
    await kedge.reached("go")
    await kedge.send(session_id, "say two", "joined", on_busy="steer")
    kedge.gates.open("go")
    assert (await seen_waiting(kedge, "joined")).waiting == (await seen_waiting(kedge, "host")).waiting
    await kedge.crash_and_start()
    kedge.clock.ahead_s += 1000
    ends = await kedge.ends("host", "joined")
    assert [end.text for end in ends] == ["two", "two"]
    assert [(await kedge.run(run_id)).waiting for run_id in ("host", "joined")] == [None, None]


async def test_a_sub_agent_waits_while_its_parent_works(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), f"delegate {LONG} / say found; say done", "parent")

    def is_child(event: Event) -> bool:
        run = event.payload
        return isinstance(run, Run) and run.parent_run_id == "parent" and run.waiting is not None

    await kedge.seen(is_child)
    assert (await kedge.run("parent")).waiting is None
    kedge.clock.ahead_s += 1000
    assert (await kedge.end("parent")).text == "done"


@pytest.fixture
async def narrow(store_kind: StoreKind, tmp_path: Path) -> AsyncGenerator[Kedge]:
    async with Kedge(store_kind, tmp_path, max_turns=1) as kedge:
        yield kedge


@pytest.mark.parametrize("crashes", [0, 1])
async def test_the_slot_is_free_meanwhile(narrow: Kedge, crashes: int) -> None:
    await narrow.send(await narrow.session(), f"{LONG}; say late", "waits")
    await seen_waiting(narrow, "waits")
    for _ in range(crashes):
        await narrow.crash_and_start()
    await narrow.send(await narrow.session(), "say early", "other")
    assert (await narrow.end("other")).text == "early"
    await narrow.send(await narrow.session(), "wait go; say busy", "busy")
    await narrow.reached("go")
    narrow.clock.ahead_s += 1000
    narrow.gates.open("go")  # it goes on when the slot is free again
    assert (await narrow.end("waits")).text == "late"
    assert (await narrow.end("busy")).text == "busy"


async def test_how_long_a_run_waited_is_remembered_until_its_model_answers(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), f"{LONG}; wait waited; say answer; wait answered", "r")
    await seen_waiting(kedge, "r")
    began = kedge.clock()
    kedge.clock.ahead_s += 1000
    await kedge.reached("waited")
    since = await kedge.store.waiting_since(kedge.workspace_id, "r")
    assert since is not None
    assert abs(since - began) < 60
    kedge.gates.open("waited")
    await kedge.reached("answered")
    assert await kedge.store.waiting_since(kedge.workspace_id, "r") is None

"""P5: a session runs one turn at a time, in order of acceptance; sessions run side by side; nobody is stranded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.protocol.errors import SessionBusy
from kedge.protocol.runs import Run, RunEnd
from tests.support.harness import Kedge, place_of, states
from tests.support.stores import StoreKind


async def test_8_prompts_at_once_on_one_session_start_one_turn(kedge: Kedge) -> None:
    session_id = await kedge.session()
    receipts = await asyncio.gather(*(kedge.send(session_id, "wait go; say done", f"r{n}") for n in range(8)))
    await kedge.reached("go")
    in_order = [receipt.run_id for receipt in sorted(receipts, key=lambda receipt: receipt.seq)]
    status = await kedge.store.session_status(kedge.workspace_id, session_id)
    assert status.active is not None
    assert [status.active.run_id, *(run.run_id for run in status.queue)] == in_order
    assert [run_id for run_id, state in states(await kedge.log()) if state == "running"] == in_order[:1]

    kedge.gates.open("go")
    await kedge.ends(*in_order)
    assert [run_id for run_id, state in states(await kedge.log()) if state == "completed"] == in_order


async def test_sessions_run_side_by_side(kedge: Kedge) -> None:
    sessions = [await kedge.session() for _ in range(5)]
    runs = [await kedge.send(session_id, f"wait go{n}") for n, session_id in enumerate(sessions)]
    for n in range(5):
        await kedge.reached(f"go{n}")
    assert [(await kedge.run(run.run_id)).state for run in runs] == ["running"] * 5
    for n in reversed(range(5)):
        kedge.gates.open(f"go{n}")
        await kedge.end(runs[n].run_id)


async def test_end_is_in_the_log_before_the_next_run_starts_and_is_not_held_back_by_it(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go; say a", "a")
    await kedge.send(session_id, "wait never", "b")
    await kedge.reached("go")
    kedge.gates.open("go")
    assert (await kedge.end("a")).text == "a"
    await kedge.reached("never")
    log = await kedge.log()
    assert place_of(log, RunEnd, run_id="a") < place_of(log, Run, run_id="b", state="running")
    assert (await kedge.run("b")).state == "running"


async def test_end_never_carries_the_error_of_the_next_run(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say fine", "a")
    await kedge.send(session_id, "fail boom", "b")
    a, b = await kedge.ends("a", "b")
    assert (a.error, a.text) == (None, "fine")
    assert (b.error, b.text) == ("boom", "")


@pytest.mark.parametrize("first", ["fail boom", "raise boom", "exit", "say half; fail boom"])
async def test_queued_run_after_a_failed_one_runs(kedge: Kedge, first: str) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, f"wait go; {first}", "failed")
    await kedge.send(session_id, "say next", "next")
    await kedge.reached("go")
    kedge.gates.open("go")
    assert (await kedge.end("failed")).error is not None
    assert (await kedge.end("next")).text == "next"


@pytest.mark.parametrize("first", ["wait go", "tool bash hang", "ask rm done", "say half; hang"])
async def test_queued_run_after_a_cancelled_one_runs(kedge: Kedge, first: str) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, first, "cancelled")
    await kedge.send(session_id, "say next", "next")
    await kedge.seen_run("cancelled", "running")
    await kedge.cancel_run("cancelled")
    assert (await kedge.end("cancelled")).cancelled
    assert (await kedge.end("next")).text == "next"


async def test_failing_runs_in_a_row_strand_nobody(kedge: Kedge) -> None:
    session_id = await kedge.session()
    for number in range(10):
        await kedge.send(session_id, "raise boom", f"bad{number}")
    await kedge.send(session_id, "say made it", "good")
    assert (await kedge.end("good")).text == "made it"


async def test_prompt_sent_at_the_very_end_of_a_turn_is_not_missed(kedge: Kedge) -> None:
    """The actor leaves when nothing is open: a prompt that comes at that moment still runs."""
    session_id = await kedge.session()
    for number in range(50):
        receipt = await kedge.send(session_id, f"say {number}")
        assert (await kedge.end(receipt.run_id)).text == str(number)


async def test_more_turns_than_slots_wait_for_one_and_a_turn_that_asks_lends_its_own(
    store_kind: StoreKind, tmp_path: Path
) -> None:
    async with Kedge(store_kind, tmp_path, max_turns=1) as kedge:
        await kedge.send(await kedge.session(), "ask rm done; say first", "asking")
        request = await kedge.asked()
        await kedge.send(await kedge.session(), "say second", "other")
        assert (await kedge.end("other")).text == "second"
        await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "tui")
        assert (await kedge.end("asking")).text == "first"


class TestReject:
    async def test_names_the_active_run_and_leaves_no_trace(self, kedge: Kedge) -> None:
        session_id = await kedge.session()
        await kedge.send(session_id, "wait go", "active")
        await kedge.send(session_id, "say next", "queued")
        await kedge.reached("go")
        before = await kedge.log_frames()
        with pytest.raises(SessionBusy) as refused:
            await kedge.send(session_id, "say no", "rejected", on_busy="reject")
        assert (refused.value.code, refused.value.active_run_id) == ("session_busy", "active")
        assert "active" in refused.value.message
        assert await kedge.log_frames() == before

    async def test_names_the_host_of_a_turn_that_others_joined(self, kedge: Kedge) -> None:
        session_id = await kedge.session()
        await kedge.send(session_id, "say one; wait go; say two; wait end", "host")
        await kedge.reached("go")
        await kedge.send(session_id, "say joined", "joined", on_busy="steer")
        kedge.gates.open("go")
        await kedge.seen_run("joined", "running")
        with pytest.raises(SessionBusy) as refused:
            await kedge.send(session_id, "say no", on_busy="reject")
        assert refused.value.active_run_id == "host"

    async def test_is_accepted_by_an_idle_session(self, kedge: Kedge) -> None:
        receipt = await kedge.send(await kedge.session(), "say yes", on_busy="reject")
        assert (await kedge.end(receipt.run_id)).text == "yes"


class TestInterrupt:
    async def test_cancels_the_active_turn_and_goes_ahead_of_the_queue_which_stays(self, kedge: Kedge) -> None:
        session_id = await kedge.session()
        await kedge.send(session_id, "wait never", "active")
        await kedge.send(session_id, "say queued", "queued")
        await kedge.reached("never")
        receipt = await kedge.send(session_id, "say now", "urgent", on_busy="interrupt")

        active, urgent, queued = await kedge.ends("active", "urgent", "queued")
        assert active.cancelled
        assert (urgent.text, queued.text) == ("now", "queued")
        log = await kedge.log()
        running = [run_id for run_id, state in states(log) if state == "running"]
        assert running == ["active", "urgent", "queued"]
        # One transaction: nothing can come between the cancel and the acceptance.
        assert place_of(log, Run, run_id="active", cancel_requested=True) == receipt.seq - 1

    async def test_second_interrupt_waits_for_the_first_that_has_not_started(self, kedge: Kedge) -> None:
        session_id = await kedge.session()
        held = asyncio.Event()
        kedge.turns["shell"] = lambda _: _hold_on(held)
        await kedge.send(session_id, "go", "active", kind="shell")
        await kedge.send(session_id, "say queued", "queued")
        await kedge.seen_run("active", "running")
        await kedge.send(session_id, "say one", "first", on_busy="interrupt")
        await kedge.send(session_id, "say two", "second", on_busy="interrupt")
        held.set()
        ends = await kedge.ends("active", "first", "second", "queued")
        assert [end.text for end in ends] == ["", "one", "two", "queued"]
        assert [run for run, state in states(await kedge.log()) if state == "running"] == [
            *("active", "first", "second", "queued")
        ]

    async def test_second_interrupt_cancels_the_first_that_runs(self, kedge: Kedge) -> None:
        session_id = await kedge.session()
        await kedge.send(session_id, "wait a", "active")
        await kedge.send(session_id, "say queued", "queued")
        await kedge.reached("a")
        await kedge.send(session_id, "wait b", "first", on_busy="interrupt")
        await kedge.reached("b")
        await kedge.send(session_id, "say two", "second", on_busy="interrupt")
        active, first, second, queued = await kedge.ends("active", "first", "second", "queued")
        assert (active.cancelled, first.cancelled) == (True, True)
        assert (second.text, queued.text) == ("two", "queued")

    async def test_interrupting_an_idle_session_just_runs(self, kedge: Kedge) -> None:
        receipt = await kedge.send(await kedge.session(), "say now", on_busy="interrupt")
        assert (await kedge.end(receipt.run_id)).text == "now"

    async def test_crash_right_after_keeps_the_cancel_and_the_order(self, kedge: Kedge) -> None:
        session_id = await kedge.session()
        await kedge.send(session_id, "wait never", "active")
        await kedge.send(session_id, "say queued", "queued")
        await kedge.reached("never")
        await kedge.send(session_id, "say now", "urgent", on_busy="interrupt")
        await kedge.crash_and_start()
        active, urgent, queued = await kedge.ends("active", "urgent", "queued")
        assert (active.cancelled, urgent.text, queued.text) == (True, "now", "queued")
        assert [run for run, state in states(await kedge.log()) if state == "running"] == [
            *("active", "urgent", "queued")
        ]


async def _hold_on(until: asyncio.Event) -> None:
    """A turn that takes its time to stop."""
    try:
        await asyncio.Event().wait()
    finally:
        await until.wait()

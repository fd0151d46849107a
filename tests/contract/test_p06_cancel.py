"""P6: cancel hits what was accepted before it, and nothing after it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kedge import failpoints
from kedge.engine.turn import TurnContext
from kedge.protocol.errors import NotFound
from kedge.protocol.messages import Finish, Text, finish_of, text_of
from kedge.protocol.runs import Run, RunEnd
from kedge.protocol.sessions import SessionChange
from tests.support.harness import Kedge, place_of, states
from tests.support.reader import LIMIT_S
from tests.support.stores import StoreKind


async def test_cancel_right_after_acceptance_is_not_lost(kedge: Kedge) -> None:
    for number in range(30):
        session_id = await kedge.session()
        receipt = await kedge.send(session_id, "wait never", f"r{number}")
        for _ in range(number % 6):  # at every small distance from the start
            await asyncio.sleep(0)
        assert await kedge.cancel(session_id) == [receipt.run_id]
        assert (await kedge.end(receipt.run_id)).cancelled


async def test_cancel_sent_together_with_the_prompt_hits_it_or_comes_before_it(kedge: Kedge) -> None:
    for number in range(20):
        session_id = await kedge.session()
        _, cancelled = await asyncio.gather(kedge.send(session_id, "wait go", f"r{number}"), kedge.cancel(session_id))
        if cancelled:
            assert (await kedge.end(f"r{number}")).cancelled
        else:
            assert not (await kedge.run(f"r{number}")).cancel_requested


async def test_run_cancelled_before_its_start_never_starts(store_kind: StoreKind, tmp_path: Path) -> None:
    async with Kedge(store_kind, tmp_path, max_turns=1) as kedge:
        await kedge.send(await kedge.session(), "wait go", "elsewhere")  # takes the only slot
        await kedge.reached("go")
        session_id = await kedge.session()
        await kedge.send(session_id, "say hello", "waiting")
        assert await kedge.cancel(session_id) == ["waiting"]
        assert (await kedge.end("waiting")).cancelled
        kedge.gates.open("go")
        await kedge.end("elsewhere")
        await kedge.send(session_id, "say next", "next")
        assert (await kedge.end("next")).text == "next"
        assert ("waiting", "running") not in states(await kedge.log())


async def test_cancel_committed_together_with_the_start_is_not_lost(kedge: Kedge) -> None:
    """While the writer is held up, the start and the cancel come to be one group: the turn is told of both at once."""
    session_id, other = await kedge.session(), await kedge.session()
    is_proven = False
    for number in range(20):
        entered, release = threading.Event(), threading.Event()

        def stall(entered: threading.Event = entered, release: threading.Event = release) -> None:
            entered.set()
            release.wait(LIMIT_S)

        failpoints.arm("change_session.done", stall)
        sending = asyncio.create_task(kedge.send(session_id, "wait never", f"r{number}"))
        renaming = asyncio.create_task(
            kedge.engine.change_session(kedge.workspace_id, other, SessionChange(title="busy"))
        )
        await asyncio.to_thread(entered.wait, LIMIT_S)
        await asyncio.sleep(0)
        # Only if the prompt was accepted before the writer was held up; else it waits in the same group.
        is_proven = is_proven or sending.done()
        cancelling = asyncio.create_task(kedge.cancel(session_id))
        await asyncio.sleep(0)
        release.set()
        failpoints.disarm()
        await asyncio.gather(sending, renaming)
        assert await cancelling == [f"r{number}"]
        assert (await kedge.end(f"r{number}")).cancelled
    assert is_proven


async def test_cancel_between_the_start_and_the_first_assistant_message(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait never; say hello", "r")
    await kedge.reached("never")
    await kedge.cancel(session_id)
    assert (await kedge.end("r")).cancelled
    user, assistant = await kedge.messages(session_id)
    assert (user.role, assistant.role, assistant.parts) == ("user", "assistant", [Finish("canceled")])


async def test_cancelling_an_idle_session_does_nothing_and_poisons_nothing(kedge: Kedge) -> None:
    session_id = await kedge.session()
    before = await kedge.log_frames()
    assert await kedge.cancel(session_id) == []
    assert await kedge.log_frames() == before
    await kedge.send(session_id, "say hello", "first")
    assert (await kedge.end("first")).text == "hello"
    assert await kedge.cancel(session_id) == []
    await kedge.send(session_id, "say again", "second")
    assert (await kedge.end("second")).text == "again"


async def test_cancel_covers_the_active_run_and_its_follow_up_and_not_the_one_accepted_after_it(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait never", "active")
    await kedge.send(session_id, "say no", "follow-up")
    await kedge.reached("never")
    assert await kedge.cancel(session_id) == ["active", "follow-up"]
    await kedge.send(session_id, "say yes", "after")
    active, follow_up, after = await kedge.ends("active", "follow-up", "after")
    assert (active.cancelled, follow_up.cancelled, after.cancelled) == (True, True, False)
    assert after.text == "yes"
    assert ("follow-up", "running") not in states(await kedge.log())


async def test_prompt_accepted_while_the_cancelled_turn_is_still_stopping_runs_normally(kedge: Kedge) -> None:
    released = asyncio.Event()

    async def slow_to_stop(_: TurnContext) -> None:
        try:
            await kedge.gates.wait("never")
        finally:
            await released.wait()

    kedge.turns["shell"] = slow_to_stop
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "stopping", kind="shell")
    await kedge.reached("never")
    await kedge.cancel(session_id)
    await kedge.send(session_id, "say yes", "after")
    assert (await kedge.run("stopping")).state == "running"
    released.set()
    assert (await kedge.end("stopping")).cancelled
    assert (await kedge.end("after")).text == "yes"


async def test_two_cancels_are_one(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait never", "r")
    await kedge.reached("never")
    both = await asyncio.gather(kedge.cancel(session_id), kedge.cancel(session_id))
    assert both == [["r"], ["r"]]
    end = await kedge.end("r")
    assert end.cancelled
    assert await kedge.cancel(session_id) == []
    assert (await kedge.cancel_run("r")).state == "cancelled"
    assert [e.payload for e in await kedge.log() if isinstance(e.payload, RunEnd)] == [end]
    told = [e.payload for e in await kedge.log() if isinstance(e.payload, Run)]
    assert [run.state for run in told] == ["queued", "running", "running", "cancelled"]


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ("tool bash some hang", {}),
        ("say half; hang", {}),
        ("ask rm done", {}),
        ("question which one?", {}),
        ("process sleep 1000", {}),
        ("delegate say half / hang", {}),
        ("hang", {"kind": "shell"}),
        ("say summary so far; hang", {"kind": "summarize"}),
    ],
    ids=["tool", "hung provider", "permission", "question", "process", "sub-agent", "shell", "summarising"],
)
async def test_cancel_wherever_the_turn_is(kedge: Kedge, script: str, fields: dict[str, Any]) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, script, "r", **fields)
    await kedge.seen(lambda event: event.type == "message_delta" or script == "hang")
    await kedge.seen_run("r", "running")
    await kedge.cancel(session_id)
    await kedge.send(session_id, "say next", "next")
    end = await kedge.end("r")
    assert (end.cancelled, end.error) == (True, None)
    assert (await kedge.end("next")).text == "next"


async def test_cancel_while_the_call_is_surely_inside(kedge: Kedge) -> None:
    """The tool has started, and its output so far is kept, with a word that it was cancelled."""
    session_id = await kedge.session()
    await kedge.send(session_id, "tool bash some hang", "r")
    await kedge.seen(lambda event: getattr(event.payload, "kind", "") == "tool_output")
    await kedge.cancel(session_id)
    assert (await kedge.end("r")).cancelled
    tool = next(message for message in await kedge.messages(session_id) if message.role == "tool")
    (result,) = tool.parts
    assert getattr(result, "is_error", None) is True
    assert getattr(result, "content", "").startswith("some ")
    assert "Interrupted: the run was canceled" in getattr(result, "content", "")


async def test_cancel_during_a_summary_keeps_the_session_going(kedge: Kedge) -> None:
    async def summarising(ctx: TurnContext) -> None:
        message = await ctx.begin_message(summary=True)
        message.open(Text("")).write("what happened so far")
        await kedge.gates.wait("never")

    kedge.turns["summarize"] = summarising
    session_id = await kedge.session()
    await kedge.send(session_id, "say hello", "before")
    await kedge.send(session_id, "", "r", kind="summarize")
    await kedge.reached("never")
    await kedge.cancel(session_id)
    end = await kedge.end("r")
    assert (end.cancelled, end.text) == (True, "")
    summary = next(message for message in await kedge.messages(session_id) if message.summary)
    finish = finish_of(summary.parts)
    assert finish is not None
    assert (finish.reason, text_of(summary.parts)) == ("canceled", "what happened so far")
    await kedge.send(session_id, "say next", "next")
    assert (await kedge.end("next")).text == "next"


@pytest.mark.parametrize("how", ["returns", "raises", "finishes its message"])
async def test_once_committed_the_end_is_cancelled_even_if_the_turn_finished_meanwhile(kedge: Kedge, how: str) -> None:
    cancelled = asyncio.Event()

    async def finishing(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        text = message.open(Text(""))
        text.write("the answer")
        kedge.gates.open("streaming")
        try:
            await cancelled.wait()
        except asyncio.CancelledError:
            if how == "raises":
                raise RuntimeError("in the clean-up") from None
            if how == "finishes its message":
                await message.finish("end_turn")

    kedge.turns["prompt"] = finishing
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    await kedge.seen(lambda event: event.type == "message_delta")
    await kedge.cancel(session_id)
    cancelled.set()
    end = await kedge.end("r")
    assert (end.cancelled, end.error, end.text) == (True, None, "the answer")


async def test_cancel_and_finish_at_the_same_moment_give_one_end_that_all_agree_on(kedge: Kedge) -> None:
    for number in range(30):
        session_id = await kedge.session()
        await kedge.send(session_id, f"wait go{number}; say done", f"r{number}")
        await kedge.reached(f"go{number}")
        kedge.gates.open(f"go{number}")
        for _ in range(number):
            await asyncio.sleep(0)
        run = await kedge.cancel_run(f"r{number}")
        end = await kedge.end(f"r{number}")
        assert end.cancelled == (run.cancel_requested or run.state == "cancelled")
        assert (await kedge.run(f"r{number}")).state == ("cancelled" if end.cancelled else "completed")


async def test_cancelling_one_run_touches_that_run_alone(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go; say a", "a")
    await kedge.send(session_id, "say b", "b")
    await kedge.send(session_id, "say c", "c")
    await kedge.reached("go")
    assert (await kedge.cancel_run("b")).state == "cancelled"
    assert not (await kedge.run("a")).cancel_requested
    kedge.gates.open("go")
    a, b, c = await kedge.ends("a", "b", "c")
    assert (a.text, b.cancelled, c.text) == ("a", True, "c")


async def test_cancelling_one_session_leaves_the_others_alone(kedge: Kedge) -> None:
    ours, theirs = await kedge.session(), await kedge.session()
    await kedge.send(ours, "wait a", "a")
    await kedge.send(theirs, "wait b; say fine", "b")
    await kedge.reached("a")
    await kedge.reached("b")
    await kedge.cancel(ours)
    assert (await kedge.end("a")).cancelled
    kedge.gates.open("b")
    assert (await kedge.end("b")).text == "fine"


async def test_cancelling_what_has_ended_changes_nothing(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say hello", "done")
    await kedge.end("done")
    before = await kedge.log_frames()
    assert (await kedge.cancel_run("done")).state == "completed"
    assert await kedge.log_frames() == before


async def test_cancelling_what_is_not_there_is_not_found(kedge: Kedge) -> None:
    with pytest.raises(NotFound):
        await kedge.cancel("nowhere")
    with pytest.raises(NotFound):
        await kedge.cancel_run("nothing")


async def test_cancel_is_durable_and_the_run_is_never_resumed(kedge: Kedge) -> None:
    """The server dies after the cancel was committed, before the end was written."""
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
    await kedge.cancel(session_id)
    assert (await kedge.run("r")).state == "running"
    await kedge.crash_and_start()
    end = await kedge.end("r")
    assert (end.cancelled, (await kedge.run("r")).attempt) == (True, 1)


async def test_cancel_commits_before_its_end_and_all_see_it(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait never", "r")
    await kedge.reached("never")
    await kedge.cancel(session_id)
    await kedge.end("r")
    log = await kedge.log()
    assert place_of(log, Run, run_id="r", cancel_requested=True) < place_of(log, RunEnd, run_id="r")


async def test_deleting_a_session_cancels_its_runs_and_waits_for_their_ends(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate wait never", "active")
    await kedge.send(session_id, "say no", "queued")
    await kedge.reached("never")
    await kedge.engine.delete_session(kedge.workspace_id, session_id)
    active, queued = await kedge.ends("active", "queued")
    assert (active.cancelled, queued.cancelled) == (True, True)
    log = await kedge.log()
    deleted = [event.seq for event in log if event.type == "session" and event.change == "deleted"]
    assert len(deleted) == 2  # its sub-agent's too
    assert place_of(log, RunEnd, run_id="active") < min(seq or 0 for seq in deleted)
    with pytest.raises(NotFound):
        await kedge.send(session_id, "say hello")

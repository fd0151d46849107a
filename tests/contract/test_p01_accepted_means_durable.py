"""P1: what was acknowledged is there after a crash at any instant; what was refused is not."""

from __future__ import annotations

import asyncio

import pytest

from kedge import failpoints
from kedge.protocol.errors import NotFound
from kedge.protocol.runs import Submission
from tests.support.harness import Kedge


async def test_accepted_run_is_found_after_a_crash(kedge: Kedge) -> None:
    session_id = await kedge.session()
    receipt = await kedge.send(session_id, "wait never", "kept")

    await kedge.crash_and_start()

    run = await kedge.run("kept")
    assert (run.seq, run.prompt, run.is_open) == (receipt.seq, "wait never", True)


async def test_every_acknowledged_run_of_a_burst_survives_the_crash(kedge: Kedge) -> None:
    sessions = [await kedge.session() for _ in range(4)]
    acknowledged: list[str] = []

    async def send(number: int) -> None:
        acknowledged.append((await kedge.send(sessions[number % 4], "say hello", f"r{number}")).run_id)

    burst = [asyncio.create_task(send(number)) for number in range(40)]
    await asyncio.wait(burst, return_when=asyncio.FIRST_COMPLETED)
    await kedge.crash_and_start()

    assert acknowledged
    for run_id in acknowledged:
        assert (await kedge.end(run_id)).text == "hello"


async def test_run_is_in_the_log_before_its_receipt_is_given(kedge: Kedge) -> None:
    session_id = await kedge.session()
    receipt = await kedge.send(session_id, "hang")
    accepted = (await kedge.log())[receipt.seq - 1]
    assert getattr(accepted.payload, "run_id", None) == receipt.run_id


async def test_refused_run_leaves_no_trace(kedge: Kedge) -> None:
    await kedge.session()
    before = await kedge.log_frames()
    with pytest.raises(NotFound):
        await kedge.send("nowhere", "say hello", "refused")

    assert await kedge.log_frames() == before
    with pytest.raises(NotFound):
        await kedge.run("refused")


async def test_failure_before_the_commit_leaves_no_run_and_the_same_id_can_be_sent_again(kedge: Kedge) -> None:
    session_id = await kedge.session()

    def break_down() -> None:
        raise RuntimeError("not even committed")

    failpoints.arm("accept.done", break_down)
    with pytest.raises(RuntimeError):
        await kedge.send(session_id, "say hello", "again")
    failpoints.disarm()
    await kedge.crash_and_start()

    with pytest.raises(NotFound):
        await kedge.run("again")
    receipt = await kedge.send(session_id, "say hello", "again")
    assert not receipt.replayed
    assert (await kedge.end("again")).text == "hello"


async def test_with_no_answer_the_same_run_id_tells_that_it_was_accepted(kedge: Kedge) -> None:
    session_id = await kedge.session()
    submission = Submission(session_id=session_id, prompt="say hello")
    unanswered = asyncio.create_task(kedge.engine.runs.accept(kedge.workspace_id, submission, run_id="lost"))
    await kedge.seen_run("lost", "queued")
    await kedge.crash_and_start()

    assert unanswered.done()
    receipt = await kedge.send(session_id, "say hello", "lost")
    assert receipt.replayed
    assert (await kedge.end("lost")).text == "hello"

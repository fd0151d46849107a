"""What was used, by step, run and session: each token once, whatever crashes, and a sub-agent's in its parent's run."""

from __future__ import annotations

import time

from kedge.protocol.messages import finish_of
from kedge.protocol.runs import Run, RunStatus, Usage
from tests.support.harness import Kedge


async def session_usage(kedge: Kedge, session_id: str) -> int:
    details = await kedge.store.session(kedge.workspace_id, session_id)
    assert details.usage == (await kedge.store.session_status(kedge.workspace_id, session_id)).usage
    return details.usage.output_tokens


async def status(kedge: Kedge, run_id: str) -> RunStatus:
    return await kedge.store.run(kedge.workspace_id, run_id)


async def child_of(kedge: Kedge, run_id: str) -> Run:
    event = await kedge.seen(lambda e: isinstance(e.payload, Run) and e.payload.parent_run_id == run_id)
    assert isinstance(event.payload, Run)
    return event.payload


async def test_a_step_says_what_it_used_and_run_and_session_the_sum(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say one; use 40; say two", "r1")
    await kedge.send(session_id, "say three", "r2")
    first, second = await kedge.ends("r1", "r2")
    assert (first.usage.output_tokens, second.usage.output_tokens) == (42, 1)
    assert (await status(kedge, "r1")).usage == first.usage
    assert [run.usage for run in await kedge.store.runs(kedge.workspace_id)] == [first.usage, second.usage]
    assert await session_usage(kedge, session_id) == 43
    finishes = [finish_of(m.parts) for m in await kedge.messages(session_id) if m.role == "assistant"]
    assert [finish and finish.usage for finish in finishes] == [Usage(output_tokens=1)] * 3


async def test_the_times_of_a_run_are_those_of_its_acceptance_start_and_end(kedge: Kedge) -> None:
    session_id = await kedge.session()
    began = time.time()
    await kedge.send(session_id, "wait go; say one", "r1")
    await kedge.send(session_id, "say two", "r2")
    await kedge.reached("go")
    first, second = await status(kedge, "r1"), await status(kedge, "r2")
    assert first.created_at is not None
    assert first.started_at is not None
    assert began - 1 <= first.created_at <= first.started_at <= time.time() + 1
    assert (first.ended_at, second.started_at, second.ended_at) == (None, None, None)
    kedge.gates.open("go")
    await kedge.ends("r1", "r2")
    first, second = await status(kedge, "r1"), await status(kedge, "r2")
    assert first.ended_at is not None
    assert second.started_at is not None
    assert second.ended_at is not None
    assert first.started_at is not None
    assert first.started_at <= first.ended_at <= second.started_at <= second.ended_at


async def test_runs_are_listed_by_the_beginning_of_their_ids(kedge: Kedge) -> None:
    session_id = await kedge.session()
    for run_id in ("fix-1", "fix-2", "fiz", "fix", "FIX"):
        await kedge.send(session_id, "say one", run_id)
    await kedge.ends("fix-1", "fix-2", "fiz", "fix", "FIX")
    listed = await kedge.store.runs(kedge.workspace_id, prefix="fix")
    assert [run.run_id for run in listed] == ["fix-1", "fix-2", "fix"]
    assert [run.run_id for run in await kedge.store.runs(kedge.workspace_id, prefix="fix-", limit=1)] == ["fix-2"]


async def test_usage_of_an_open_run_is_there_before_its_end(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say one; use 5; wait go", "r")
    await kedge.reached("go")
    assert (await status(kedge, "r")).usage.output_tokens == 6
    assert await session_usage(kedge, session_id) == 6
    kedge.gates.open("go")
    await kedge.end("r")


async def test_a_sub_agents_usage_is_in_its_parents_run_and_session_too(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate use 100 / delegate use 1000; say done", "parent")
    end = await kedge.end("parent")
    child = await child_of(kedge, "parent")
    grandchild = await child_of(kedge, child.run_id)
    # Each run has one step of its own beside what it counted; the parent has two.
    assert (await status(kedge, grandchild.run_id)).usage.output_tokens == 1000
    assert (await status(kedge, child.run_id)).usage.output_tokens == 1101
    assert end.usage.output_tokens == 1103
    assert await session_usage(kedge, session_id) == 1103
    assert await session_usage(kedge, child.session_id) == 1101


async def test_a_sub_agent_that_is_ended_with_its_parent_is_counted_in_it(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate use 100 / wait never", "parent")
    await kedge.reached("never")
    await kedge.cancel(session_id)
    end = await kedge.end("parent")
    assert (end.cancelled, end.usage.output_tokens) == (True, 101)
    assert await session_usage(kedge, session_id) == 101


async def test_a_crash_after_a_sub_agents_end_counts_it_once(kedge: Kedge) -> None:
    """The child's end and the sum in its parent are one transaction: either both are there, or none."""
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate use 100; wait go; say done", "parent")
    await kedge.reached("go")
    assert (await status(kedge, "parent")).usage.output_tokens == 101
    await kedge.crash_and_start()
    await kedge.reached("go")
    assert (await status(kedge, "parent")).usage.output_tokens == 101
    kedge.gates.open("go")
    assert (await kedge.end("parent")).usage.output_tokens == 102
    assert await session_usage(kedge, session_id) == 102


async def test_a_crash_while_a_sub_agent_works_counts_what_it_had_used_once(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate use 100 / wait never; say done", "parent")
    await kedge.reached("never")
    await kedge.crash_and_start()
    end = await kedge.end("parent")
    assert (end.text, end.usage.output_tokens) == ("done", 102)
    assert await session_usage(kedge, session_id) == 102


async def test_a_failed_run_says_why_to_whoever_asks_later(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "fail no paper", "r")
    end = await kedge.end("r")
    found = await status(kedge, "r")
    assert (found.state, found.error, found.code) == ("failed", end.error, end.code)

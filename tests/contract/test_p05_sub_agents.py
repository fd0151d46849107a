"""P5: a sub-agent's turn is a run of its own in a child session; it ends before its parent, however that ends."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from kedge import failpoints
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.protocol.events import AgentEvent
from kedge.protocol.runs import Run, RunEnd
from tests.support.harness import Kedge, place_of
from tests.support.processes import StubbornFamily, is_alive
from tests.support.reader import LIMIT_S
from tests.support.stores import StoreKind


async def child_of(kedge: Kedge, run_id: str) -> Run:
    event = await kedge.seen(lambda e: isinstance(e.payload, Run) and e.payload.parent_run_id == run_id)
    assert isinstance(event.payload, Run)
    return event.payload


async def test_sub_agent_is_a_run_of_its_own_and_its_text_is_the_result(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate say from below; say done", "parent")
    end = await kedge.end("parent")
    child = await child_of(kedge, "parent")
    assert end.text == "done"
    assert (child.kind, child.permissions) == ("agent", "ask")
    assert (await kedge.store.session(kedge.workspace_id, child.session_id)).parent_session_id == session_id
    results = await kedge.results(session_id)
    assert [result.content for result in results] == ["from below"]
    log = await kedge.log()
    assert place_of(log, RunEnd, run_id=child.run_id) < place_of(log, RunEnd, run_id="parent")


async def test_sub_agents_of_sub_agents_end_from_the_bottom_up(kedge: Kedge) -> None:
    async def nesting(ctx: TurnContext) -> None:
        if ctx.run.prompt == "0":
            await kedge.gates.wait("bottom")
        await ctx.delegate(str(int(ctx.run.prompt) - 1))

    kedge.turns["agent"] = kedge.turns["prompt"] = nesting
    session_id = await kedge.session()
    await kedge.send(session_id, "2", "top")
    await kedge.reached("bottom")
    middle = await child_of(kedge, "top")
    bottom = await child_of(kedge, middle.run_id)
    await kedge.cancel(session_id)
    ends = await kedge.ends("top", middle.run_id, bottom.run_id)
    assert all(end.cancelled for end in ends)
    log = await kedge.log()
    places = [place_of(log, RunEnd, run_id=run_id) for run_id in (bottom.run_id, middle.run_id, "top")]
    assert places == sorted(places)


async def test_child_is_cancelled_with_its_parent_and_ends_before_it(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate say half / wait never", "parent")
    await kedge.reached("never")
    child = await child_of(kedge, "parent")
    await kedge.cancel(session_id)
    parent_end, child_end = await kedge.ends("parent", child.run_id)
    assert (parent_end.cancelled, child_end.cancelled) == (True, True)
    log = await kedge.log()
    assert place_of(log, RunEnd, run_id=child.run_id) < place_of(log, RunEnd, run_id="parent")


async def test_child_is_cancelled_when_its_parent_fails_and_ends_before_it(kedge: Kedge) -> None:
    async def impatient(ctx: TurnContext) -> None:
        delegated = asyncio.create_task(ctx.delegate("wait never"))
        await kedge.gates.reached("never")
        assert not delegated.done()
        raise TurnFailed("no patience")

    kedge.turns["prompt"] = impatient
    await kedge.send(await kedge.session(), "go", "parent")
    assert (await kedge.end("parent")).error == "no patience"
    child = await child_of(kedge, "parent")
    end = await kedge.end(child.run_id)
    assert (end.cancelled, end.error) == (True, None)
    log = await kedge.log()
    assert place_of(log, RunEnd, run_id=child.run_id) < place_of(log, RunEnd, run_id="parent")


async def test_delegating_that_is_given_up_cancels_the_sub_agent_and_the_parent_goes_on(kedge: Kedge) -> None:
    async def impatient(ctx: TurnContext) -> None:
        delegated = asyncio.create_task(ctx.delegate("wait at work"))
        await kedge.gates.reached("at work")
        delegated.cancel()
        await kedge.gates.wait("go")

    kedge.turns["prompt"] = impatient
    await kedge.send(await kedge.session(), "go", "parent")
    child = await child_of(kedge, "parent")
    assert (await kedge.end(child.run_id)).cancelled
    kedge.gates.open("go")
    assert (await kedge.end("parent")).error is None


async def test_delegating_that_is_given_up_while_it_is_being_accepted_leaves_no_sub_agent_at_work(kedge: Kedge) -> None:
    entered, release = threading.Event(), threading.Event()

    def stall() -> None:
        entered.set()
        release.wait(LIMIT_S)

    async def impatient(ctx: TurnContext) -> None:
        failpoints.arm("accept.done", stall)
        delegated = asyncio.create_task(ctx.delegate("wait never"))
        await asyncio.to_thread(entered.wait, LIMIT_S)
        delegated.cancel()
        await asyncio.wait({delegated})
        failpoints.disarm()
        release.set()
        await kedge.gates.wait("go")

    kedge.turns["prompt"] = impatient
    await kedge.send(await kedge.session(), "go", "parent")
    child = await child_of(kedge, "parent")
    assert (await kedge.end(child.run_id)).cancelled
    kedge.gates.open("go")
    assert (await kedge.end("parent")).error is None


async def test_failure_of_a_sub_agent_is_a_result_and_its_error_names_it_alone(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate fail below; say went on", "parent")
    end = await kedge.end("parent")
    child = await child_of(kedge, "parent")
    assert (end.text, end.error) == ("went on", None)
    assert (await kedge.end(child.run_id)).error == "below"
    errors = [e.payload for e in await kedge.log() if isinstance(e.payload, AgentEvent)]
    assert [(error.run_id, error.session_id) for error in errors] == [(child.run_id, child.session_id)]
    results = await kedge.results(session_id)
    assert [(result.content, result.is_error) for result in results] == [("below", True)]


async def test_cancelling_the_child_alone_lets_the_parent_go_on(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), "delegate wait never; say went on", "parent")
    await kedge.reached("never")
    child = await child_of(kedge, "parent")
    await kedge.cancel_run(child.run_id)
    assert (await kedge.end(child.run_id)).cancelled
    assert (await kedge.end("parent")).text == "went on"


async def test_requests_of_a_sub_agent_show_on_the_parent(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate ask rm done / say removed; say ok", "parent")
    request = await kedge.asked()
    assert (request.run_id, request.session_id) == ("parent", session_id)
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "tui")
    assert (await kedge.end("parent")).text == "ok"
    assert (await kedge.end((await child_of(kedge, "parent")).run_id)).text == "removed"


async def test_cancelling_the_parent_resolves_the_requests_of_its_sub_agent(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate ask rm done", "parent")
    await kedge.asked()
    await kedge.cancel(session_id)
    assert (await kedge.end("parent")).cancelled
    assert await kedge.permissions() == []


async def test_sub_agents_need_no_slot_of_their_own(store_kind: StoreKind, tmp_path: Path) -> None:
    async with Kedge(store_kind, tmp_path, max_turns=1) as kedge:
        await kedge.send(await kedge.session(), "delegate delegate say deep; say done", "parent")
        assert (await kedge.end("parent")).text == "done"


async def test_parent_ends_only_after_the_processes_of_its_sub_agent(kedge: Kedge, tmp_path: Path) -> None:
    """P6 holds for the whole turn: the next run of the session must not meet what the cancelled one left running."""
    family = StubbornFamily(tmp_path)
    session_id = await kedge.session()
    await kedge.send(session_id, f"delegate process {family.command}", "parent")
    pids = await family.pids()
    await kedge.cancel(session_id)
    assert (await kedge.end("parent")).cancelled
    assert [pid for pid in pids if is_alive(pid)] == []

"""The mode of a run: its row shows it, and a switch holds for its whole turn, also after a crash."""

from __future__ import annotations

import pytest

from kedge.engine.turn import TurnContext
from kedge.protocol.errors import Conflict, NotFound
from kedge.protocol.events import Event
from kedge.protocol.messages import ToolCall
from kedge.protocol.requests import Answer, RequestResolution
from kedge.protocol.runs import Mode, Run, RunOptions
from tests.support.harness import Kedge
from tests.support.invariants import run_events


async def switch(kedge: Kedge, run_id: str, mode: Mode) -> Run:
    return await kedge.store.switch_mode(kedge.workspace_id, run_id, mode)


async def host_at_gate(kedge: Kedge, mode: Mode | None = "ask") -> str:
    session_id = await kedge.session()
    await kedge.send(session_id, "say one; wait go; say two", "host", options=RunOptions(mode=mode))
    await kedge.reached("go")
    return session_id


async def test_the_mode_that_was_sent_is_in_every_event_of_the_run(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say one", "planned", options=RunOptions(mode="plan"))
    await kedge.send(session_id, "say two", "plain")
    await kedge.ends("planned", "plain")
    modes = {run.run_id: run.mode for _, run in run_events(await kedge.log())}
    assert modes == {"planned": "plan", "plain": None}


async def test_a_switch_is_told_and_survives_a_crash(kedge: Kedge) -> None:
    await host_at_gate(kedge)
    assert (await switch(kedge, "host", "auto-edit")).mode == "auto-edit"
    told = [run.mode for _, run in run_events(kedge.watcher.log)]
    assert told == ["ask", "ask", "auto-edit"]
    before = len(await kedge.log())
    await switch(kedge, "host", "auto-edit")  # nothing changes
    assert len(await kedge.log()) == before
    await kedge.crash_and_start()
    assert (await kedge.seen_run("host", "running", attempt=2)).mode == "auto-edit"
    kedge.gates.open("go")
    await kedge.end("host")
    assert (await kedge.run("host")).mode == "auto-edit"


async def test_the_same_prompt_sent_again_is_the_same_run_after_a_switch(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge)
    await switch(kedge, "host", "plan")
    text = "say one; wait go; say two"
    again = await kedge.send(session_id, text, "host", options=RunOptions(mode="ask"))
    assert again.replayed
    with pytest.raises(Conflict):
        await kedge.send(session_id, text, "host", options=RunOptions(mode="plan"))


async def test_joined_runs_follow_whichever_is_named(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge)
    options = RunOptions(mode="ask")
    await kedge.send(session_id, "wait joined; say three", "joined", on_busy="steer", options=options)
    kedge.gates.open("go")
    await kedge.reached("joined")
    await switch(kedge, "joined", "yolo")
    assert [(await kedge.run(run_id)).mode for run_id in ("host", "joined")] == ["yolo", "yolo"]


async def test_a_prompt_joins_the_turn_whose_mode_it_has_now(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge)
    await switch(kedge, "host", "auto-edit")
    modes: dict[str, Mode] = {"same": "auto-edit", "other": "ask"}
    for run_id, mode in modes.items():
        await kedge.send(session_id, f"say {run_id}", run_id, on_busy="steer", options=RunOptions(mode=mode))
    kedge.gates.open("go")
    await kedge.ends("host", "same", "other")
    merged = [(await kedge.run(run_id)).merged_into for run_id in ("same", "other")]
    assert merged == ["host", None]


async def test_a_prompt_that_waits_to_join_follows_the_turn(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge)
    options = RunOptions(mode="ask")
    await kedge.send(session_id, "say three", "joins", on_busy="steer", options=options)
    await kedge.send(session_id, "say four", "waits", options=options)
    await switch(kedge, "host", "plan")
    kedge.gates.open("go")
    await kedge.ends("host", "joins", "waits")
    assert (await kedge.run("joins")).merged_into == "host"
    assert (await kedge.run("waits")).mode == "ask"


async def test_sub_agents_follow_those_at_work_and_those_that_come(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate wait inner; delegate say later", "host", options=RunOptions(mode="ask"))
    await kedge.reached("inner")
    await switch(kedge, "host", "plan")
    children = [run for run in await kedge.store.runs(kedge.workspace_id) if run.parent_run_id == "host"]
    assert [child.mode for child in children] == ["plan"]
    await switch(kedge, children[0].run_id, "auto-edit")  # a sub-agent names the turn that it works for
    assert (await kedge.run("host")).mode == "auto-edit"
    kedge.gates.open("inner")
    await kedge.end("host")
    children = [run for run in await kedge.store.runs(kedge.workspace_id) if run.parent_run_id == "host"]
    assert [child.mode for child in children] == ["auto-edit", "auto-edit"]


async def test_a_queued_run_starts_in_the_mode_that_it_was_switched_to(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge)
    await kedge.send(session_id, "say next", "next")
    await switch(kedge, "next", "plan")
    assert (await kedge.run("host")).mode == "ask"
    kedge.gates.open("go")
    assert (await kedge.seen_run("next", "running")).mode == "plan"


async def test_a_run_without_a_mode_to_switch_is_refused(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say done", "done")
    await kedge.end("done")
    await kedge.send(session_id, "wait go", "all", permissions="allow")
    await kedge.send(session_id, "wait go", "command", kind="shell")
    refusals: list[tuple[str, Mode, str]] = [
        ("done", "plan", "run_ended"),
        ("all", "ask", "no_mode"),
        ("command", "plan", "no_mode"),
    ]
    for run_id, mode, code in refusals:
        with pytest.raises(Conflict) as refused:
            await switch(kedge, run_id, mode)
        assert refused.value.code == code
    with pytest.raises(NotFound):
        await switch(kedge, "nobody", "plan")
    assert (await switch(kedge, "all", "plan")).mode == "plan"
    await kedge.cancel(session_id)
    with pytest.raises(Conflict):
        await switch(kedge, "all", "yolo")


async def test_a_pending_request_is_resolved_by_the_mode_that_allows_it(kedge: Kedge) -> None:
    async def turn(ctx: TurnContext) -> None:
        async def decide() -> Answer | None:
            return Answer(action="allow", by="mode") if await ctx.mode() == "auto-edit" else None

        message = await ctx.begin_message()
        await message.add(ToolCall("c1", "edit", "{}", finished=True))
        await message.finish("tool_use")
        answer = await ctx.ask_permission(
            message.id, "c1", tool="edit", action="write", description="edit a", params={}, decide=decide
        )
        result = await ctx.begin_tool_result(message.id, "c1", "edit")
        await result.finish(f"{answer.action} by {answer.by}")

    kedge.turns["prompt"] = turn
    session_id = await kedge.session()
    await kedge.send(session_id, "edit", "r1", options=RunOptions(mode="ask"))
    request = await kedge.asked()
    await switch(kedge, "r1", "plan")
    await switch(kedge, "r1", "auto-edit")

    def resolves(event: Event) -> bool:
        return isinstance(event.payload, RequestResolution) and event.payload.id == request.id

    resolution = (await kedge.seen(resolves)).payload
    assert isinstance(resolution, RequestResolution)
    assert (resolution.action, resolution.by) == ("allow", "mode")
    await kedge.end("r1")
    assert [result.content for result in await kedge.results(session_id)] == ["allow by mode"]
    receipt = await kedge.engine.answer_permission(kedge.workspace_id, request.id, "deny", "late")
    assert (receipt.resolved, receipt.by) == (False, "mode")

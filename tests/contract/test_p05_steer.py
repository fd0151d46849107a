"""P5, `steer`: a prompt joins the running turn at its next step boundary; from then on they are one turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import text_of
from kedge.protocol.runs import Run, RunEnd
from tests.support.harness import Kedge, place_of, states


async def host_at_gate(kedge: Kedge, rest: str, **fields: Any) -> str:
    """A session whose run `host` has made a step and waits at the gate `go`."""
    session_id = await kedge.session()
    await kedge.send(session_id, f"say one; wait go; {rest}", "host", **fields)
    await kedge.reached("go")
    return session_id


async def test_steered_prompt_joins_at_the_next_step_ahead_of_the_queue(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "say two")
    await kedge.send(session_id, "say queued", "queued")
    await kedge.send(session_id, "say three", "joined", on_busy="steer")
    kedge.gates.open("go")
    host, joined, queued = await kedge.ends("host", "joined", "queued")

    assert (host.text, joined.text, queued.text) == ("three", "three", "queued")
    assert host.message_id == joined.message_id
    assert (await kedge.run("joined")).merged_into == "host"
    log = await kedge.log()
    assert place_of(log, RunEnd, run_id="joined") == place_of(log, RunEnd, run_id="host") + 2
    shown = [(m.role, text_of(m.parts)) for m in await kedge.history(session_id)]
    assert shown[:5] == [
        ("user", "say one; wait go; say two"),
        ("assistant", "one"),
        ("assistant", "two"),
        ("user", "say three"),
        ("assistant", "three"),
    ]


async def test_usage_of_a_joined_turn_is_counted_once(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "say two")
    await kedge.send(session_id, "say three", "joined", on_busy="steer")
    kedge.gates.open("go")
    host, joined = await kedge.ends("host", "joined")
    assert (host.usage.output_tokens, joined.usage.output_tokens) == (3, 0)


async def test_several_steered_prompts_join_in_order_of_acceptance(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "say two")
    for number in range(3):
        await kedge.send(session_id, f"say j{number}", f"j{number}", on_busy="steer")
    kedge.gates.open("go")
    ends = await kedge.ends("host", "j0", "j1", "j2")
    assert {end.text for end in ends} == {"j2"}
    log = await kedge.log()
    places = [place_of(log, RunEnd, run_id=run_id) for run_id in ("host", "j0", "j1", "j2")]
    assert places == list(range(places[0], places[0] + 8, 2))


async def test_steer_that_comes_too_late_stays_queued_in_its_place(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "sleep 0")  # no step after the gate
    await kedge.send(session_id, "sleep 0", "before")
    await kedge.send(session_id, "say late", "late", on_busy="steer")
    await kedge.send(session_id, "say after", "after")
    kedge.gates.open("go")
    ends = await kedge.ends("host", "before", "late", "after")
    assert [end.text for end in ends] == ["one", "", "late", "after"]
    running = [run_id for run_id, state in states(await kedge.log()) if state == "running"]
    assert running == ["host", "before", "late", "after"]


async def test_steer_that_came_too_late_joins_no_other_turn_either(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "sleep 0")
    await kedge.send(session_id, "say before; say before still", "before")
    await kedge.send(session_id, "say between", "between")
    await kedge.send(session_id, "say late", "late", on_busy="steer")
    kedge.gates.open("go")
    ends = await kedge.ends("before", "between", "late")
    assert [end.text for end in ends] == ["before still", "between", "late"]
    assert (await kedge.run("late")).merged_into is None


async def test_steer_sent_while_the_turn_before_it_has_not_started_joins_that(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await asyncio.gather(
        kedge.send(session_id, "say one; say two", "host"),
        kedge.send(session_id, "say three", "joined", on_busy="steer"),
    )
    host, joined = await kedge.ends("host", "joined")
    assert (host.text, joined.text) == ("three", "three")


async def test_steer_at_an_idle_session_runs_by_itself(kedge: Kedge) -> None:
    receipt = await kedge.send(await kedge.session(), "say alone", on_busy="steer")
    assert (await kedge.end(receipt.run_id)).text == "alone"
    assert (await kedge.run(receipt.run_id)).merged_into is None


@pytest.mark.parametrize("other", [{"kind": "shell"}, {"model": "openai/other"}], ids=["kind", "model"])
async def test_steer_of_another_kind_or_model_is_queued(kedge: Kedge, other: dict[str, Any]) -> None:
    session_id = await host_at_gate(kedge, "say two", model="openai/one")
    await kedge.send(session_id, "say separately", "other", on_busy="steer", **other)
    kedge.gates.open("go")
    host, separate = await kedge.ends("host", "other")
    assert (host.text, separate.text) == ("two", "separately")
    assert (await kedge.run("other")).merged_into is None


async def test_a_command_never_joins_another_one(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "say two", kind="shell")
    await kedge.send(session_id, "say separately", "other", on_busy="steer", kind="shell")
    kedge.gates.open("go")
    host, separate = await kedge.ends("host", "other")
    assert (host.text, separate.text) == ("two", "separately")


async def test_steer_with_the_same_model_joins(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "say two", model="openai/one")
    await kedge.send(session_id, "say three", "joined", on_busy="steer", model="openai/one")
    kedge.gates.open("go")
    await kedge.end("joined")
    assert (await kedge.run("joined")).merged_into == "host"


@pytest.mark.parametrize("cancelled", ["host", "j1", "j2"])
async def test_cancelling_any_of_a_turn_ends_all_of_it_and_nothing_else(kedge: Kedge, cancelled: str) -> None:
    session_id = await host_at_gate(kedge, "say two; wait never")
    await kedge.send(session_id, "say j1", "j1", on_busy="steer")
    await kedge.send(session_id, "say j2", "j2", on_busy="steer")
    await kedge.send(session_id, "say next", "next")
    kedge.gates.open("go")
    await kedge.reached("never")
    assert (await kedge.cancel_run(cancelled)).cancel_requested

    ends = await kedge.ends("host", "j1", "j2")
    assert all(end.cancelled and end.error is None for end in ends)
    assert len({(end.message_id, end.text) for end in ends}) == 1
    log = await kedge.log()
    place = place_of(log, RunEnd, run_id="host")
    told = [getattr(event.payload, "run_id", "") for event in log[place - 2 : place + 4]]
    assert told == ["host", "host", "j1", "j1", "j2", "j2"]
    assert (await kedge.end("next")).text == "next"


async def test_cancelling_the_session_ends_the_whole_turn_once(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "say two; wait never")
    await kedge.send(session_id, "say j1", "j1", on_busy="steer")
    kedge.gates.open("go")
    await kedge.reached("never")
    await kedge.send(session_id, "say late", "late", on_busy="steer")
    assert sorted(await kedge.cancel(session_id)) == ["host", "j1", "late"]
    assert all(end.cancelled for end in await kedge.ends("host", "j1", "late"))


async def test_failure_of_the_host_fails_those_joined_with_the_same_text(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "say two; fail boom")
    await kedge.send(session_id, "say never", "joined", on_busy="steer")
    await kedge.send(session_id, "say next", "next")
    kedge.gates.open("go")
    host, joined, following = await kedge.ends("host", "joined", "next")
    assert (host.error, joined.error) == ("boom", "boom")
    assert host.message_id == joined.message_id
    errors = [e.payload for e in await kedge.log() if isinstance(e.payload, AgentEvent) and e.payload.type == "error"]
    assert [(error.run_id, error.error) for error in errors] == [("host", "boom"), ("joined", "boom")]
    assert following.text == "next"


async def test_joined_run_survives_a_crash_with_its_host(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "say two; wait crash; say three")
    await kedge.send(session_id, "say four", "joined", on_busy="steer")
    kedge.gates.open("go")
    await kedge.reached("crash")
    await kedge.crash_and_start()
    await kedge.reached("crash")
    kedge.gates.open("crash")
    host, joined = await kedge.ends("host", "joined")
    assert (host.text, joined.text) == ("four", "four")
    assert host.message_id == joined.message_id
    assert (await kedge.run("host")).attempt == 2


async def test_steered_run_shows_its_host_from_the_moment_it_joins(kedge: Kedge) -> None:
    session_id = await host_at_gate(kedge, "say two; wait never")
    await kedge.send(session_id, "say j1", "j1", on_busy="steer")
    kedge.gates.open("go")
    await kedge.reached("never")
    told = [e.payload for e in await kedge.log() if isinstance(e.payload, Run) and e.payload.run_id == "j1"]
    assert [(run.state, run.merged_into) for run in told] == [("queued", None), ("running", "host")]


async def test_steer_with_other_permissions_is_queued(kedge: Kedge) -> None:
    """A turn has one set of permissions: one that nobody may be asked about must not wait for a person."""
    session_id = await host_at_gate(kedge, "say two")
    await kedge.send(session_id, "ask rm it; say alone", "alone", on_busy="steer", permissions="deny")
    kedge.gates.open("go")
    host, alone = await kedge.ends("host", "alone")
    assert (host.text, alone.text) == ("two", "alone")
    assert (await kedge.run("alone")).merged_into is None

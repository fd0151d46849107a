"""P13: after a crash the next server decides every unfinished run, and guesses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import pytest

from kedge import failpoints
from kedge.engine.turn import TurnContext
from kedge.protocol.messages import Finish, Text, ToolCall, ToolResult, finish_of, text_of
from kedge.protocol.runs import Run
from kedge.store.port import ProcessRecord
from tests.support.harness import Kedge
from tests.support.processes import StubbornFamily, is_alive
from tests.support.reader import LIMIT_S


async def test_queued_runs_run_after_a_crash_in_their_order(kedge: Kedge) -> None:
    session_id = await kedge.session()
    for number in range(5):
        await kedge.send(session_id, f"wait go{number}; say {number}", f"r{number}")
    await kedge.reached("go0")
    await kedge.crash_and_start()
    for number in range(5):
        await kedge.reached(f"go{number}")
        kedge.gates.open(f"go{number}")
    ends = await kedge.ends(*(f"r{number}" for number in range(5)))
    assert [end.text for end in ends] == ["0", "1", "2", "3", "4"]
    assert [(await kedge.run(f"r{number}")).attempt for number in range(5)] == [2, 1, 1, 1, 1]


async def test_running_run_is_resumed_under_its_id_from_its_last_step(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say one; tool bash two; wait go; say three", "r")
    await kedge.reached("go")
    await kedge.crash_and_start()
    await kedge.reached("go")
    assert (await kedge.run("r")).attempt == 2
    kedge.gates.open("go")
    assert (await kedge.end("r")).text == "three"
    said = [text_of(m.parts) for m in await kedge.messages(session_id) if m.role == "assistant"]
    assert said == ["one", "", "three"]
    assert [result.content for result in await kedge.results(session_id)] == ["two "]
    assert [m.role for m in await kedge.messages(session_id)].count("user") == 1


async def test_a_call_whose_state_is_stored_goes_on_after_a_crash_and_after_a_shutdown(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "task build one two hang three hang four; say done", "r")
    await call_state_is(kedge, b"3")
    before = [message for message in await kedge.messages(session_id) if message.role == "tool"]
    await kedge.crash_and_start()
    await call_state_is(kedge, b"5")
    await kedge.restart()
    assert (await kedge.end("r")).text == "done"
    assert [result.content for result in await kedge.results(session_id)] == ["one two hang three hang four "]
    after = [message for message in await kedge.messages(session_id) if message.role == "tool"]
    assert [message.id for message in after] == [message.id for message in before]


async def call_state_is(kedge: Kedge, state: bytes) -> None:
    """Until the only call that goes on after a crash has stored this state."""
    stored = asyncio.Event()
    failpoints.watch(lambda name: stored.set() if name == "keep_call_state.published" else None)
    async with asyncio.timeout(LIMIT_S):
        while [await kedge.store.call_state(kept.message.id) for kept in await kedge.store.kept_calls()] != [state]:
            await stored.wait()
            stored.clear()


async def test_a_kept_call_of_a_canceled_run_ends_with_it_and_is_not_taken_up_again(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "task build one hang two; say done", "r")
    await call_state_is(kedge, b"2")
    await kedge.store.cancel_run(kedge.workspace_id, "r")
    assert (await kedge.end("r")).cancelled
    await kedge.crash_and_start()
    (result,) = await kedge.results(session_id)
    assert result.is_error
    assert await kedge.store.kept_calls() == []


async def test_run_that_takes_the_server_down_three_times_fails(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait never", "deadly")
    await kedge.send(session_id, "say next", "next")
    for attempt in (1, 2, 3):
        await kedge.seen_run("deadly", "running", attempt=attempt)
        await kedge.reached("never")
        await kedge.crash_and_start()
    end = await kedge.end("deadly")
    assert (end.code, end.cancelled) == ("interrupted", False)
    assert end.error is not None
    assert "3 times" in end.error
    assert (await kedge.run("deadly")).attempt == 3
    assert (await kedge.end("next")).text == "next"


async def test_orderly_shutdown_does_not_count_as_an_attempt(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), "wait go; say done", "r")
    for _ in range(5):
        await kedge.reached("go")
        await kedge.restart()
    await kedge.reached("go")
    assert (await kedge.run("r")).attempt == 1
    await kedge.crash_and_start()
    await kedge.reached("go")
    assert (await kedge.run("r")).attempt == 2
    kedge.gates.open("go")
    assert (await kedge.end("r")).text == "done"


async def test_shutdown_between_crashes_does_not_reset_the_count(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), "wait never", "r")
    for stop in (kedge.crash_and_start, kedge.restart, kedge.crash_and_start, kedge.restart, kedge.crash_and_start):
        await kedge.reached("never")
        await stop()
    assert (await kedge.end("r")).code == "interrupted"


async def test_call_in_flight_is_not_repeated_and_its_result_says_that_it_was_interrupted(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "tool deploy hang; say carried on", "r")
    await kedge.seen(lambda event: getattr(event.payload, "kind", "") == "tool_output")
    await kedge.crash_and_start()
    assert (await kedge.end("r")).text == "carried on"
    (result,) = await kedge.results(session_id)
    assert (result.name, result.is_error) == ("deploy", True)
    assert "nterrupted" in result.content
    assert "not repeated" in result.content


async def test_only_calls_that_had_not_started_are_run_after_a_crash(kedge: Kedge) -> None:
    executed: list[str] = []

    async def three_calls(ctx: TurnContext) -> None:
        history = [m for m in await ctx.history() if m.run_id == ctx.run.run_id]
        calls = [(m.id, p.id) for m in history for p in m.parts if isinstance(p, ToolCall)]
        if not calls:
            message = await ctx.begin_message()
            for name in ("a", "b", "c"):
                await message.add(ToolCall(name, "bash", "{}", True))
            await message.finish("tool_use")
            calls = [(message.id, name) for name in ("a", "b", "c")]
        answered = {p.tool_call_id for m in history for p in m.parts if isinstance(p, ToolResult)}
        for message_id, call_id in calls:
            if call_id not in answered:
                tool = await ctx.begin_tool_result(message_id, call_id, "bash")
                executed.append(call_id)
                if call_id == "b":
                    await kedge.gates.wait("never")
                await tool.finish("done")

    kedge.turns["prompt"] = three_calls
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    await kedge.reached("never")
    await kedge.crash_and_start()
    assert (await kedge.end("r")).error is None
    assert executed == ["a", "b", "c"]
    results = {result.tool_call_id: result.is_error for result in await kedge.results(session_id)}
    assert results == {"a": False, "b": True, "c": False}


async def test_text_in_flight_is_finished_as_interrupted_and_the_next_attempt_writes_a_new_message(
    kedge: Kedge,
) -> None:
    async def streaming(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        text = message.open(Text(""))
        text.write("as far as ")
        text.write("it got")
        await kedge.gates.wait("go")
        await message.finish("end_turn")

    kedge.turns["prompt"] = streaming
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    await kedge.reached("go")
    await kedge.crash()
    kedge.watcher.texts.clear()  # a crash may lose a quarter of a second of what was shown
    await kedge.start()
    await kedge.reached("go")
    kedge.gates.open("go")
    end = await kedge.end("r")
    _, first, second = await kedge.messages(session_id)
    assert finish_of(first.parts) == Finish("interrupted")
    assert "as far as it got".startswith(text_of(first.parts))
    assert (end.message_id, end.text) == (second.id, "as far as it got")
    assert [message.id for message in await kedge.history(session_id)].count(first.id) == 0


async def test_orderly_shutdown_keeps_every_character_in_flight(kedge: Kedge) -> None:
    async def streaming(ctx: TurnContext) -> None:
        starts.append(ctx.run.attempt)
        if len(starts) == 1:
            message = await ctx.begin_message()
            message.open(Text("")).write("every \U0001f600 character")
            await kedge.gates.wait("never")

    starts: list[int] = []
    kedge.turns["prompt"] = streaming
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    await kedge.reached("never")
    await kedge.seen(lambda event: event.type == "message_delta")
    await kedge.restart()
    await kedge.end("r")
    assert starts == [1, 1]
    first = (await kedge.messages(session_id))[1]
    assert first.parts == [Text("every \U0001f600 character"), Finish("interrupted")]


async def test_call_that_waited_for_a_person_goes_on_waiting_under_the_same_request(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done; say after", "r")
    request = await kedge.asked()
    for stop in (kedge.crash_and_start, kedge.restart):
        await stop()
        assert await kedge.permissions() == [request]
        await kedge.seen_run("r", "running", attempt=2)
    assert (await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "tui")).resolved
    assert (await kedge.end("r")).text == "after"
    assert [result.content for result in await kedge.results(session_id)] == ["done"]
    assert [event.type for event in await kedge.log()].count("permission_request") == 1


async def test_answer_that_the_dead_server_had_not_acted_on_is_not_asked_for_again(
    kedge: Kedge, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done; say after", "r")
    request = await kedge.asked()

    def lose(*_: object) -> None:
        return None

    monkeypatch.setattr(kedge.engine.answers, "resolve", lose)  # dies between the commit and the turn
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "tui")
    await kedge.crash_and_start()
    assert (await kedge.end("r")).text == "after"
    assert [result.content for result in await kedge.results(session_id)] == ["done"]
    assert [event.type for event in await kedge.log()].count("permission_request") == 1


async def test_sub_agent_of_a_crashed_run_ends_before_it_goes_on(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "delegate say half / wait never; say carried on", "parent")
    await kedge.reached("never")
    await kedge.crash_and_start()
    assert (await kedge.end("parent")).text == "carried on"
    child = next(e.payload for e in await kedge.log() if isinstance(e.payload, Run) and e.payload.parent_run_id)
    assert (await kedge.end(child.run_id)).cancelled
    (result,) = await kedge.results(session_id)
    assert "nterrupted" in result.content


async def test_processes_of_a_dead_server_are_killed_before_anything_runs(kedge: Kedge) -> None:
    family = StubbornFamily(kedge.data.parent)
    found: list[list[bool]] = []

    async def running(ctx: TurnContext) -> None:
        if ctx.run.attempt == 1:
            process = await asyncio.to_thread(subprocess.Popen, family.command.split(), start_new_session=True)
            started.append(process)
            await ctx.record_process(process.pid)
            pids.extend(await family.pids())
            await kedge.gates.wait("never")
        found.append([is_alive(pid) for pid in pids])

    pids: list[int] = []
    started: list[subprocess.Popen[bytes]] = []
    kedge.turns["prompt"] = running
    await kedge.send(await kedge.session(), "go", "r")
    await kedge.reached("never")
    await kedge.crash()
    assert [is_alive(pid) for pid in pids] == [True, True]
    await kedge.start()
    await kedge.end("r")
    assert found == [[False, False]]
    assert await asyncio.to_thread(started[0].wait, LIMIT_S) == -signal.SIGKILL


async def test_process_that_only_has_the_same_number_is_left_alone(kedge: Kedge) -> None:
    bystander = await asyncio.to_thread(subprocess.Popen, ["sleep", "1000"], start_new_session=True)

    async def recording(ctx: TurnContext) -> None:
        if ctx.run.attempt == 1:
            group = (await ctx.record_process(bystander.pid)).record
            await kedge.store.forget_process(group)
            await kedge.store.record_process(ctx._claim, ProcessRecord(group.pgid, group.started + "0"))
            await kedge.gates.wait("never")

    kedge.turns["prompt"] = recording
    await kedge.send(await kedge.session(), "go", "r")
    await kedge.reached("never")
    await kedge.crash_and_start()
    await kedge.end("r")
    assert is_alive(bystander.pid)
    os.killpg(bystander.pid, signal.SIGKILL)
    await asyncio.to_thread(bystander.wait, LIMIT_S)


async def test_session_that_was_being_deleted_is_gone_after_the_crash(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "stubborn 0.2", "r")
    await kedge.seen_run("r", "running")
    asyncio.ensure_future(kedge.engine.delete_session(kedge.workspace_id, session_id))  # noqa: RUF006 - dies with the server
    await kedge.seen(lambda event: getattr(event.payload, "cancel_requested", False))
    await kedge.crash_and_start()
    assert (await kedge.end("r")).cancelled
    await kedge.seen(lambda event: event.type == "session" and event.change == "deleted")
    assert await kedge.store.sessions(kedge.workspace_id) == []

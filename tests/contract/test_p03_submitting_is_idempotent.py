"""P3: the same run_id with the same body is the same run, whenever and however often it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from kedge.engine.turn import TurnContext
from kedge.protocol.errors import Conflict, NotFound
from kedge.protocol.runs import Attachment, RunOptions, Submission
from kedge.store.port import Retention
from tests.support.harness import Kedge
from tests.support.invariants import run_events

DAY_S = 86_400.0


async def test_same_run_id_sent_50_times_at_once_runs_once(kedge: Kedge) -> None:
    started: list[str] = []

    async def counting(ctx: TurnContext) -> None:
        started.append(ctx.run.run_id)

    kedge.turns["prompt"] = counting
    session_id = await kedge.session()
    receipts = await asyncio.gather(*(kedge.send(session_id, "go", "same") for _ in range(50)))
    await kedge.end("same")

    assert started == ["same"]
    assert sorted(receipt.replayed for receipt in receipts) == [False] + [True] * 49
    assert len({(receipt.run_id, receipt.session_id, receipt.seq) for receipt in receipts}) == 1
    assert [run.run_id for _, run in run_events(await kedge.log())].count("same") == 3  # queued, running, completed


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "say other"},
        {"on_busy": "steer"},
        {"permissions": "allow"},
        {"model": "openai/other"},
        {"kind": "shell"},
        {"attachments": (Attachment("a.txt", "text/plain", b"a"),)},
        {"options": RunOptions(max_steps=1)},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_same_run_id_with_another_body_is_a_conflict(kedge: Kedge, change: dict[str, Any]) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say hello", "taken")
    await kedge.end("taken")
    before = await kedge.log_frames()
    other: dict[str, Any] = {"prompt": "say hello", "run_id": "taken"} | change
    with pytest.raises(Conflict) as refused:
        await kedge.send(session_id, **other)

    assert refused.value.code == "run_id_conflict"
    assert await kedge.log_frames() == before


async def test_same_run_id_in_another_session_is_a_conflict_and_in_another_workspace_another_run(
    kedge: Kedge,
) -> None:
    await kedge.send(await kedge.session(), "say here", "name")
    with pytest.raises(Conflict):
        await kedge.send(await kedge.session(), "say here", "name")

    (kedge.data.parent / "elsewhere").mkdir()
    elsewhere = (await kedge.engine.open_workspace(kedge.data.parent / "elsewhere")).id
    session_id = (await kedge.engine.create_session(elsewhere)).id
    submission = Submission(session_id=session_id, prompt="say there")
    assert not (await kedge.engine.runs.accept(elsewhere, submission, run_id="name")).replayed
    async with asyncio.timeout(30):
        assert (await kedge.engine.runs.wait_end(elsewhere, "name")).text == "there"
    assert (await kedge.end("name")).text == "here"


async def test_defaults_spelled_out_are_the_same_body(kedge: Kedge) -> None:
    session_id = await kedge.session()
    first = await kedge.send(session_id, "say hello", "same")
    again = await kedge.send(session_id, "say hello", "same", on_busy="queue", permissions="ask", attachments=())
    assert (again.replayed, again.seq) == (True, first.seq)


async def test_replay_tells_the_current_state(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go", "first")
    await kedge.send(session_id, "say hello", "second")
    await kedge.reached("go")
    assert (await kedge.send(session_id, "wait go", "first")).state == "running"
    assert (await kedge.send(session_id, "say hello", "second")).state == "queued"
    kedge.gates.open("go")
    await kedge.ends("first", "second")
    assert (await kedge.send(session_id, "wait go", "first")).state == "completed"


async def test_replay_after_the_end_and_after_restart_and_crash_runs_nothing(kedge: Kedge) -> None:
    session_id = await kedge.session()
    first = await kedge.send(session_id, "say hello", "done")
    await kedge.end("done")
    for again in (kedge.restart, kedge.crash_and_start):
        await again()
        before = await kedge.log_frames()
        receipt = await kedge.send(session_id, "say hello", "done")
        assert (receipt.replayed, receipt.state, receipt.seq) == (True, "completed", first.seq)
        assert await kedge.log_frames() == before


async def test_replay_is_known_for_90_days_after_the_session_was_deleted(kedge: Kedge) -> None:
    session_id = await kedge.session()
    first = await kedge.send(session_id, "say hello", "old")
    await kedge.end("old")
    await kedge.engine.delete_session(kedge.workspace_id, session_id)
    assert (await kedge.send(session_id, "say hello", "old")).replayed

    kedge.clock.ahead_s = 89 * DAY_S
    await kedge.store.retain(Retention())
    await kedge.restart()
    receipt = await kedge.send(session_id, "say hello", "old")
    assert (receipt.replayed, receipt.state, receipt.seq) == (True, "completed", first.seq)
    with pytest.raises(Conflict):
        await kedge.send(session_id, "say other", "old")

    kedge.clock.ahead_s = 91 * DAY_S
    await kedge.store.retain(Retention())
    with pytest.raises(NotFound):
        await kedge.send(session_id, "say hello", "old")


async def test_replay_and_the_end_do_not_depend_on_retention_of_the_log(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say hello", "old")
    end = await kedge.end("old")
    kedge.clock.ahead_s = 365 * DAY_S
    await kedge.store.retain(Retention())
    page = await kedge.store.read_log(kedge.workspace_id, 0, 100)
    assert page.floor == page.head

    assert (await kedge.send(session_id, "say hello", "old")).replayed
    assert await kedge.end("old") == end
    assert [message.run_id for message in await kedge.messages(session_id)] == ["old", "old"]


async def test_run_without_a_name_gets_one(kedge: Kedge) -> None:
    session_id = await kedge.session()
    receipts = [await kedge.send(session_id, "say hello") for _ in range(3)]
    assert len({receipt.run_id for receipt in receipts}) == 3
    await kedge.ends(*(receipt.run_id for receipt in receipts))


class TestEnv:
    """The caller's variables reach the turn, are kept in memory only, and are no part of the body."""

    async def test_reaches_the_turn_and_is_no_part_of_the_body(self, kedge: Kedge) -> None:
        given: list[Mapping[str, str] | None] = []

        async def noting(ctx: TurnContext) -> None:
            given.append(ctx.env)

        kedge.turns["prompt"] = noting
        session_id = await kedge.session()
        await kedge.send(session_id, "go", "with", env={"WHO": "me"})
        assert (await kedge.send(session_id, "go", "with", env={"WHO": "you"})).replayed
        assert (await kedge.send(session_id, "go", "with")).replayed
        await kedge.send(session_id, "go", "without")
        await kedge.ends("with", "without")
        assert given == [{"WHO": "me"}, None]

    async def test_reaches_a_sub_agent(self, kedge: Kedge) -> None:
        given: list[Mapping[str, str] | None] = []

        async def noting(ctx: TurnContext) -> None:
            given.append(ctx.env)

        kedge.turns["agent"] = noting
        await kedge.send(await kedge.session(), "delegate go", "parent", env={"WHO": "me"})
        await kedge.end("parent")
        assert given == [{"WHO": "me"}]

    async def test_is_stored_nowhere_and_gone_after_a_crash(self, kedge: Kedge) -> None:
        given: list[Mapping[str, str] | None] = []

        async def noting(ctx: TurnContext) -> None:
            given.append(ctx.env)
            await kedge.gates.wait("go")

        kedge.turns["prompt"] = noting
        secret = "hunter2-and-then-some"
        await kedge.send(await kedge.session(), "go", "with", env={"API_KEY": secret})
        await kedge.reached("go")
        await kedge.crash_and_start()
        await kedge.reached("go")
        assert given == [{"API_KEY": secret}, None]
        kedge.gates.open("go")
        await kedge.end("with")
        await kedge.shutdown()
        assert not [path for path in kedge.data.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]

"""P5: the queue starts in its order, which any client can change; a queued prompt can be promoted."""

from __future__ import annotations

from random import Random, SystemRandom
from typing import Any

import pytest

from kedge.protocol.errors import Conflict, NotFound
from kedge.protocol.runs import Receipt, Run, RunOptions
from tests.support.harness import Kedge, states
from tests.support.invariants import run_events


async def queue_behind(kedge: Kedge, *run_ids: str, host: str = "say one; wait go; say two") -> str:
    """A session whose run `host` waits at the gate `go`, with these runs behind it."""
    session_id = await kedge.session()
    await kedge.send(session_id, host, "host")
    await kedge.reached("go")
    for run_id in run_ids:
        await kedge.send(session_id, f"say {run_id}", run_id)
    return session_id


async def order_of(kedge: Kedge, session_id: str) -> list[str]:
    return [run.run_id for run in (await kedge.store.session_status(kedge.workspace_id, session_id)).queue]


async def move(kedge: Kedge, session_id: str, run_id: str, before: str | None) -> list[str]:
    return [run.run_id for run in await kedge.store.move_queued(kedge.workspace_id, session_id, run_id, before)]


async def started(kedge: Kedge) -> list[str]:
    return [run_id for run_id, state in states(await kedge.log()) if state == "running"]


async def test_moved_prompts_run_in_their_new_order(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a", "b", "c")
    assert await move(kedge, session_id, "c", "a") == ["c", "a", "b"]
    assert await move(kedge, session_id, "a", None) == ["c", "b", "a"]
    kedge.gates.open("go")
    await kedge.ends("a", "b", "c")
    assert await started(kedge) == ["host", "c", "b", "a"]


async def test_a_prompt_that_comes_later_is_behind_all_that_were_moved(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a", "b")
    await move(kedge, session_id, "a", None)
    await kedge.send(session_id, "say c", "c")
    assert await order_of(kedge, session_id) == ["b", "a", "c"]


async def test_an_interrupt_is_ahead_of_a_queue_that_was_moved(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a", "b")
    await move(kedge, session_id, "b", "a")
    await kedge.send(session_id, "say now", "now", on_busy="interrupt")
    await kedge.ends("host", "now", "a", "b")
    assert await started(kedge) == ["host", "now", "b", "a"]


async def test_the_order_survives_a_crash_and_is_the_same_for_every_client(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a", "b", "c")
    await move(kedge, session_id, "c", "b")
    told = {run.run_id: run for _, run in run_events(kedge.watcher.log)}
    by_place = sorted((told[run_id] for run_id in "abc"), key=lambda run: run.queue_place)
    assert [run.run_id for run in by_place] == ["a", "c", "b"]
    await kedge.crash_and_start()
    assert await order_of(kedge, session_id) == ["a", "c", "b"]
    kedge.gates.open("go")
    await kedge.ends("a", "b", "c")
    assert (await started(kedge))[-3:] == ["a", "c", "b"]


async def test_moving_again_to_the_same_place_changes_nothing(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a", "b")
    await move(kedge, session_id, "b", "a")
    before = len(await kedge.log())
    assert await move(kedge, session_id, "b", "a") == ["b", "a"]
    assert await move(kedge, session_id, "a", "a") == ["b", "a"]
    assert len(await kedge.log()) == before


async def test_only_queued_prompts_of_the_session_can_be_moved_or_promoted(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a")
    other = await kedge.session()
    place = (kedge.workspace_id, session_id)
    for run_id, before in (("host", None), ("a", "host")):
        with pytest.raises(Conflict, match="not queued"):
            await kedge.store.move_queued(*place, run_id, before)
    with pytest.raises(Conflict, match="not queued"):
        await kedge.store.promote_queued(*place, "host", "steer")
    for session, run_id in ((session_id, "nobody"), (other, "a")):
        with pytest.raises(NotFound):
            await kedge.store.move_queued(kedge.workspace_id, session, run_id, None)
        with pytest.raises(NotFound):
            await kedge.store.promote_queued(kedge.workspace_id, session, run_id, "steer")


async def test_a_promoted_prompt_joins_the_running_turn_ahead_of_the_queue(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a", "b")
    run = await kedge.store.promote_queued(kedge.workspace_id, session_id, "b", "steer")
    assert (run.on_busy, run.state) == ("steer", "queued")
    assert await order_of(kedge, session_id) == ["b", "a"]
    kedge.gates.open("go")
    host, a, b = await kedge.ends("host", "a", "b")
    assert (host.text, b.text, a.text) == ("b", "b", "a")
    assert (await kedge.run("b")).merged_into == "host"


async def test_a_promoted_prompt_survives_a_crash(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a", "b")
    await kedge.store.promote_queued(kedge.workspace_id, session_id, "b", "steer")
    await kedge.crash_and_start()
    kedge.gates.open("go")
    await kedge.ends("host", "a", "b")
    assert (await kedge.run("b")).merged_into == "host"


async def test_a_promoted_prompt_that_joined_no_turn_is_the_next_one(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a", "b", "c", host="say one; wait go; sleep 0")
    await kedge.store.promote_queued(kedge.workspace_id, session_id, "c", "steer")
    await kedge.store.promote_queued(kedge.workspace_id, session_id, "b", "steer")
    kedge.gates.open("go")
    await kedge.ends("a", "b", "c")
    assert await started(kedge) == ["host", "c", "b", "a"]


@pytest.mark.parametrize(
    "fields",
    [{"permissions": "deny"}, {"model": "a/b"}, {"options": RunOptions(max_steps=3)}, {"kind": "summarize"}],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_prompt_that_cannot_join_is_told_so_and_stays_in_its_place(
    kedge: Kedge, fields: dict[str, Any]
) -> None:
    session_id = await queue_behind(kedge, "a")
    await kedge.send(session_id, "say other", "other", **fields)
    with pytest.raises(Conflict) as refused:
        await kedge.store.promote_queued(kedge.workspace_id, session_id, "other", "steer")
    assert refused.value.code == "cannot_join"
    assert await order_of(kedge, session_id) == ["a", "other"]


async def test_a_promoted_prompt_gets_the_mode_of_the_turn(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge)
    await kedge.send(session_id, "say planned", "planned", options=RunOptions(mode="plan"))
    await kedge.store.switch_mode(kedge.workspace_id, "host", "auto-edit")
    run = await kedge.store.promote_queued(kedge.workspace_id, session_id, "planned", "steer")
    assert run.mode == "auto-edit"
    kedge.gates.open("go")
    await kedge.ends("host", "planned")
    assert (await kedge.run("planned")).merged_into == "host"


async def test_a_prompt_promoted_to_an_interrupt_ends_the_turn_and_starts_next(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a", "b", "c")
    run = await kedge.store.promote_queued(kedge.workspace_id, session_id, "c", "interrupt")
    assert run.on_busy == "interrupt"
    host, *_ = await kedge.ends("host", "c", "a", "b")
    assert host.cancelled
    assert await started(kedge) == ["host", "c", "a", "b"]


async def test_the_receipt_of_a_promoted_prompt_stays_the_same(kedge: Kedge) -> None:
    session_id = await queue_behind(kedge, "a", "b")
    await move(kedge, session_id, "b", "a")
    await kedge.store.promote_queued(kedge.workspace_id, session_id, "b", "steer")
    again = await kedge.send(session_id, "say b", "b")
    assert isinstance(again, Receipt)
    assert again.replayed
    with pytest.raises(Conflict):
        await kedge.send(session_id, "say b", "b", on_busy="steer")


async def test_any_changes_of_the_queue_with_crashes_between_give_the_order_that_was_asked_for(kedge: Kedge) -> None:
    seed = SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = Random(seed)
    session_id = await kedge.session()
    await kedge.send(session_id, "limit 1000000", "host")  # while a run waits for its provider a crash is no attempt
    await kedge.seen(lambda event: isinstance(event.payload, Run) and event.payload.waiting is not None)
    wanted: list[str] = []
    for number in range(60):
        match rng.choices(("send", "move", "promote", "drop", "crash"), (5, 12, 2, 2, 2))[0]:
            case "send" if len(wanted) < 8:
                wanted.append(f"r{number}")
                await kedge.send(session_id, f"say r{number}", wanted[-1])
            case "move" if wanted:
                run_id, before = rng.choice(wanted), rng.choice([*wanted, None])
                if before != run_id:
                    wanted.remove(run_id)
                    wanted.insert(len(wanted) if before is None else wanted.index(before), run_id)
                assert await move(kedge, session_id, run_id, before) == wanted
            case "promote" if len(wanted) > 1 and not steered(kedge, wanted):
                wanted.insert(0, wanted.pop())
                await kedge.store.promote_queued(kedge.workspace_id, session_id, wanted[0], "steer")
            case "drop" if wanted:
                await kedge.store.drop_queued(kedge.workspace_id, session_id, wanted[-1])
                del wanted[-1]
            case "crash":
                await kedge.crash_and_start()
                await kedge.seen_run("host", "running")
            case _:
                pass
        assert await order_of(kedge, session_id) == wanted
    await kedge.cancel_run("host")
    for run_id in wanted:
        await kedge.end(run_id)
    assert (await started(kedge))[1:] == wanted


def steered(kedge: Kedge, run_ids: list[str]) -> bool:
    return any(run.on_busy == "steer" for _, run in run_events(kedge.watcher.log) if run.run_id in run_ids)

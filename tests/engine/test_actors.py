"""What comes in the moment in which a session's actor starts, leaves or fails: no prompt and no cancel is forgotten.

The writer commits what waits for it in groups, and an actor hears of its own transaction after the whole group. Here it
is held, so that the other transaction gets into the group right behind the actor's.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from kedge import failpoints
from kedge.engine import actors
from kedge.store.port import Started
from tests.support.harness import Kedge
from tests.support.holding import LIMIT_S, hold_at


async def held_before_next_start(kedge: Kedge, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the first run, which waits at the gate "go", end; return when the actor waits for its next `start`, which is
    not written before the returned event is set."""
    asked, start = asyncio.Event(), kedge.store.start

    async def watched(workspace_id: str, session_id: str) -> Started | None:
        asked.set()
        return await start(workspace_id, session_id)

    finishing, finish = hold_at("finish.done")
    creating, create = hold_at("create_session.begin")
    kedge.gates.open("go")
    await finishing.wait()
    making = asyncio.create_task(kedge.session())  # comes next, and keeps the writer busy
    await asyncio.sleep(0)
    monkeypatch.setattr(kedge.store, "start", watched)
    finish.set()
    async with asyncio.timeout(LIMIT_S):
        await creating.wait()
        await asked.wait()
    making.add_done_callback(lambda made: made.result())
    return create


async def test_a_prompt_that_comes_as_the_session_falls_idle_is_not_forgotten(
    kedge: Kedge, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await kedge.session()
    await kedge.send(session, "wait go", "first")
    await kedge.reached("go")
    go = await held_before_next_start(kedge, monkeypatch)
    sending = asyncio.create_task(kedge.send(session, "say here", "second"))
    await asyncio.sleep(0)
    go.set()
    await sending
    assert (await kedge.end("second")).text == "here"


@pytest.mark.parametrize("whole", [False, True], ids=["run", "session"])
async def test_a_cancel_that_comes_as_the_second_run_starts_ends_it(
    kedge: Kedge, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    session = await kedge.session()
    await kedge.send(session, "wait go", "first")
    await kedge.send(session, "hang", "second")
    await kedge.reached("go")
    go = await held_before_next_start(kedge, monkeypatch)
    cancelling = asyncio.create_task(kedge.cancel(session) if whole else kedge.cancel_run("second"))
    await asyncio.sleep(0)
    go.set()
    await cancelling
    assert (await kedge.end("second")).cancelled
    await kedge.send(session, "say next", "third")
    assert (await kedge.end("third")).text == "next", "the cancel hit nothing that came after it"


async def test_another_actor_takes_over_after_one_failed(kedge: Kedge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "RESTART_S", 0.2)
    tried: list[float] = []

    def fail_twice() -> None:
        tried.append(time.monotonic())
        if len(tried) <= 2:
            raise RuntimeError("a mistake of ours")

    failpoints.arm("start.begin", fail_twice)
    session = await kedge.session()
    await kedge.send(session, "say one", "first")  # nothing else comes that could wake another
    assert (await kedge.end("first")).text == "one"
    assert tried[2] - tried[0] >= 2 * 0.2, "not in a tight loop"

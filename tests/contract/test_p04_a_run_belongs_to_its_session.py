"""P4: a run is not the request's, the connection's or the client's: all of them may go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kedge.engine.turn import TurnContext
from tests.support.harness import Kedge
from tests.support.reader import Reader


async def test_run_goes_on_when_its_caller_goes_away_right_after_the_commit(kedge: Kedge) -> None:
    session_id = await kedge.session()
    caller = asyncio.create_task(kedge.send(session_id, "say one; wait go; say two", "left"))
    await kedge.seen_run("left", "queued")
    caller.cancel()
    await asyncio.wait({caller})
    await kedge.reached("go")
    kedge.gates.open("go")
    assert (await kedge.end("left")).text == "two"


async def test_caller_that_goes_away_before_the_answer_leaves_a_whole_run_with_its_env(kedge: Kedge) -> None:
    given: list[Mapping[str, str] | None] = []

    async def noting(ctx: TurnContext) -> None:
        given.append(ctx.env)

    kedge.turns["prompt"] = noting
    session_id = await kedge.session()
    caller = asyncio.create_task(kedge.send(session_id, "go", "left", env={"WHO": "me"}))
    await asyncio.sleep(0)  # the transaction is on its way, and its caller is not there any more
    caller.cancel()
    await asyncio.wait({caller})
    await kedge.seen_run("left", "completed")
    assert caller.cancelled()
    assert given == [{"WHO": "me"}]


async def test_run_goes_on_when_its_last_reader_and_its_waiter_leave(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say one; wait go; say two", "left")
    reading = asyncio.create_task(kedge.read(reader := Reader()))
    waiting = asyncio.create_task(kedge.engine.wait(kedge.workspace_id, "left"))
    await reader.event(lambda event: event.type == "message_delta" or event.type == "caught_up")
    await kedge.reached("go")
    for task in (reading, waiting):
        task.cancel()
    await asyncio.wait({reading, waiting})
    kedge.gates.open("go")
    assert (await kedge.end("left")).text == "two"


async def test_deleting_a_session_goes_on_when_its_caller_leaves(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "hang", "last")
    await kedge.seen_run("last", "running")
    caller = asyncio.create_task(kedge.engine.delete_session(kedge.workspace_id, session_id))
    await kedge.seen(lambda event: getattr(event.payload, "cancel_requested", False))
    caller.cancel()
    assert (await kedge.end("last")).cancelled
    await kedge.seen(lambda event: event.type == "session" and event.change == "deleted")
    await asyncio.wait({caller})

"""While a session's files are being restored: its sub-agents take no prompt, and it is not deleted half-way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest

from kedge import failpoints
from kedge.engine.turn import TurnContext
from kedge.protocol.errors import Conflict, NotFound
from tests.engine.undo_helpers import do
from tests.support.file_turn import FileTurn
from tests.support.harness import Kedge

Ask = Callable[[], Awaitable[object]]


@pytest.fixture
def during_the_undo() -> Generator[Callable[[Ask], asyncio.Future[Conflict]]]:
    """Calls once, while files are being restored, and holds the undo until there is an answer."""

    def arm(ask: Ask) -> asyncio.Future[Conflict]:
        loop = asyncio.get_running_loop()
        refused: asyncio.Future[Conflict] = loop.create_future()

        async def call() -> None:
            with pytest.raises(Conflict) as error:
                await ask()
            refused.set_result(error.value)

        def hold() -> None:
            failpoints.disarm()
            asyncio.run_coroutine_threadsafe(call(), loop).result(20)

        failpoints.arm("undo.path", hold)
        return refused

    yield arm
    failpoints.disarm()


async def delegated(kedge: Kedge, turn: FileTurn, root: Path) -> tuple[str, str]:
    """A session, and that of a sub-agent in it which made a file."""
    kedge.turns["agent"] = turn
    turn.by_tool("sub task", root / "made", b"by the sub-agent")
    prompt = kedge.turns["prompt"]

    async def delegating(ctx: TurnContext) -> None:
        if ctx.run.prompt == "delegate it":
            await ctx.delegate("sub task")
        else:
            await prompt(ctx)

    kedge.turns["prompt"] = delegating
    session = await kedge.session()
    await do(kedge, session, "delegate it")
    (child,) = [s for s in await kedge.store.sessions(kedge.workspace_id) if s.parent_session_id == session]
    return session, child.id


async def test_a_sub_agent_takes_no_prompt_while_its_parent_is_undone_or_redone(
    kedge: Kedge, turn: FileTurn, root: Path, during_the_undo: Callable[[Ask], asyncio.Future[Conflict]]
) -> None:
    session, child = await delegated(kedge, turn, root)
    for rewind in (kedge.engine.undos.undo, kedge.engine.undos.redo):
        refused = during_the_undo(lambda: kedge.send(child, "too early"))
        await rewind(kedge.workspace_id, session)
        assert (await refused).code == "session_busy"
        assert "being restored" in (await refused).message
    await do(kedge, child, "in time")


async def test_a_parent_takes_prompts_while_its_sub_agent_is_undone(kedge: Kedge, turn: FileTurn, root: Path) -> None:
    session, child = await delegated(kedge, turn, root)
    loop = asyncio.get_running_loop()
    sent = threading.Event()

    def send() -> None:
        failpoints.disarm()
        asyncio.run_coroutine_threadsafe(kedge.send(session, "meanwhile", "meanwhile"), loop).result(20)
        sent.set()

    failpoints.arm("undo.path", send)
    try:
        await kedge.engine.undos.undo(kedge.workspace_id, child)
    finally:
        failpoints.disarm()
    assert sent.is_set()
    assert (await kedge.end("meanwhile")).error is None


async def test_a_workspace_is_not_deleted_while_files_are_restored(
    kedge: Kedge, turn: FileTurn, root: Path, during_the_undo: Callable[[Ask], asyncio.Future[Conflict]]
) -> None:
    turn.by_tool("edit", root / "a", b"two")
    session = await kedge.session()
    await do(kedge, session, "edit")
    refused = during_the_undo(lambda: kedge.engine.delete_workspace(kedge.workspace_id))
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert (await refused).code == "workspace_busy"
    assert not (root / "a").exists()


async def test_a_session_that_is_deleted_in_an_undo_goes_when_its_files_are_restored(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    """Its row says what is left to do after a crash, and goes with the session."""
    turn.by_command("edit", lambda: [(root / name).write_text("two") for name in ("a", "b")])
    session = await kedge.session()
    await do(kedge, session, "edit")
    loop = asyncio.get_running_loop()
    deleting: list[asyncio.Task[None]] = []

    async def delete() -> None:
        deleting.append(loop.create_task(kedge.engine.delete_session(kedge.workspace_id, session)))
        while await is_there():
            pass

    async def is_there() -> bool:
        try:
            await kedge.store.session(kedge.workspace_id, session)
        except NotFound:
            return False
        return True

    def hold() -> None:
        failpoints.disarm()
        asyncio.run_coroutine_threadsafe(delete(), loop).result(20)
        assert not deleting[0].done()
        assert asyncio.run_coroutine_threadsafe(kedge.store.files.unfinished_undos(), loop).result(20)

    failpoints.arm("undo.path", hold)
    try:
        await kedge.engine.undos.undo(kedge.workspace_id, session)
    finally:
        failpoints.disarm()
    await deleting[0]
    assert list(root.glob("[ab]")) == []
    assert await kedge.store.files.unfinished_undos() == []

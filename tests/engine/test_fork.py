"""A fork: a new session that goes on from any message of another, with or without its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.engine.turn import TurnContext
from kedge.models.wires.history import Abilities, valid_history
from kedge.protocol.errors import Conflict
from kedge.protocol.files import FilesConflict
from kedge.protocol.messages import Message, ToolCall, text_of
from kedge.protocol.runs import Usage
from tests.engine.undo_helpers import do
from tests.support.file_turn import FileTurn, tree_of
from tests.support.harness import Kedge


async def tool_round(ctx: TurnContext) -> None:
    """An answer with two calls, their results, and a last word."""
    answer = await ctx.begin_message(model="test/model")
    for name in ("one", "two"):
        await answer.add(ToolCall(name, "look", "{}", True))
    await answer.finish("tool_use", usage=Usage(input_tokens=5))
    for name in ("one", "two"):
        await (await ctx.begin_tool_result(answer.id, name, "look")).finish(f"result {name}")
    await (await ctx.begin_message(model="test/model")).finish("end_turn")


def shape(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, text_of(message.parts)) for message in messages]


async def test_a_fork_has_all_that_was_said_under_ids_of_its_own(kedge: Kedge) -> None:
    kedge.turns["prompt"] = tool_round
    session = await kedge.session("a talk")
    await do(kedge, session, "first")
    fork = await kedge.engine.undos.fork(kedge.workspace_id, session)
    mine, theirs = await kedge.messages(session), await kedge.messages(fork.id)
    assert (fork.title, fork.parent_session_id) == ("a talk (fork)", None)
    assert shape(theirs) == shape(mine)
    assert [m.parts for m in theirs] == [m.parts for m in mine]
    assert not {m.id for m in theirs} & {m.id for m in mine}
    assert not {m.run_id for m in theirs} & {m.run_id for m in mine}, "no run id is used twice"
    assert (await kedge.store.session(kedge.workspace_id, fork.id)).usage == Usage()
    await do(kedge, fork.id, "second")
    assert shape(await kedge.messages(session)) == shape(mine), "the other stays as it was"
    assert [text for role, text in shape(await kedge.messages(fork.id)) if role == "user"] == ["first", "second"]


async def test_a_fork_at_every_message_has_a_history_that_models_take(kedge: Kedge) -> None:
    kedge.turns["prompt"] = tool_round
    session = await kedge.session()
    await do(kedge, session, "first")
    messages = await kedge.messages(session)
    assert [m.role for m in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    for count, message in enumerate(messages, 1):
        fork = await kedge.engine.undos.fork(kedge.workspace_id, session, message.id)
        copied = await kedge.messages(fork.id)
        assert shape(copied) == shape(messages[:count])
        sent = valid_history(await kedge.store.history(kedge.workspace_id, fork.id), Abilities())
        calls = [p.id for m in sent for p in m.parts if isinstance(p, ToolCall)]
        assert len([m for m in sent if m.role == "tool"]) == len(calls), "each call has its result"
        await do(kedge, fork.id, "go on")


async def test_a_fork_with_its_files_brings_them_back_and_can_go_further_back(kedge: Kedge, root: Path) -> None:
    turn = kedge.turns["prompt"] = FileTurn()
    trees = [tree_of(root)]
    session = await kedge.session()
    for name in ("one", "two", "three"):
        turn.by_tool(name, root / "file", name.encode())
        await do(kedge, session, name)
        trees.append(tree_of(root))
    last_of_two = (await kedge.messages(session))[3]
    fork = await kedge.engine.undos.fork(kedge.workspace_id, session, last_of_two.id, with_files=True)
    assert tree_of(root) == trees[2]
    assert [(file.path, file.status) for file in fork.files] == [("file", "modified")]
    await kedge.engine.undos.undo(kedge.workspace_id, fork.id)
    assert tree_of(root) == trees[1], "what was said in the fork is undone there"
    await kedge.engine.undos.redo(kedge.workspace_id, fork.id)
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert tree_of(root) == trees[3], "and the other session takes its files back"
    assert len([m for m in await kedge.messages(session) if m.role == "user"]) == 3


async def test_a_fork_with_files_overwrites_nobodys_work_and_one_without_touches_none(kedge: Kedge, root: Path) -> None:
    turn = kedge.turns["prompt"] = FileTurn()
    turn.by_tool("edit", root / "file", b"ours")
    session = await kedge.session()
    await do(kedge, session, "look")
    await do(kedge, session, "edit")
    first = (await kedge.messages(session))[0]
    (root / "file").write_text("a person's")
    with pytest.raises(FilesConflict):
        await kedge.engine.undos.fork(kedge.workspace_id, session, first.id, with_files=True)
    assert len(await kedge.store.sessions(kedge.workspace_id)) == 1
    await kedge.engine.undos.fork(kedge.workspace_id, session, first.id)
    assert (root / "file").read_text() == "a person's"


async def test_a_session_that_works_can_be_forked_at_what_is_finished(kedge: Kedge) -> None:
    session = await kedge.session()
    receipt = await kedge.send(session, "wait busy")
    await kedge.reached("busy")
    fork = await kedge.engine.undos.fork(kedge.workspace_id, session)
    assert shape(await kedge.messages(fork.id))[0] == ("user", "wait busy")
    await kedge.cancel(session)
    await kedge.end(receipt.run_id)


async def test_an_empty_session_has_nothing_to_fork(kedge: Kedge) -> None:
    with pytest.raises(Conflict) as refused:
        await kedge.engine.undos.fork(kedge.workspace_id, await kedge.session())
    assert refused.value.code == "nothing_to_fork"

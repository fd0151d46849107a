"""The model and the effort of a session: durable, told, taken by runs that name none, when they start."""

from __future__ import annotations

import pytest

from kedge.engine.turn import TurnContext
from kedge.protocol.errors import Conflict, Invalid, NotFound
from kedge.protocol.runs import RunOptions
from kedge.protocol.sessions import Session, SessionChange
from tests.support.harness import Kedge

Choice = tuple[str | None, str | None]


def watched(kedge: Kedge) -> list[Choice]:
    """What each turn was to use; one whose prompt is `wait` waits at the gate."""
    seen: list[Choice] = []

    async def turn(ctx: TurnContext) -> None:
        seen.append((ctx.model, ctx.effort))
        if ctx.run.prompt == "wait":
            await kedge.gates.wait("gate")

    kedge.turns["prompt"] = turn
    return seen


async def change(kedge: Kedge, session_id: str, change: SessionChange) -> Session:
    return await kedge.engine.change_session(kedge.workspace_id, session_id, change)


async def test_a_choice_is_told_shown_and_outlives_a_crash(kedge: Kedge) -> None:
    session_id = await kedge.session("mine")
    changed = await change(kedge, session_id, SessionChange(model="a/b", effort="high"))
    assert (changed.title, changed.model, changed.effort) == ("mine", "a/b", "high")
    await change(kedge, session_id, SessionChange(title="yours"))
    await kedge.crash_and_start()
    found = await kedge.store.session(kedge.workspace_id, session_id)
    assert (found.title, found.model, found.effort) == ("yours", "a/b", "high")
    assert (await kedge.store.sessions(kedge.workspace_id))[0].model == "a/b"
    assert (await kedge.store.session_status(kedge.workspace_id, session_id)).effort == "high"
    told = [event.payload for event in await kedge.log() if isinstance(event.payload, Session)]
    assert [(each.title, each.model) for each in told] == [("mine", None), ("mine", "a/b"), ("yours", "a/b")]


async def test_null_clears_and_what_is_not_named_stays(kedge: Kedge) -> None:
    session_id = await kedge.session("mine")
    await change(kedge, session_id, SessionChange(model="a/b", effort="high"))
    cleared = await change(kedge, session_id, SessionChange(model=None))
    assert (cleared.title, cleared.model, cleared.effort) == ("mine", None, "high")
    before = len(await kedge.log())
    assert await change(kedge, session_id, SessionChange()) == cleared
    assert len(await kedge.log()) == before, "nothing changed, and nobody was told"


async def test_a_run_uses_its_own_then_that_of_its_session(kedge: Kedge) -> None:
    seen = watched(kedge)
    session_id = await kedge.session()
    await kedge.end((await kedge.send(session_id, "go")).run_id)
    await change(kedge, session_id, SessionChange(model="a/b", effort="high"))
    await kedge.end((await kedge.send(session_id, "go")).run_id)
    own = RunOptions(effort="low")
    await kedge.end((await kedge.send(session_id, "go", model="c/d", options=own)).run_id)
    await kedge.end((await kedge.send(session_id, "go")).run_id)
    assert seen == [(None, None), ("a/b", "high"), ("c/d", "low"), ("a/b", "high")]


async def test_a_queued_run_takes_what_the_session_has_when_it_starts(kedge: Kedge) -> None:
    seen = watched(kedge)
    session_id = await kedge.session()
    await kedge.send(session_id, "wait", "first")
    await kedge.reached("gate")
    await kedge.send(session_id, "go", "second")
    await change(kedge, session_id, SessionChange(model="a/b"))
    kedge.gates.open("gate")
    await kedge.end("second")
    assert seen == [(None, None), ("a/b", None)]


@pytest.mark.parametrize("model", ["", "no-slash", "a/", "/b", "a/b\n", "a/\ud800"])
async def test_a_name_that_is_none_changes_nothing(kedge: Kedge, model: str) -> None:
    session_id = await kedge.session("mine")
    with pytest.raises(Invalid) as caught:
        await change(kedge, session_id, SessionChange(title="yours", model=model))
    assert caught.value.code in ("invalid_model", "invalid_text")
    assert (await kedge.store.session(kedge.workspace_id, session_id)).title == "mine"


async def test_a_session_that_is_not_there_has_no_model(kedge: Kedge) -> None:
    with pytest.raises(NotFound):
        await change(kedge, "nobody", SessionChange(model="a/b"))


async def test_the_effort_is_part_of_the_same_body(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.end((await kedge.send(session_id, "say hi", "r", options=RunOptions(effort="low"))).run_id)
    assert (await kedge.send(session_id, "say hi", "r", options=RunOptions(effort="low"))).replayed
    with pytest.raises(Conflict, match="another body"):
        await kedge.send(session_id, "say hi", "r")

"""Whose change it is while a background job lives: the user's work is never undone, and doubt is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kedge.engine.files.changed_files import list_changed_files
from kedge.files import restore
from kedge.files.restore import Change
from kedge.files.states import State
from kedge.protocol.files import FilesConflict, Rewound
from kedge.store.port import ProcessRecord
from tests.engine.undo_helpers import do
from tests.support.file_turn import FileTurn
from tests.support.harness import Kedge

Job = Callable[[str], ProcessRecord]


@pytest.fixture
def job(kedge: Kedge) -> Job:
    """A background job of a run, as the engine knows one."""

    def begin(run_id: str) -> ProcessRecord:
        record = ProcessRecord(2**22 + 1, run_id)  # no such process: numbers end below
        kedge.engine.processes.add_job(record, kedge.workspace_id, run_id)
        return record

    return begin


def steps(rewound: Rewound) -> list[tuple[str, str | None]]:
    return [(step.path, step.obstacle) for step in rewound.files]


async def test_what_a_person_does_between_two_runs_is_theirs_while_a_job_lives(
    kedge: Kedge, turn: FileTurn, root: Path, job: Job
) -> None:
    (root / "mine").write_text("one")
    (root / "app").write_text("a")
    turn.by_command("serve", lambda: None)
    turn.by_command("work", lambda: (root / "app").write_text("b"))
    first, second = await kedge.session(), await kedge.session()
    job((await do(kedge, first, "serve")).run_id)
    (root / "mine").write_text("by hand")
    await do(kedge, second, "work")
    assert steps(await kedge.engine.undos.undo(kedge.workspace_id, second)) == [("app", None)]
    assert ((root / "mine").read_text(), (root / "app").read_text()) == ("by hand", "a")
    assert steps(await kedge.engine.undos.undo(kedge.workspace_id, first)) == [("mine", "background_job")]
    assert (root / "mine").read_text() == "by hand"


async def test_what_a_job_changed_is_named_and_undone_only_if_asked_for(
    kedge: Kedge, turn: FileTurn, root: Path, job: Job
) -> None:
    (root / "log").write_text("")
    turn.by_command("serve", lambda: (root / "made").write_text("by the command"))
    session = await kedge.session()
    job((await do(kedge, session, "serve")).run_id)
    (root / "log").write_text("by the job")
    undone = await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert steps(undone) == [("log", "background_job"), ("made", None)]
    assert (root / "log").read_text() == "by the job"
    assert not (root / "made").exists()
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    listed = await list_changed_files(
        kedge.store,
        kedge.engine.file_recorder.versions,
        os.fsencode(root),
        kedge.workspace_id,
        session,
        None,
        diffs=False,
    )
    assert [file.path for file in listed.files] == ["made"], "only what is surely its own is listed"
    undone = await kedge.engine.undos.undo(kedge.workspace_id, session, include_unsure=True)
    assert steps(undone) == [("log", None), ("made", None)]
    assert (root / "log").read_text() == ""
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert (root / "log").read_text() == "by the job"


@pytest.mark.parametrize("ended", [None, 0, 1, "both"])
async def test_with_jobs_of_two_sessions_each_undo_names_the_change_and_leaves_it(
    kedge: Kedge, turn: FileTurn, root: Path, job: Job, ended: object
) -> None:
    """Also if one job, or both, ended before anything looked."""
    (root / "log").write_text("")
    for name in ("first", "second"):
        turn.by_command(name, lambda name=name: (root / name).write_text("by the command"))
    sessions = {name: await kedge.session() for name in ("first", "second")}
    records = [job((await do(kedge, session, name)).run_id) for name, session in sessions.items()]
    third = await kedge.session()
    await do(kedge, third, "first")
    (root / "log").write_text("by one of the jobs")
    for index, record in enumerate(records):
        if ended in (index, "both"):
            kedge.engine.processes.discard(record)
    for name, session in sessions.items():
        undone = await kedge.engine.undos.undo(kedge.workspace_id, session)
        assert dict(steps(undone)) == {name: None, "log": "background_job"}
        assert (root / "log").read_text() == "by one of the jobs"
    assert ("log", "background_job") not in steps(await kedge.engine.undos.undo(kedge.workspace_id, third))
    await kedge.engine.undos.redo(kedge.workspace_id, sessions["first"])
    undone = await kedge.engine.undos.undo(kedge.workspace_id, sessions["first"], include_unsure=True)
    assert ("log", None) in steps(undone)
    assert (root / "log").read_text() == ""
    await kedge.engine.undos.redo(kedge.workspace_id, sessions["second"])
    assert "log" not in dict(steps(await kedge.engine.undos.undo(kedge.workspace_id, sessions["second"])))


async def test_with_jobs_of_two_runs_of_a_session_the_change_is_named_once_in_each_undo(
    kedge: Kedge, turn: FileTurn, root: Path, job: Job
) -> None:
    turn.by_command("serve", lambda: None)
    session = await kedge.session()
    for _ in range(2):
        job((await do(kedge, session, "serve")).run_id)
    (root / "log").write_text("one")
    await do(kedge, await kedge.session(), "serve")
    (root / "log").write_text("two")
    first = (await kedge.messages(session))[0]
    for message_id in (None, first.id):
        undone = await kedge.engine.undos.undo(kedge.workspace_id, session, message_id)
        assert steps(undone) == [("log", "background_job")]
        assert (root / "log").read_text() == "two"


async def test_a_file_that_a_run_changed_and_then_a_job_or_the_user_is_not_overwritten(
    kedge: Kedge, turn: FileTurn, root: Path, job: Job
) -> None:
    (root / "a").write_text("one")
    (root / "b").write_text("one")
    turn.by_command("serve", lambda: [(root / name).write_text("two") for name in ("a", "b")])
    session = await kedge.session()
    job((await do(kedge, session, "serve")).run_id)
    (root / "a").write_text("three")
    with pytest.raises(FilesConflict) as refused:
        await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert [(file.path, file.obstacle) for file in refused.value.files] == [("a", "changed"), ("b", None)]
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("three", "two")
    await kedge.engine.undos.undo(kedge.workspace_id, session, include_unsure=True)
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("one", "one")
    await kedge.engine.undos.redo(kedge.workspace_id, session)
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("three", "two")


async def test_what_the_user_brought_back_and_the_agent_changed_again_is_undone(
    kedge: Kedge, turn: FileTurn, root: Path, job: Job
) -> None:
    """As `git checkout` does, with a job alive and without."""
    (root / "a").write_text("one")
    turn.by_command("work", lambda: (root / "a").write_text("two"))
    turn.by_command("again", lambda: (root / "a").write_text("three"))
    for has_job in (False, True):
        session = await kedge.session()
        end = await do(kedge, session, "work")
        if has_job:
            job(end.run_id)
        (root / "a").write_text("one")
        await do(kedge, session, "again")
        first = (await kedge.messages(session))[0]
        assert steps(await kedge.engine.undos.undo(kedge.workspace_id, session, first.id)) == [("a", None)]
        assert (root / "a").read_text() == "one"


async def test_what_the_user_wrote_over_the_agent_and_the_agent_moved_away_is_not_lost(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    turn.by_command("make", lambda: (root / "a").write_text("by the agent"))
    turn.by_command("move", lambda: (root / "a").rename(root / "b"))
    session = await kedge.session()
    await do(kedge, session, "make")
    (root / "a").write_text("by hand")
    await do(kedge, session, "move")
    first = (await kedge.messages(session))[0]
    with pytest.raises(FilesConflict) as refused:
        await kedge.engine.undos.undo(kedge.workspace_id, session, first.id)
    assert [file.path for file in refused.value.files if file.obstacle] == ["a"]
    assert (root / "b").read_text() == "by hand"


async def test_after_a_job_ended_its_last_changes_are_named_once_and_later_ones_are_the_users(
    kedge: Kedge, turn: FileTurn, root: Path, job: Job
) -> None:
    turn.by_command("serve", lambda: None)
    turn.by_command("work", lambda: (root / "made").write_text("x"))
    session = await kedge.session()
    record = job((await do(kedge, session, "serve")).run_id)
    (root / "by-job").write_text("x")
    kedge.engine.processes.discard(record)
    await do(kedge, session, "work")
    (root / "mine").write_text("x")
    first = (await kedge.messages(session))[0]
    undone = await kedge.engine.undos.undo(kedge.workspace_id, session, first.id)
    assert steps(undone) == [("by-job", "background_job"), ("made", None)]
    assert sorted(path.name for path in root.iterdir()) == ["by-job", "mine"]


async def test_what_is_refused_is_not_overwritten_by_asking_for_the_jobs_changes(
    kedge: Kedge, turn: FileTurn, root: Path
) -> None:
    (root / "a").write_text("one")
    turn.by_command("work", lambda: (root / "a").write_text("two"))
    session = await kedge.session()
    await do(kedge, session, "work")
    (root / "a").write_text("by hand")
    with pytest.raises(FilesConflict):
        await kedge.engine.undos.undo(kedge.workspace_id, session, include_unsure=True)
    assert (root / "a").read_text() == "by hand"


def state(name: str) -> State:
    return State("file", name, 0o644, 1)


A, B, C, D = map(state, "abcd")
JOB = "background_job"


@pytest.mark.parametrize(
    ("chain", "then", "expected", "verdict"),
    [
        ([Change(b"p", A, B), Change(b"p", B, C)], A, C, "ours"),
        ([Change(b"p", A, B), Change(b"p", C, D)], A, D, "changed"),
        ([Change(b"p", A, B), Change(b"p", A, C)], A, C, "ours"),
        ([Change(b"p", A, B), Change(b"p", A, B)], A, B, "ours"),
        ([Change(b"p", A, B, JOB)], A, B, "unsure"),
        ([Change(b"p", A, B, JOB), Change(b"p", B, C)], B, C, "ours"),
        ([Change(b"p", A, B), Change(b"p", B, C, JOB)], A, B, "ours"),
        ([Change(b"p", A, B), Change(b"p", B, C, JOB), Change(b"p", C, D)], A, D, "changed"),
        ([Change(b"p", A, B), Change(b"p", B, A, JOB), Change(b"p", A, D)], A, D, "ours"),
        ([Change(b"p", A, B), Change(b"p", B, C, JOB), Change(b"p", B, D)], A, D, "ours"),
    ],
)
def test_a_chain_of_changes_goes_back_to_before_our_first_one(
    chain: list[Change], then: State, expected: State, verdict: str
) -> None:
    (target,) = restore.find_targets(chain)
    assert (target.then, target.expected) == (then, expected)
    found = "unsure" if target.unsure else "ours" if target.is_ours else "changed"
    assert found == verdict

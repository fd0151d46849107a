"""What is kept of files, in rows: told while its run is open, only recorded after, and gone with its session."""

from __future__ import annotations

from kedge.protocol.events import FileChange
from kedge.store.port import NewChange, NewWork
from tests.support.harness import Kedge


def change(name: str = "a") -> NewChange:
    return NewChange(path=f"/w/{name}".encode(), shown=name, before=b"1", after=b"2", added=1)


async def told(kedge: Kedge) -> list[FileChange]:
    frames = await kedge.log_frames()
    await kedge.seen(lambda event: event.seq == len(frames))
    return [event.payload for event in kedge.watcher.log if isinstance(event.payload, FileChange)]


async def test_a_change_of_a_running_run_is_told_with_its_version(kedge: Kedge) -> None:
    session = await kedge.session()
    run_id = (await kedge.send(session, "wait here")).run_id
    await kedge.reached("here")
    for _ in range(2):
        work = await kedge.store.files.begin_work(kedge.workspace_id, run_id, NewWork())
        await kedge.store.files.record_changes(work, [change()])
        await kedge.store.files.record_changes(work, [change()])  # a second time: it was recorded before
    assert [(each.path, each.version, each.added) for each in await told(kedge)] == [("a", 2, 1), ("a", 3, 1)]
    kedge.gates.open("here")
    await kedge.end(run_id)


async def test_after_its_end_nothing_more_is_told_of_a_run(kedge: Kedge) -> None:
    """P2: `run_complete` is the last event of a run."""
    session = await kedge.session()
    run_id = (await kedge.send(session, "say done")).run_id
    work = await kedge.store.files.begin_work(kedge.workspace_id, run_id, NewWork())
    await kedge.end(run_id)
    await kedge.store.files.record_changes(work, [change()])
    assert await told(kedge) == []
    assert len(await kedge.store.files.changes(kedge.workspace_id, session)) == 1
    cut = await kedge.store.files.cut_before(kedge.workspace_id, session, None)
    assert len(await kedge.store.files.changes(kedge.workspace_id, session, cut.seq)) == 1, "it belongs to its prompt"


async def test_a_deleted_session_needs_no_versions_any_more(kedge: Kedge) -> None:
    session = await kedge.session()
    run_id = (await kedge.send(session, "say done")).run_id
    work = await kedge.store.files.begin_work(kedge.workspace_id, run_id, NewWork())
    await kedge.end(run_id)
    await kedge.store.files.record_changes(work, [change()])
    assert await kedge.store.files.states_in_use() == {b"1": 1, b"2": 1}
    await kedge.engine.delete_session(kedge.workspace_id, session)
    assert await kedge.store.files.states_in_use() == {}

"""The file that keeps versions fails, or a file cannot be read: commands and runs go on, and it is mended later."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from kedge.engine import engine
from kedge.engine.files import change_log
from kedge.files.blobs import Blobs
from kedge.files.states import ABSENT, UNREADABLE, Observation, decode_state, encode_state
from kedge.store.port import NewWork
from tests.engine.undo_helpers import do
from tests.support.file_turn import FileTurn
from tests.support.harness import Kedge
from tests.support.reader import LIMIT_S


async def test_retention_goes_on_after_versions_could_not_be_swept(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn.by_tool("edit", root / "a", b"two")
    await do(kedge, await kedge.session(), "edit")
    loop, again = asyncio.get_running_loop(), asyncio.Event()
    sweeps: list[int] = []

    def prune(_: Mapping[str, int], __: int) -> int:
        sweeps.append(1)
        if len(sweeps) == 1:
            raise sqlite3.OperationalError("database or disk is full")
        loop.call_soon_threadsafe(again.set)
        return 0

    monkeypatch.setattr(kedge.engine.file_recorder.versions.blobs, "prune", prune)
    monkeypatch.setattr(engine, "RETENTION_EVERY_S", 0.001)
    retaining = asyncio.create_task(kedge.engine._apply_retention())
    async with asyncio.timeout(LIMIT_S):
        await again.wait()
    retaining.cancel()
    await asyncio.wait({retaining})


async def test_a_command_has_ended_well_also_if_nobody_knows_how_much_is_kept(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Blobs) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Blobs, "size_bytes", property(fail))
    turn.by_command("work", lambda: (root / "a").write_text("a"))
    await do(kedge, await kedge.session(), "work")


async def test_what_could_not_be_kept_after_an_edit_is_looked_into_later(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("one")
    blobs = kedge.engine.file_recorder.versions.blobs
    real = blobs.put
    puts: list[int] = []

    def put(contents: Iterable[bytes]) -> None:
        puts.append(1)
        if len(puts) in (2, 3):  # after the edit, and at the first look into it
            raise sqlite3.OperationalError("database or disk is full")
        real(contents)

    monkeypatch.setattr(blobs, "put", put)
    turn.by_tool("edit", root / "a", b"two")
    turn.by_command("work", lambda: None)
    session = await kedge.session()
    await do(kedge, session, "edit")
    await do(kedge, session, "work")
    assert len(puts) >= 3
    first = (await kedge.messages(session))[0]
    await kedge.engine.undos.undo(kedge.workspace_id, session, first.id)
    assert (root / "a").read_text() == "one"


async def test_a_file_that_can_never_be_read_again_stops_no_command(
    kedge: Kedge, turn: FileTurn, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.fsencode(root / "broken")
    real = change_log.observe_resolved

    def observe(wanted: bytes) -> Observation:
        if wanted == path:
            raise OSError(errno.EIO, "Input/output error")
        return real(wanted)

    monkeypatch.setattr(change_log, "observe_resolved", observe)
    turn.by_command("work", lambda: (root / "a").write_text("a"))
    session = await kedge.session()
    run_id = (await do(kedge, session, "look")).run_id
    await kedge.store.files.begin_work(kedge.workspace_id, run_id, NewWork(path=path, before=encode_state(ABSENT)))
    await do(kedge, session, "work")
    changes = await kedge.store.files.changes(kedge.workspace_id, session, with_unsure=True)
    assert (path, UNREADABLE) in [(each.path, decode_state(each.after)) for each in changes]

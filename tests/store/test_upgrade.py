"""A store of the version before: it opens, and what was in it means what it meant."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from kedge.protocol.errors import Conflict
from kedge.protocol.runs import RunOptions, Submission, Usage
from kedge.protocol.sessions import SessionChange
from kedge.store.sqlite import database
from kedge.store.sqlite.store import SqliteStore

FIRST = database.load_migrations()[:1]
# What was hashed then: these fields, in this order.
BODY = {
    "session_id": "s1",
    "prompt": "hello",
    "kind": "prompt",
    "attachments": (),
    "on_busy": "queue",
    "permissions": "ask",
    "model": None,
    "parent_run_id": None,
}
USED = b'{"input_tokens":%d,"output_tokens":2,"cache_read_tokens":3,"cache_write_tokens":4,"cost":0.5,"estimated":%b}'


def make_old_store(directory: Path) -> None:
    with closing(database.open_database(directory, FIRST, "NORMAL", lambda: "log")) as db:
        db.execute("INSERT INTO workspaces VALUES ('w', '/somewhere', 'log', 3, 0, 1.0, 0)")
        for session in ("s1", "s2"):
            db.execute(
                "INSERT INTO sessions (id, workspace_id, title, created_at, updated_at, last_seq)"
                " VALUES (?, 'w', 'old', 1.0, 1.0, 1)",
                (session,),
            )
        digest = hashlib.sha256(msgspec.msgpack.encode(BODY)).digest()
        for run_id, usage in (("r1", USED % (1, b"false")), ("r2", USED % (10, b"true")), ("r3", None)):
            db.execute(
                "INSERT INTO runs (workspace_id, run_id, session_id, kind, state, on_busy, permissions, seq, rank,"
                " may_join, body_hash, usage)"
                " VALUES ('w', ?, 's1', 'prompt', 'completed', 'queue', 'ask', 1, 1, 0, ?, ?)",
                (run_id, digest, usage),
            )
            db.execute("INSERT INTO prompts VALUES ('w', ?, 'hello', NULL)", (run_id,))


async def test_usage_of_old_runs_is_in_the_status_of_their_session(tmp_path: Path) -> None:
    make_old_store(tmp_path)
    store = SqliteStore.open(tmp_path)
    try:
        assert (await store.session("w", "s1")).usage == Usage(11, 4, 6, 8, 1.0, True)
        assert (await store.session_status("w", "s2")).usage == Usage()
        assert (await store.run("w", "r1")).usage == Usage(1, 2, 3, 4, 0.5, False)
    finally:
        await store.close()


async def test_a_run_from_before_there_were_options_is_still_the_same_run(tmp_path: Path) -> None:
    make_old_store(tmp_path)
    store = SqliteStore.open(tmp_path)
    same = Submission(session_id="s1", prompt="hello")
    try:
        receipt = await store.accept("w", "r1", same)
        assert (receipt.replayed, receipt.state) == (True, "completed")
        with pytest.raises(Conflict):
            await store.accept("w", "r1", msgspec.structs.replace(same, options=RunOptions(max_steps=1)))
    finally:
        await store.close()


async def test_a_session_from_before_has_no_model_and_can_be_given_one(tmp_path: Path) -> None:
    make_old_store(tmp_path)
    store = SqliteStore.open(tmp_path)
    try:
        old = await store.session("w", "s1")
        assert (old.title, old.model, old.effort) == ("old", None, None)
        changed = await store.change_session("w", "s1", SessionChange(model="a/b", effort="low"))
        assert (changed.title, changed.model, changed.effort) == ("old", "a/b", "low")
    finally:
        await store.close()


async def test_the_old_store_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    make_old_store(tmp_path)
    store = SqliteStore.open(tmp_path)
    await store.close()
    (backup,) = tmp_path.glob("*.before-0002*")
    with closing(sqlite3.connect(backup)) as db:
        assert [name for (name,) in db.execute("SELECT name FROM migrations")] == [FIRST[0].name]


async def test_an_undo_from_before_there_were_kinds_is_redone_whole(tmp_path: Path) -> None:
    make_old_store(tmp_path)
    with closing(database.open_database(tmp_path, database.load_migrations()[:7], "NORMAL", lambda: "log")) as db:
        db.execute(
            "INSERT INTO undos (id, workspace_id, session_id, state, cut, message_id, hides, plan)"
            " VALUES (1, 'w', 's1', 'undone', 1, 'm1', 1, x'90')"
        )
        db.execute(
            "INSERT INTO messages (id, workspace_id, session_id, run_id, role, created_at, seq, reason, undone)"
            " VALUES ('m1', 'w', 's1', 'r1', 'user', 1.0, 2, 'end_turn', 1)"
        )
    store = SqliteStore.open(tmp_path)
    try:
        assert (await store.files.past_of_files("w", "s1")).turns[0].undo_state == "undone"
        await store.files.begin_redo("w", "s1", 1)
        await store.files.finish_undo(1, b"\x90")
        assert [m.id for m in (await store.messages("w", "s1", None, 10)).messages] == ["m1"]
    finally:
        await store.close()


async def test_a_run_from_before_times_were_stored_has_none(tmp_path: Path) -> None:
    make_old_store(tmp_path)
    store = SqliteStore.open(tmp_path)
    try:
        assert {(run.created_at, run.started_at, run.ended_at) for run in await store.runs("w")} == {(None,) * 3}
    finally:
        await store.close()

"""Changes of files by runs. A change and its `file` event are one transaction; contents are elsewhere."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from kedge.protocol.events import FileChange, encode
from kedge.store.port import NewChange, NewWork, OpenWork, RecordedChange
from kedge.store.sqlite.log import struct_of
from kedge.store.sqlite.rows import find_run, get_run, get_session
from kedge.store.sqlite.writer import Transaction

# A session and the sub-agents in it.
FAMILY = (
    "(WITH RECURSIVE family (id) AS (SELECT ? UNION"
    " SELECT s.id FROM sessions s JOIN family f ON s.parent_session_id = f.id) SELECT id FROM family)"
)


def begin_work(tx: Transaction, workspace_id: str, run_id: str, work: NewWork) -> int:
    """Register work before a file is touched, so that its changes are found even after a crash."""
    run = get_run(tx.db, workspace_id, run_id)
    row = tx.get(
        "INSERT INTO file_work (workspace_id, session_id, run_id, path, before, after, hollow)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
        *(workspace_id, run["session_id"], run_id, work.path, work.before, work.after, work.hollow),
    )
    return row["id"]


def record(tx: Transaction, work_id: int, changes: Sequence[NewChange], is_last: bool) -> None:
    """Record changes. No event for a run that has ended (P2), nor for an unsure change."""
    work = tx.one("SELECT * FROM file_work WHERE id = ?", work_id)
    if work is None:
        return  # already recorded, or its session was deleted
    run = find_run(tx.db, work["workspace_id"], work["run_id"])
    is_running = run is not None and run["state"] == "running"
    key = (work["workspace_id"], work["run_id"])
    late_seq = tx.get("SELECT ifnull(max(seq), 0) FROM messages WHERE workspace_id = ? AND run_id = ?", *key)[0]
    for change in changes:
        has_event = is_running and change.unsure is None
        version = _next_version(tx, work["workspace_id"], change.path)
        seq = tx.next_seq(work["workspace_id"]) if has_event else late_seq
        ids = (work["workspace_id"], work["session_id"], work["run_id"])
        add(tx, *ids, seq, version, change, has_event=has_event)
    if is_last:
        tx.execute("DELETE FROM file_work WHERE id = ?", work_id)


def add(
    tx: Transaction,
    workspace_id: str,
    session_id: str,
    run_id: str,
    seq: int,
    version: int,
    change: NewChange,
    *,
    has_event: bool,
) -> None:
    tx.execute(
        "INSERT INTO changes (workspace_id, session_id, run_id, seq, path, version, before, after, added, removed,"
        " unsure) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(workspace_id, session_id, run_id, seq, change.path, version, change.before, change.after),
        *(change.added, change.removed, change.unsure),
    )
    if has_event:
        body = encode(FileChange(session_id, run_id, change.shown, version, change.added, change.removed))
        tx.append("file", "updated", workspace_id, session_id, body, seq=seq, body=body)


def open_work(db: sqlite3.Connection, workspace_id: str | None) -> list[OpenWork]:
    sql = "SELECT * FROM file_work WHERE ?1 IS NULL OR workspace_id = ?1 ORDER BY id"
    return [struct_of(row, OpenWork) for row in db.execute(sql, (workspace_id,))]


def record_unwatched(tx: Transaction, workspace_id: str, run_id: str, why: str) -> bool:
    """Return whether this is the first time for this run."""
    run = get_run(tx.db, workspace_id, run_id)
    head = tx.get("SELECT head FROM workspaces WHERE id = ?", workspace_id)
    return bool(
        tx.execute(
            "INSERT INTO unwatched (workspace_id, run_id, session_id, seq, why) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            *(workspace_id, run_id, run["session_id"], head["head"], why),
        )
    )


def unwatched_reasons(db: sqlite3.Connection, workspace_id: str, session_id: str, cut: int) -> list[str]:
    get_session(db, workspace_id, session_id)
    rows = db.execute(
        "SELECT DISTINCT why FROM unwatched WHERE session_id = ? AND seq >= ?", (session_id, cut)
    ).fetchall()
    return [row["why"] for row in rows]


def changes(
    db: sqlite3.Connection, workspace_id: str, session_id: str, cut: int, run_id: str | None, with_unsure: bool
) -> list[RecordedChange]:
    """Return the changes from seq `cut` on that are not undone, in order, with those of sub-agents."""
    get_session(db, workspace_id, session_id)
    if run_id is not None:
        get_run(db, workspace_id, run_id)
    only = "" if with_unsure else " AND unsure IS NULL"
    only += "" if run_id is None else f" AND run_id IN {_RUN_AND_CHILDREN}"
    args = () if run_id is None else (run_id, workspace_id)
    rows = db.execute(
        f"SELECT * FROM changes WHERE session_id IN {FAMILY} AND seq >= ? AND undone = 0{only} ORDER BY id",
        (session_id, cut, *args),
    ).fetchall()
    return [struct_of(row, RecordedChange) for row in rows]


_RUN_AND_CHILDREN = (
    "(WITH RECURSIVE tree (id) AS (SELECT ? UNION SELECT r.run_id FROM runs r JOIN tree t ON r.parent_run_id = t.id"
    " AND r.workspace_id = ?) SELECT id FROM tree)"
)


def states_in_use(db: sqlite3.Connection) -> dict[bytes, int]:
    """Return every state that a record names with its latest use; larger is later. A scan: not for the writer."""
    found: dict[bytes, int] = {}
    for column in ("before", "after"):
        for state, last in db.execute(f"SELECT {column}, max(id) FROM changes GROUP BY {column}"):
            found[state] = max(found.get(state, 0), last)
    (newest,) = db.execute("SELECT ifnull(max(id), 0) FROM changes").fetchone()
    for row in db.execute("SELECT before, after FROM file_work"):
        found |= {state: newest for state in row if state is not None}
    return found


def _next_version(tx: Transaction, workspace_id: str, path: bytes) -> int:
    sql = "SELECT ifnull(max(version), 1) + 1 FROM changes WHERE workspace_id = ? AND path = ?"
    return tx.get(sql, workspace_id, path)[0]

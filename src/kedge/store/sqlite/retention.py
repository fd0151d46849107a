"""Retention: remove old events by age and size, and the rows of deleted sessions and workspaces.

Rows are removed in batches, one transaction each, so that other transactions do not wait long.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from kedge.protocol.events import encode
from kedge.store.port import Retention
from kedge.store.sqlite.writer import Transaction

# Events removed in one transaction: some milliseconds.
BATCH_EVENTS = 5_000
# Messages with their parts, or runs with their prompts: a tenth, because they may be large.
BATCH_ROWS = 500

# Any number of ids as one SQL variable.
_IDS = "(SELECT value FROM json_each(?))"
# Tables with rows of a deleted workspace, their key, and a condition that makes SQLite use the index.
_WORKSPACE_TABLES = (
    ("requests", "rowid", ""),
    ("runs", "rowid", ""),
    ("prompts", "run_id", ""),
    ("events", "seq", ""),
    ("changes", "rowid", ""),
    ("undos", "rowid", ""),
    ("file_work", "rowid", ""),
    ("unwatched", "run_id", ""),
    ("surroundings", "rowid", ""),
    ("sessions", "rowid", " AND deleting = 1"),
)


class Batch(NamedTuple):
    events: int = 0
    others: int = 0  # other rows; if both are 0, nothing is left to remove


def find_floors(db: sqlite3.Connection, retention: Retention, now: float) -> dict[str, int]:
    """Return the newest event to remove for each workspace. Scans the whole log: not for the writer."""
    heads = db.execute("SELECT id, head FROM workspaces WHERE deleted = 0").fetchall()
    return {row["id"]: _find_oldest_kept(db, row["id"], row["head"], retention, now) - 1 for row in heads}


def retain(tx: Transaction, floors: Mapping[str, int], retention: Retention) -> Batch:
    """Remove a batch from the first workspace that has something to remove."""
    for row in tx.all("SELECT id, floor FROM workspaces WHERE deleted = 0"):
        batch = Batch(_cut_log(tx, row, floors.get(row["id"], 0)), _purge_deleted_sessions(tx, row["id"], retention))
        if any(batch):
            return batch
    for row in tx.all("SELECT id FROM workspaces WHERE deleted = 1"):
        return Batch(others=remove_workspace(tx, row["id"]))
    return Batch()


def remove_workspace(tx: Transaction, workspace_id: str) -> int:
    """Remove a batch of rows of a deleted workspace, at last the workspace; returns how many."""
    if removed := _remove_messages(tx, "workspace_id", workspace_id, BATCH_ROWS):
        return removed
    for table, key, condition in _WORKSPACE_TABLES:
        batch = f"SELECT {key} FROM {table} WHERE workspace_id = ?{condition} LIMIT ?"
        if removed := tx.execute(
            f"DELETE FROM {table} WHERE workspace_id = ? AND {key} IN ({batch})",
            *(workspace_id, workspace_id, BATCH_EVENTS if table == "events" else BATCH_ROWS),
        ):
            return removed
    return tx.execute("DELETE FROM workspaces WHERE id = ? AND deleted = 1", workspace_id)


def _cut_log(tx: Transaction, workspace: sqlite3.Row, wanted: int) -> int:
    floor = min(wanted, workspace["floor"] + BATCH_EVENTS)
    if floor <= workspace["floor"]:
        return 0
    tx.execute("UPDATE workspaces SET floor = ? WHERE id = ?", floor, workspace["id"])
    return tx.execute("DELETE FROM events WHERE workspace_id = ? AND seq <= ?", workspace["id"], floor)


def _find_oldest_kept(db: sqlite3.Connection, workspace_id: str, head: int, retention: Retention, now: float) -> int:
    young = db.execute(
        "SELECT seq FROM events WHERE workspace_id = ? AND at >= ? ORDER BY seq LIMIT 1",
        (workspace_id, now - retention.max_age_s),
    ).fetchone()
    fitting = db.execute(
        # about 100 bytes of columns and index beside each body
        "SELECT min(seq) AS seq FROM (SELECT seq, sum(100 + ifnull(length(body), 0)) OVER (ORDER BY seq DESC) AS size"
        " FROM events WHERE workspace_id = ?) WHERE size <= ?",
        (workspace_id, retention.max_bytes),
    ).fetchone()
    nothing = head + 1
    return max(nothing if row is None or row["seq"] is None else row["seq"] for row in (young, fitting))


def _purge_deleted_sessions(tx: Transaction, workspace_id: str, retention: Retention) -> int:
    """Remove the content of deleted sessions with their last event, and their run ids some time later (P3)."""
    gone = (
        "SELECT s.id, s.workspace_id, s.deleted_seq, s.purged_seq FROM sessions s"
        " JOIN workspaces w ON w.id = s.workspace_id"
        " WHERE s.workspace_id = ? AND s.deleting = 1 AND s.deleted_seq <= w.floor"
    )
    done = 0
    for session in tx.all(f"{gone} AND s.purged_seq < s.deleted_seq LIMIT ?", workspace_id, BATCH_ROWS):
        done += _purge(tx, session, BATCH_ROWS - done)
        if done >= BATCH_ROWS:
            return done
    old = f"{gone} AND s.purged_seq = s.deleted_seq AND s.deleted_at < ? LIMIT ?"
    for session in tx.all(old, workspace_id, tx.now - retention.receipts_s, BATCH_ROWS - done):
        done += _forget_runs(tx, session, BATCH_ROWS - done)
        if done >= BATCH_ROWS:
            break
    return done


def _purge(tx: Transaction, session: sqlite3.Row, most: int) -> int:
    """Remove up to `most` messages of a deleted session; when none is left, the prompts of as many runs."""
    if removed := _remove_messages(tx, "session_id", session["id"], most):
        return removed
    runs = tx.all(
        "SELECT run_id, seq FROM runs WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
        *(session["id"], session["purged_seq"], most),
    )
    of_runs = (session["workspace_id"], _ids(runs, "run_id"))
    tx.execute(f"DELETE FROM requests WHERE workspace_id = ? AND asker_run_id IN {_IDS}", *of_runs)
    tx.execute(
        f"UPDATE prompts SET prompt = '', attachments = NULL, options = NULL"
        f" WHERE workspace_id = ? AND run_id IN {_IDS}",
        *of_runs,
    )
    upto = runs[-1]["seq"] if len(runs) == most else session["deleted_seq"]
    tx.execute("UPDATE sessions SET purged_seq = ? WHERE id = ?", upto, session["id"])
    return 1 + len(runs)


def _forget_runs(tx: Transaction, session: sqlite3.Row, most: int) -> int:
    """Remove up to `most` runs of a deleted session, and when none is left the session."""
    runs = tx.all("SELECT run_id FROM runs WHERE session_id = ? LIMIT ?", session["id"], most)
    of_runs = (session["workspace_id"], _ids(runs, "run_id"))
    for table in ("prompts", "runs"):
        tx.execute(f"DELETE FROM {table} WHERE workspace_id = ? AND run_id IN {_IDS}", *of_runs)
    if len(runs) < most:
        tx.execute("DELETE FROM sessions WHERE id = ?", session["id"])
    return 1 + len(runs)


def _remove_messages(tx: Transaction, column: str, value: str, most: int) -> int:
    messages = tx.all(f"SELECT id FROM messages WHERE {column} = ? LIMIT ?", value, most)
    if messages:
        ids = _ids(messages, "id")
        tx.execute(f"DELETE FROM parts WHERE message_id IN {_IDS}", ids)
        tx.execute(f"DELETE FROM messages WHERE id IN {_IDS}", ids)
    return len(messages)


def _ids(rows: list[sqlite3.Row], column: str) -> str:
    return encode([row[column] for row in rows]).decode()

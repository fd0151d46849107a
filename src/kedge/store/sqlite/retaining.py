"""What the log may keep: its prefix goes by age and size, and with it what only those events still needed."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from kedge.store.port import Retention
from kedge.store.sqlite.tx import Tx

# Events removed in one transaction: some milliseconds, so that an accept beside it does not wait long.
BITE = 5_000


def floors(db: sqlite3.Connection, retention: Retention, now: float) -> dict[str, int]:
    """For each workspace, the newest event that has to go. A scan of the whole log: not for the writer."""
    heads = db.execute("SELECT id, head FROM workspaces").fetchall()
    return {row["id"]: _oldest_kept(db, row["id"], row["head"], retention, now) - 1 for row in heads}


def retain(tx: Tx, floors: Mapping[str, int], retention: Retention) -> int:
    """Remove a bite of each log that reaches below its floor; returns how many events that were."""
    removed = 0
    for row in tx.all("SELECT id, floor FROM workspaces"):
        floor = min(floors.get(row["id"], 0), row["floor"] + BITE)
        if floor > row["floor"]:
            removed += tx.execute("DELETE FROM events WHERE workspace_id = ? AND seq <= ?", row["id"], floor)
            tx.execute("UPDATE workspaces SET floor = ? WHERE id = ?", floor, row["id"])
        _purge_deleted_sessions(tx, row["id"], retention)
    return removed


def _oldest_kept(db: sqlite3.Connection, workspace_id: str, head: int, retention: Retention, now: float) -> int:
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


def _purge_deleted_sessions(tx: Tx, workspace_id: str, retention: Retention) -> None:
    """The content of deleted sessions goes with their last event; their run ids stay for a while (P3)."""
    gone = (
        "SELECT s.id FROM sessions s JOIN workspaces w ON w.id = s.workspace_id"
        " WHERE s.workspace_id = ? AND s.deleting = 1 AND s.deleted_seq <= w.floor"
    )
    messages = f"SELECT id FROM messages WHERE session_id IN ({gone})"
    tx.execute(f"DELETE FROM parts WHERE message_id IN ({messages})", workspace_id)
    runs = f"SELECT run_id FROM runs WHERE session_id IN ({gone})"
    both = (workspace_id, workspace_id)
    tx.execute(f"DELETE FROM requests WHERE workspace_id = ? AND asker_run_id IN ({runs})", *both)
    tx.execute(f"DELETE FROM messages WHERE session_id IN ({gone})", workspace_id)
    tx.execute(f"UPDATE prompts SET prompt = '' WHERE workspace_id = ? AND run_id IN ({runs})", *both)
    old = f"{gone} AND s.deleted_at < ?"
    limit = tx.now - retention.receipts_s
    old_runs = f"SELECT run_id FROM runs WHERE session_id IN ({old})"
    tx.execute(f"DELETE FROM prompts WHERE workspace_id = ? AND run_id IN ({old_runs})", *both, limit)
    tx.execute(f"DELETE FROM runs WHERE session_id IN ({old})", workspace_id, limit)
    tx.execute(f"DELETE FROM sessions WHERE id IN ({old})", workspace_id, limit)

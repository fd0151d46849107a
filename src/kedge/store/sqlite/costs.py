"""What sessions and days have cost, and how much more a person allowed: for the limits on cost."""

from __future__ import annotations

import sqlite3
import time

import msgspec

from kedge.protocol.events import encode
from kedge.protocol.requests import Answer, PermissionRequest
from kedge.store.port import CostGrant, DayCost, SessionCost
from kedge.store.sqlite.log import usage_of
from kedge.store.sqlite.rows import FAMILY
from kedge.store.sqlite.writer import Transaction

# One row, of the current day: it is read before each step, and earlier days are not needed.
_DAY_KEY = "day_cost"
_decode_day = msgspec.json.Decoder(DayCost).decode
_decode_request = msgspec.json.Decoder(PermissionRequest).decode
_decode_answer = msgspec.json.Decoder(Answer).decode


def add_day_cost(tx: Transaction, cost: float) -> None:
    """Count a cost for today. Call it where usage arises, not where a sub-agent's is added to its parent's."""
    if cost:
        today = day_cost(tx.db, tx.now)
        _write_day(tx, msgspec.structs.replace(today, cost=today.cost + cost))


def allow_day_cost(tx: Transaction, day: str, until: float) -> None:
    """Record that a person allowed a higher cost, unless the day is over."""
    today = day_cost(tx.db, tx.now)
    if today.day == day:
        _write_day(tx, msgspec.structs.replace(today, allowed=max(today.allowed, until)))


def day_cost(db: sqlite3.Connection, now: float) -> DayCost:
    """Return the cost of all runs of this data directory since midnight, local time."""
    day = time.strftime("%Y-%m-%d", time.localtime(now))
    row = db.execute("SELECT value FROM meta WHERE key = ?", (_DAY_KEY,)).fetchone()
    known = _decode_day(row["value"]) if row is not None else None
    return known if known is not None and known.day == day else DayCost(day)


def session_cost(db: sqlite3.Connection, workspace_id: str, session_id: str) -> SessionCost:
    """Return the cost of the topmost session: what its runs used, and what unfinished sub-agents used so far."""
    top = db.execute(
        f"{FAMILY} SELECT s.id, s.usage FROM up JOIN sessions s ON s.id = up.id WHERE up.parent IS NULL",
        (workspace_id, session_id),
    ).fetchone()
    # The usage of a sub-agent is added to its parent's when it ends.
    open_runs = db.execute(
        f"{FAMILY} SELECT runs.usage FROM family JOIN runs ON runs.session_id = family.id"
        " WHERE runs.state IN ('queued', 'running') AND runs.parent_run_id IS NOT NULL",
        (workspace_id, session_id),
    ).fetchall()
    return SessionCost(top["id"], usage_of(top).cost + sum(usage_of(row).cost for row in open_runs))


def cost_grants(db: sqlite3.Connection, workspace_id: str, session_id: str, tool: str) -> list[CostGrant]:
    """Return the requests of this tool that a person allowed in the session and its sub-agents', oldest first."""
    rows = db.execute(
        f"{FAMILY} SELECT r.body, r.answer FROM family JOIN runs ON runs.session_id = family.id"
        " JOIN requests r ON r.workspace_id = ?1 AND r.asker_run_id = runs.run_id"
        " WHERE r.kind = 'permission' AND json_extract(CAST(r.body AS TEXT), '$.tool') = ?3"
        " AND json_extract(CAST(r.answer AS TEXT), '$.action') IN ('allow', 'allow_session') ORDER BY r.seq",
        (workspace_id, session_id, tool),
    ).fetchall()
    return [CostGrant(_decode_request(row["body"]), _decode_answer(row["answer"])) for row in rows]


def _write_day(tx: Transaction, today: DayCost) -> None:
    value = encode(today).decode()
    tx.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", _DAY_KEY, value)

"""Rows of runs and sessions, checks of a turn's claim, and the `run` and `session` events."""

from __future__ import annotations

import sqlite3

import msgspec

from kedge.protocol.errors import NotFound
from kedge.protocol.events import Change, encode
from kedge.protocol.messages import RawMessage
from kedge.protocol.runs import Run, RunOptions, RunStatus, Usage
from kedge.protocol.sessions import Session, SessionDetails
from kedge.store.errors import ClaimLost
from kedge.store.port import Claim
from kedge.store.sqlite.log import (
    RUN_STATUSES,
    RUNS,
    RunChange,
    raw_message_of,
    run_of,
    status_of,
    struct_of,
    usage_of,
)
from kedge.store.sqlite.writer import Transaction


def find_run(db: sqlite3.Connection, workspace_id: str, run_id: str) -> sqlite3.Row | None:
    """Return the run's row; its prompt is in another table."""
    return db.execute("SELECT * FROM runs WHERE workspace_id = ? AND run_id = ?", (workspace_id, run_id)).fetchone()


def get_run(db: sqlite3.Connection, workspace_id: str, run_id: str) -> sqlite3.Row:
    row = find_run(db, workspace_id, run_id)
    if row is None:
        raise NotFound("run", run_id)
    return row


def run_now(db: sqlite3.Connection, workspace_id: str, run_id: str) -> Run:
    """Return the run as clients see it."""
    return run_of(_get_joined_row(db, RUNS, workspace_id, run_id))


def run_status(db: sqlite3.Connection, workspace_id: str, run_id: str) -> RunStatus:
    return status_of(_get_joined_row(db, RUN_STATUSES, workspace_id, run_id))


def _get_joined_row(db: sqlite3.Connection, select: str, workspace_id: str, run_id: str) -> sqlite3.Row:
    row = db.execute(f"{select} WHERE workspace_id = ? AND run_id = ?", (workspace_id, run_id)).fetchone()
    if row is None:
        raise NotFound("run", run_id)
    return row


def prompt_of(db: sqlite3.Connection, message: sqlite3.Row) -> str:
    (prompt,) = db.execute(
        "SELECT prompt FROM prompts WHERE workspace_id = ? AND run_id = ?", (message["workspace_id"], message["run_id"])
    ).fetchone()
    return prompt


def claimed_run(tx: Transaction, claim: Claim, *, even_cancelled: bool = False) -> sqlite3.Row:
    """Return the run's row; raises `ClaimLost` if the turn has no right to write any more."""
    row = find_run(tx.db, claim.workspace_id, claim.run_id)
    if row is None or row["state"] != "running" or row["epoch"] != claim.epoch:
        raise ClaimLost(claim.run_id)
    if row["cancel_requested"] and not even_cancelled:
        raise ClaimLost(claim.run_id)
    return row


def open_runs(db: sqlite3.Connection, session_id: str) -> list[sqlite3.Row]:
    """Return the open runs of a session: the running ones first, then the queue in its order."""
    return db.execute(
        "SELECT * FROM runs WHERE session_id = ? AND state IN ('queued', 'running') ORDER BY state = 'queued', place",
        (session_id,),
    ).fetchall()


def queue_of(db: sqlite3.Connection, workspace_id: str, session_id: str) -> list[Run]:
    return [run_now(db, workspace_id, row["run_id"]) for row in open_runs(db, session_id) if row["state"] == "queued"]


_AHEAD = 1 << 50  # more than any seq, and an exact number in JSON


def interrupt_place(seq: int) -> int:
    """The place in the queue of a run that interrupts: ahead of all others, behind earlier ones that interrupt."""
    return seq - _AHEAD


_decode_options = msgspec.json.Decoder(RunOptions).decode


def read_options(db: sqlite3.Connection, row: sqlite3.Row) -> RunOptions:
    """Return the options of a run as they were sent."""
    found = db.execute(
        "SELECT options FROM prompts WHERE workspace_id = ? AND run_id = ?", (row["workspace_id"], row["run_id"])
    ).fetchone()
    return _decode_options(found["options"]) if found is not None and found["options"] else RunOptions()


def joined_runs(tx: Transaction, host: sqlite3.Row) -> list[sqlite3.Row]:
    return tx.all(
        "SELECT * FROM runs WHERE workspace_id = ? AND merged_into = ? AND state = 'running' ORDER BY seq",
        *(host["workspace_id"], host["run_id"]),
    )


# The sessions above a session, and all sessions below the topmost one. Parameters: workspace, session.
FAMILY = (
    "WITH RECURSIVE up (id, parent) AS ("
    "  SELECT id, parent_session_id FROM sessions WHERE id = ?2 AND workspace_id = ?1"
    "  UNION SELECT s.id, s.parent_session_id FROM up JOIN sessions s ON s.id = up.parent),"
    " family (id) AS ("
    "  SELECT id FROM up WHERE parent IS NULL"
    "  UNION SELECT s.id FROM family JOIN sessions s ON s.parent_session_id = family.id)"
)


def open_children(tx: Transaction, parent: sqlite3.Row) -> list[sqlite3.Row]:
    return tx.all(
        "SELECT * FROM runs WHERE workspace_id = ? AND parent_run_id = ? AND state IN ('queued', 'running')"
        " ORDER BY seq",
        *(parent["workspace_id"], parent["run_id"]),
    )


def add_usage(tx: Transaction, run: sqlite3.Row, usage: Usage) -> None:
    """Add usage to an open run and to its session."""
    tx.execute(
        "UPDATE runs SET usage = ? WHERE workspace_id = ? AND run_id = ?",
        *(encode(usage_of(run) + usage), run["workspace_id"], run["run_id"]),
    )
    session = tx.one("SELECT usage FROM sessions WHERE id = ?", run["session_id"])
    if session is not None:
        tx.execute("UPDATE sessions SET usage = ? WHERE id = ?", encode(usage_of(session) + usage), run["session_id"])


def append_run_event(tx: Transaction, workspace_id: str, run_id: str, change: Change, seq: int | None = None) -> Run:
    run = run_now(tx.db, workspace_id, run_id)
    stored = encode(RunChange.of(run))
    tx.append(
        "run", change, workspace_id, run.session_id, encode(run), seq=seq, payload=run, subject=run_id, body=stored
    )
    return run


def session_of(row: sqlite3.Row) -> Session:
    return struct_of(row, Session)


def append_session_event(
    tx: Transaction, workspace_id: str, session_id: str, change: Change, seq: int | None = None
) -> Session:
    session = session_of(tx.get("SELECT * FROM sessions WHERE id = ?", session_id))
    body = encode(session)
    tx.append("session", change, workspace_id, session_id, body, seq=seq, body=body)
    return session


def get_session(db: sqlite3.Connection, workspace_id: str, session_id: str) -> SessionDetails:
    row = db.execute(
        "SELECT * FROM sessions WHERE id = ? AND workspace_id = ? AND deleting = 0", (session_id, workspace_id)
    ).fetchone()
    if row is None:
        raise NotFound("session", session_id)
    return struct_of(row, SessionDetails, usage=usage_of(row))


def append_message_event(
    tx: Transaction,
    change: Change,
    row: sqlite3.Row,
    parts: list[bytes],
    seq: int | None = None,
    opening: bytes | None = None,
) -> RawMessage:
    """Append a `message` event with the message's finished parts. `opening` is shown after them, but not stored."""
    message = raw_message_of(row, parts if opening is None else [*parts, opening])
    tx.append(
        *("message", change, row["workspace_id"], row["session_id"], encode(message)),
        seq=seq,
        payload=message,
        is_open=row["reason"] is None,
        subject=row["id"],
        parts=len(parts),
        body=opening,
    )
    return message

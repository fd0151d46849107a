"""The queue of a session: prompts that join the running turn, that are moved, promoted or removed (P5)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Literal

import msgspec

from kedge.protocol.errors import Conflict, NotFound
from kedge.protocol.runs import QueuedPrompt, Run
from kedge.store.port import Claim
from kedge.store.sqlite import messages, run_end
from kedge.store.sqlite.rows import (
    append_run_event,
    claimed_run,
    get_run,
    get_session,
    interrupt_place,
    open_runs,
    queue_of,
    read_options,
    run_now,
)
from kedge.store.sqlite.runs import request_cancel
from kedge.store.sqlite.writer import Transaction


def join(tx: Transaction, claim: Claim) -> list[Run]:
    """Let queued runs with `on_busy: steer` join the turn, between two steps (P5)."""
    host = claimed_run(tx, claim)
    joined: list[Run] = []
    for row in _queued(tx, claim.session_id):
        if not row["may_join"] or row["mode"] != host["mode"] or _find_difference(tx, row, host) is not None:
            continue
        tx.execute(
            "UPDATE runs SET state = 'running', attempt = 1, merged_into = ?, started_at = ?"
            " WHERE workspace_id = ? AND run_id = ?",
            *(claim.run_id, tx.now, claim.workspace_id, row["run_id"]),
        )
        joined.append(append_run_event(tx, claim.workspace_id, row["run_id"], "updated"))
        messages.write_user_message(tx, row)
    return joined


def move(tx: Transaction, workspace_id: str, session_id: str, run_id: str, before: str | None) -> list[Run]:
    """Move a queued run directly in front of another one, or to the end. Returns the queue."""
    row = _get_queued(tx.db, workspace_id, session_id, run_id)
    if before != run_id:
        others = [each for each in _queued(tx, session_id) if each["run_id"] != run_id]
        at = len(others)
        if before is not None:
            _get_queued(tx.db, workspace_id, session_id, before)
            at = next(i for i, each in enumerate(others) if each["run_id"] == before)
        _arrange(tx, [*others[:at], row, *others[at:]])
    return queue_of(tx.db, workspace_id, session_id)


def promote(
    tx: Transaction, workspace_id: str, session_id: str, run_id: str, on_busy: Literal["steer", "interrupt"]
) -> Run:
    """Treat a queued run as one that was sent with this `on_busy`, to the turn that runs now.

    Raises Conflict for a run that cannot join the turn; its mode becomes that of the turn.
    """
    row = _get_queued(tx.db, workspace_id, session_id, run_id)
    host = next((each for each in open_runs(tx.db, session_id) if _is_active(each)), None)
    if on_busy == "interrupt":
        if host is not None:
            request_cancel(tx, host)
        seq = tx.next_seq(workspace_id)
        tx.execute(
            "UPDATE runs SET on_busy = 'interrupt', may_join = 0, place = ? WHERE workspace_id = ? AND run_id = ?",
            *(interrupt_place(seq), workspace_id, run_id),
        )
        return append_run_event(tx, workspace_id, run_id, "updated", seq)
    if host is not None and (difference := _find_difference(tx, row, host)) is not None:
        raise Conflict("cannot_join", f"run {run_id} cannot join run {host['run_id']}: {difference}; interrupt or wait")
    others = [each for each in _queued(tx, session_id) if each["run_id"] != run_id]
    at = next((i for i, each in enumerate(others) if not _is_ahead(each)), len(others))
    tx.execute(
        "UPDATE runs SET on_busy = 'steer', may_join = ?, mode = ? WHERE workspace_id = ? AND run_id = ?",
        *(host is not None, row["mode"] if host is None else host["mode"], workspace_id, run_id),
    )
    _arrange(tx, [*others[:at], row, *others[at:]], changed=run_id)
    return run_now(tx.db, workspace_id, run_id)


def drop(tx: Transaction, workspace_id: str, session_id: str, run_id: str | None) -> list[str]:
    """Remove one run, or all, from the queue: they end as canceled, without messages (P7)."""
    get_session(tx.db, workspace_id, session_id)
    rows = _queued(tx, session_id) if run_id is None else [_get_queued(tx.db, workspace_id, session_id, run_id)]
    for row in rows:
        run_end.end_unstarted(tx, row, keeps_messages=False)
    return [row["run_id"] for row in rows]


def read_queued(db: sqlite3.Connection, workspace_id: str, session_id: str, run_id: str) -> QueuedPrompt:
    """Return a queued prompt with its attachments, which are stored until it starts."""
    _get_queued(db, workspace_id, session_id, run_id)
    return QueuedPrompt(run_now(db, workspace_id, run_id), messages.read_attachments(db, workspace_id, run_id))


def _queued(tx: Transaction, session_id: str) -> list[sqlite3.Row]:
    return [row for row in open_runs(tx.db, session_id) if row["state"] == "queued"]


def _get_queued(db: sqlite3.Connection, workspace_id: str, session_id: str, run_id: str) -> sqlite3.Row:
    get_session(db, workspace_id, session_id)
    row = get_run(db, workspace_id, run_id)
    if row["session_id"] != session_id:
        raise NotFound("run", run_id)
    if row["state"] != "queued":
        raise Conflict("not_queued", f"run {run_id} is {row['state']}, not queued; cancel it instead")
    return row


def _is_active(row: sqlite3.Row) -> bool:
    return row["state"] == "running" and row["merged_into"] is None and not row["cancel_requested"]


def _is_ahead(row: sqlite3.Row) -> bool:
    """Whether a queued run goes ahead of one that is promoted now."""
    return bool(row["may_join"]) or row["on_busy"] == "interrupt"


def _arrange(tx: Transaction, rows: Sequence[sqlite3.Row], changed: str = "") -> None:
    """Give the queued runs of a session their places in this order. `changed`: a run that was changed in any case."""
    for row, place in zip(rows, sorted(row["place"] for row in rows), strict=True):
        if row["place"] != place or row["run_id"] == changed:
            tx.execute(
                "UPDATE runs SET place = ? WHERE workspace_id = ? AND run_id = ?",
                *(place, row["workspace_id"], row["run_id"]),
            )
            append_run_event(tx, row["workspace_id"], row["run_id"], "updated")


def _find_difference(tx: Transaction, row: sqlite3.Row, host: sqlite3.Row) -> str | None:
    """Return why a run cannot share the turn of another one, apart from their modes; None if it can."""
    if row["kind"] != host["kind"] or row["kind"] == "shell":  # two commands are two runs
        return f"it is a run of kind {row['kind']}, and the turn is one of kind {host['kind']}"
    if row["permissions"] != host["permissions"]:  # a run that never asks does not join one that does
        return "its permissions are others"
    if row["model"] not in (None, host["model"]):
        return "its model is another one"
    if _encode_options(tx, row) != _encode_options(tx, host):
        return "its options are others"
    return None


def _encode_options(tx: Transaction, row: sqlite3.Row) -> bytes:
    """Return the options of a run without its mode, which is in its row, as bytes that are equal if they are."""
    options = msgspec.structs.replace(read_options(tx.db, row), mode=None)
    return msgspec.json.encode(options, order="deterministic")

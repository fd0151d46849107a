"""Runs before their end: accepted, started, canceled, suspended and recovered (P13); their modes and processes.

The queue is in queue.py, and their ends are in run_end.py.
"""

from __future__ import annotations

import hashlib
import sqlite3

import msgspec

from kedge.protocol.bounds import MAX_OPEN_RUNS
from kedge.protocol.errors import Conflict, SessionBusy, TooMany
from kedge.protocol.messages import INTERRUPTED
from kedge.protocol.runs import (
    OPEN_STATES,
    Mode,
    Receipt,
    Run,
    RunOptions,
    RunState,
    RunStatus,
    Submission,
    Waiting,
)
from kedge.protocol.sessions import SessionStatus
from kedge.store.errors import ClaimLost
from kedge.store.port import Claim, Outcome, ProcessRecord, Started
from kedge.store.sqlite import messages, run_end, undos
from kedge.store.sqlite.log import RUN_STATUSES, status_of
from kedge.store.sqlite.rows import (
    append_run_event,
    claimed_run,
    find_run,
    get_run,
    get_session,
    interrupt_place,
    joined_runs,
    open_children,
    open_runs,
    read_options,
    run_now,
)
from kedge.store.sqlite.writer import Transaction

_encode_body = msgspec.msgpack.Encoder().encode
# Equal options are equal bytes, whatever the order of their keys. (JSON also has numbers of any size.)
_encode_options = msgspec.json.Encoder(order="deterministic").encode


def accept(tx: Transaction, workspace_id: str, run_id: str, submission: Submission) -> Receipt:
    """Store a run and its event, or return the receipt of the same run, or raise and store nothing (P1, P3, P5)."""
    options = _encode_options(submission.options) if submission.options != RunOptions() else None
    digest = _hash_body(submission, options)
    if known := find_run(tx.db, workspace_id, run_id):
        if known["body_hash"] != digest:
            raise Conflict("run_id_conflict", f"run {run_id} exists with another body; choose another run_id")
        return Receipt(run_id, known["session_id"], known["state"], known["seq"], replayed=True)

    session_id = submission.session_id
    get_session(tx.db, workspace_id, session_id)
    already_open = open_runs(tx.db, session_id)
    if already_open and submission.on_busy == "reject":
        raise SessionBusy(already_open[0]["run_id"])
    if len(already_open) >= MAX_OPEN_RUNS:
        raise TooMany(
            "too_many_runs", f"the session has {MAX_OPEN_RUNS} open runs; wait for some to end, or cancel them"
        )
    parent = (
        None if submission.parent_run_id is None else _get_working_parent(tx, workspace_id, submission.parent_run_id)
    )
    if submission.on_busy == "interrupt":
        for row in already_open:
            if row["state"] == "running" and row["merged_into"] is None:
                request_cancel(tx, row)

    undos.drop(tx, workspace_id, session_id)
    seq = tx.next_seq(workspace_id)
    tx.execute(
        "INSERT INTO runs (workspace_id, run_id, session_id, kind, state, on_busy, permissions, model, mode, seq,"
        " place, may_join, parent_run_id, body_hash, created_at)"
        " VALUES (?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(workspace_id, run_id, session_id, submission.kind, submission.on_busy, submission.permissions),
        *(submission.model, submission.options.mode if parent is None else parent["mode"], seq),
        *(interrupt_place(seq) if submission.on_busy == "interrupt" else seq, submission.on_busy == "steer"),
        *(submission.parent_run_id, digest, tx.now),
    )
    attachments = _encode_body(submission.attachments) if submission.attachments else None
    tx.execute(
        "INSERT INTO prompts (workspace_id, run_id, prompt, attachments, options) VALUES (?, ?, ?, ?, ?)",
        *(workspace_id, run_id, submission.prompt, attachments, options),
    )
    tx.execute("UPDATE sessions SET updated_at = ?, last_seq = ? WHERE id = ?", tx.now, seq, session_id)
    append_run_event(tx, workspace_id, run_id, "created", seq)
    return Receipt(run_id, session_id, "queued", seq, replayed=False)


def start(tx: Transaction, workspace_id: str, session_id: str) -> Started | None:
    """Start the session's next run: one that a dead server left running, else the first of the queue."""
    rows = [row for row in open_runs(tx.db, session_id) if row["merged_into"] is None]
    row = next((row for row in rows if row["state"] == "running"), rows[0] if rows else None)
    if row is None:
        return None
    if row["is_claimed"] and not prepare_next_attempt(tx, row):  # its actor failed: like a crash
        return start(tx, workspace_id, session_id)
    tx.execute(
        "UPDATE runs SET state = 'running', attempt = attempt + 1 - (suspended OR wait_reason IS NOT NULL),"
        " suspended = 0, epoch = epoch + 1, is_claimed = 1, started_at = coalesce(started_at, ?)"
        " WHERE workspace_id = ? AND run_id = ?",
        *(tx.now, workspace_id, row["run_id"]),
    )
    run = append_run_event(tx, workspace_id, row["run_id"], "updated")
    messages.write_user_message(tx, row)
    claim = Claim(workspace_id, session_id, run.run_id, row["epoch"] + 1)
    joined = [run_now(tx.db, workspace_id, joined["run_id"]) for joined in joined_runs(tx, row)]
    options = read_options(tx.db, row)
    session = tx.one("SELECT model, effort FROM sessions WHERE id = ?", session_id)
    model, effort = (None, None) if session is None else (session["model"], session["effort"])
    command = messages.open_command(tx, row)
    return Started(claim, run, joined, options, run.model or model, options.effort or effort, command)


def set_waiting(tx: Transaction, claim: Claim, waiting: Waiting | None) -> None:
    """Store that the turn waits, or goes on; with the runs that joined it (P13)."""
    host = claimed_run(tx, claim)
    reason, until = (None, None) if waiting is None else (waiting.reason, waiting.until)
    since = host["waiting_since"] or (None if waiting is None else tx.now)
    for row in [host, *joined_runs(tx, host)]:
        tx.execute(
            "UPDATE runs SET wait_reason = ?, wait_until = ?, waiting_since = ? WHERE workspace_id = ? AND run_id = ?",
            *(reason, until, since, row["workspace_id"], row["run_id"]),
        )
        append_run_event(tx, row["workspace_id"], row["run_id"], "updated")


def waiting_since(db: sqlite3.Connection, workspace_id: str, run_id: str) -> float | None:
    """Return when the run began to wait, if its model has not answered since."""
    return get_run(db, workspace_id, run_id)["waiting_since"]


def cancel_session(tx: Transaction, workspace_id: str, session_id: str) -> list[str]:
    """Cancel the open runs: queued ones end here, the active turn ends later (P6)."""
    get_session(tx.db, workspace_id, session_id)
    return cancel_open(tx, session_id)


def cancel_open(tx: Transaction, session_id: str) -> list[str]:
    rows = open_runs(tx.db, session_id)
    for row in rows:
        if row["state"] == "queued":
            run_end.end_unstarted(tx, row, keeps_messages=True)
        elif row["merged_into"] is None:
            request_cancel(tx, row)
    return [row["run_id"] for row in sorted(rows, key=lambda row: (row["state"] == "queued", row["seq"]))]


def cancel_run(tx: Transaction, workspace_id: str, run_id: str) -> Run:
    """Cancel this run and those joined with it; one that has ended is unchanged."""
    row = get_run(tx.db, workspace_id, run_id)
    if row["state"] == "queued":
        run_end.end_unstarted(tx, row, keeps_messages=True)
    elif row["state"] == "running":
        request_cancel(tx, row if row["merged_into"] is None else get_run(tx.db, workspace_id, row["merged_into"]))
    return run_now(tx.db, workspace_id, run_id)


def finish(tx: Transaction, claim: Claim, outcome: Outcome) -> Run:
    """End the turn of `claim`. An earlier cancel takes precedence; a run that has ended is unchanged."""
    row = get_run(tx.db, claim.workspace_id, claim.run_id)
    if row["state"] == "running" and row["epoch"] == claim.epoch:
        if row["cancel_requested"]:
            outcome = Outcome("cancelled", survivors=outcome.survivors)
        run_end.end_turn(tx, row, outcome)
    return run_now(tx.db, claim.workspace_id, claim.run_id)


def request_cancel(tx: Transaction, host: sqlite3.Row) -> None:
    """Mark a run, those joined to it and its sub-agents as canceled; from then on their turns cannot write.

    A run that waits to be resumed after a restart has no turn to stop: it ends here.
    """
    if not host["is_claimed"]:
        run_end.end_turn(tx, host, Outcome("cancelled"))
        return
    for row in [host, *joined_runs(tx, host)]:
        if not row["cancel_requested"]:
            tx.execute(
                "UPDATE runs SET cancel_requested = 1 WHERE workspace_id = ? AND run_id = ?",
                *(row["workspace_id"], row["run_id"]),
            )
            append_run_event(tx, row["workspace_id"], row["run_id"], "updated")
        for child in open_children(tx, row):
            if child["state"] == "queued":
                run_end.end_unstarted(tx, child, keeps_messages=True)
            elif child["merged_into"] is None:
                request_cancel(tx, child)


def status(db: sqlite3.Connection, workspace_id: str, session_id: str) -> SessionStatus:
    session = get_session(db, workspace_id, session_id)
    rows = open_runs(db, session_id)
    runs = [run_now(db, workspace_id, row["run_id"]) for row in rows]
    active = next((run for run in runs if run.state == "running" and run.merged_into is None), None)
    queue = [run for run in runs if run.state == "queued"]
    return SessionStatus(**msgspec.structs.asdict(session), is_busy=bool(runs), active=active, queue=queue)


def switch_mode(tx: Transaction, workspace_id: str, run_id: str, mode: Mode) -> Run:
    """Set the mode of an open run, and of all that share its turn: joined runs and sub-agents have the same one.

    So have the queued ones that wait to join it, if theirs was the same: with another mode they would not join.
    """
    top = row = get_run(tx.db, workspace_id, run_id)
    while (above := top["merged_into"] or top["parent_run_id"]) is not None:
        top = get_run(tx.db, workspace_id, above)
    if row["state"] not in OPEN_STATES or row["cancel_requested"]:
        how = "was canceled" if row["cancel_requested"] else f"has ended as {row['state']}"
        raise Conflict("run_ended", f"run {run_id} {how}; the mode of the next prompt is sent with it")
    if top["kind"] != "prompt":
        raise Conflict("no_mode", f"run {run_id} is of kind {top['kind']}, which has no mode")
    if top["permissions"] == "allow" and mode not in ("plan", "yolo"):
        raise Conflict("no_mode", f"run {run_id} allows everything (permissions: allow); only plan is stricter for it")
    joining = [each for each in open_runs(tx.db, top["session_id"]) if each["state"] == "queued" and each["may_join"]]
    for each in [top, *(each for each in joining if top["state"] == "running" and each["mode"] == top["mode"])]:
        _set_mode(tx, each, mode)
    return run_now(tx.db, workspace_id, run_id)


def _set_mode(tx: Transaction, row: sqlite3.Row, mode: Mode) -> None:
    for each in [row, *joined_runs(tx, row)]:
        if each["mode"] != mode:
            tx.execute(
                "UPDATE runs SET mode = ? WHERE workspace_id = ? AND run_id = ?",
                *(mode, each["workspace_id"], each["run_id"]),
            )
            append_run_event(tx, each["workspace_id"], each["run_id"], "updated")
        for child in open_children(tx, each):
            _set_mode(tx, child, mode)


def options_of(db: sqlite3.Connection, workspace_id: str, run_id: str) -> RunOptions:
    """Return the run's options, with its current mode."""
    row = get_run(db, workspace_id, run_id)
    return msgspec.structs.replace(read_options(db, row), mode=row["mode"])


def open_sessions(db: sqlite3.Connection) -> list[tuple[str, str]]:
    rows = db.execute(
        "SELECT DISTINCT workspace_id, session_id FROM runs WHERE state IN ('queued', 'running') ORDER BY seq"
    ).fetchall()
    return [(row["workspace_id"], row["session_id"]) for row in rows]


def list_runs(
    db: sqlite3.Connection, workspace_id: str, session_id: str | None, state: RunState | None, limit: int, prefix: str
) -> list[RunStatus]:
    """Return the newest `limit` runs, in the order of acceptance. `prefix`: the beginning of their IDs."""
    end = prefix + "\x7f"  # behind every character of an ID
    wanted = {
        "workspace_id = ?": workspace_id,
        "session_id = ?": session_id,
        "state = ?": state,
        "run_id >= ?": prefix or None,
        "run_id < ?": end if prefix else None,
    }
    given = {condition: value for condition, value in wanted.items() if value is not None}
    conditions = " AND ".join(given)
    rows = db.execute(
        f"{RUN_STATUSES} WHERE {conditions} ORDER BY seq DESC LIMIT ?", (*given.values(), limit)
    ).fetchall()
    return [status_of(row) for row in reversed(rows)]


def _hash_body(submission: Submission, options: bytes | None) -> bytes:
    """Return the hash of the body (P3). Without options it equals that of older versions: receipts survive upgrades."""
    body = {field: getattr(submission, field) for field in submission.__struct_fields__ if field != "options"}
    return hashlib.sha256(_encode_body(body) + (options or b"")).digest()


def _get_working_parent(tx: Transaction, workspace_id: str, parent_run_id: str) -> sqlite3.Row:
    parent = get_run(tx.db, workspace_id, parent_run_id)
    if parent["state"] != "running" or parent["cancel_requested"]:
        raise ClaimLost(parent_run_id)
    return parent


MAX_ATTEMPTS = 3  # a run that crashed the server three times would do so again (P13)

INTERRUPTED_NOTE = messages.EndNote(
    "Interrupted: the server stopped while this call was running. It may have had effects; it was not repeated.",
    "The server stopped while this was running. It may have had effects; it was not repeated.",
    {INTERRUPTED: True},
)


def suspend(tx: Transaction, workspace_id: str, run_id: str, epoch: int) -> None:
    """Leave a run to the next server at an orderly stop; that does not count as an attempt (P15)."""
    row = get_run(tx.db, workspace_id, run_id)
    if row["state"] != "running" or row["epoch"] != epoch:
        return
    if row["cancel_requested"]:
        run_end.end_turn(tx, row, Outcome("cancelled"))
        return
    interrupt_turn(tx, row)
    tx.execute(
        "UPDATE runs SET suspended = 1, is_claimed = 0, epoch = epoch + 1 WHERE workspace_id = ? AND run_id = ?",
        *(workspace_id, run_id),
    )


def recover(tx: Transaction) -> None:
    """Decide the runs of a dead server: end the canceled, fail those without attempts left, prepare the others."""
    for row in tx.all(
        # The redundant `IN` makes SQLite use the partial index.
        "SELECT * FROM runs WHERE state IN ('queued', 'running') AND state = 'running' AND merged_into IS NULL"
        " AND parent_run_id IS NULL ORDER BY seq"
    ):
        if prepare_next_attempt(tx, row):
            tx.execute(
                "UPDATE runs SET is_claimed = 0 WHERE workspace_id = ? AND run_id = ?",
                *(row["workspace_id"], row["run_id"]),
            )
    tx.execute("DELETE FROM processes")


def prepare_next_attempt(tx: Transaction, row: sqlite3.Row) -> bool:
    """Prepare a run whose turn is gone for its next attempt; returns False if it has ended instead.

    A run that only waited did not take the server down: that is no attempt.
    """
    if row["cancel_requested"]:
        run_end.end_turn(tx, row, Outcome("cancelled"))
        return False
    interrupt_turn(tx, row)
    if row["attempt"] >= MAX_ATTEMPTS and not row["suspended"] and row["wait_reason"] is None:
        error = f"the server stopped {row['attempt']} times while this run was working; it is not tried again"
        run_end.end_turn(tx, row, Outcome("failed", error, "interrupted"))
        return False
    return True


def interrupt_turn(tx: Transaction, host: sqlite3.Row) -> None:
    """Finish open messages as interrupted, because the server stops or died; pending requests stay (P13).

    Calls whose state is stored go on, and stay open.
    """
    run_end.end_children(tx, host)  # their parents' tool calls are interrupted
    ids = (host["workspace_id"], host["run_id"])
    messages.close_open(tx, *ids, "interrupted", None, INTERRUPTED_NOTE, keeps_calls=True)


def record_process(tx: Transaction, claim: Claim, process: ProcessRecord) -> None:
    claimed_run(tx, claim)
    tx.execute(
        "INSERT OR REPLACE INTO processes (workspace_id, run_id, pgid, started) VALUES (?, ?, ?, ?)",
        *(claim.workspace_id, claim.run_id, process.pgid, process.started),
    )


def keep_process(tx: Transaction, claim: Claim, process: ProcessRecord) -> None:
    """Detach the group from its run: from now on it belongs to the workspace."""
    claimed_run(tx, claim)
    tx.execute("UPDATE processes SET run_id = '' WHERE pgid = ? AND started = ?", process.pgid, process.started)


def record_workspace_process(tx: Transaction, workspace_id: str, process: ProcessRecord) -> None:
    """Record a group that belongs to the workspace from the beginning."""
    tx.execute(
        "INSERT OR REPLACE INTO processes (workspace_id, run_id, pgid, started) VALUES (?, '', ?, ?)",
        *(workspace_id, process.pgid, process.started),
    )


def forget_process(tx: Transaction, process: ProcessRecord) -> None:
    tx.execute("DELETE FROM processes WHERE pgid = ? AND started = ?", process.pgid, process.started)


def left_processes(db: sqlite3.Connection) -> list[ProcessRecord]:
    return [ProcessRecord(row["pgid"], row["started"]) for row in db.execute("SELECT pgid, started FROM processes")]

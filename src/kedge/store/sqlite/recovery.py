"""Runs that a server leaves unfinished, and process groups that it leaves running: what the next server does (P13)."""

from __future__ import annotations

import sqlite3

from kedge.store.port import Claim, Outcome, ProcessRecord
from kedge.store.sqlite import messages
from kedge.store.sqlite.rows import claimed_run, get_run
from kedge.store.sqlite.run_end import end_children, end_turn
from kedge.store.sqlite.transaction import Transaction

MAX_ATTEMPTS = 3  # a run that crashed the server three times would do so again (P13)

INTERRUPTED_NOTE = (
    "Interrupted: the server stopped while this call was running. It may have had effects; it was not repeated."
)


def suspend(tx: Transaction, workspace_id: str, run_id: str, epoch: int) -> None:
    """Leave a run to the next server at an orderly stop; that does not count as an attempt (P15)."""
    row = get_run(tx.db, workspace_id, run_id)
    if row["state"] != "running" or row["epoch"] != epoch:
        return
    if row["cancel_requested"]:
        end_turn(tx, row, Outcome("cancelled"))
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
    """Prepare a run whose turn is gone for its next attempt; returns False if it has ended instead."""
    if row["cancel_requested"]:
        end_turn(tx, row, Outcome("cancelled"))
        return False
    interrupt_turn(tx, row)
    if row["attempt"] >= MAX_ATTEMPTS and not row["suspended"]:
        error = f"the server stopped {row['attempt']} times while this run was working; it is not tried again"
        end_turn(tx, row, Outcome("failed", error, "interrupted"))
        return False
    return True


def interrupt_turn(tx: Transaction, host: sqlite3.Row) -> None:
    """Finish open messages as interrupted, because the server stops or died; pending requests stay (P13)."""
    end_children(tx, host)  # their parents' tool calls are interrupted
    messages.close_open(tx, host["workspace_id"], host["run_id"], "interrupted", None, INTERRUPTED_NOTE)


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


def forget_process(tx: Transaction, process: ProcessRecord) -> None:
    tx.execute("DELETE FROM processes WHERE pgid = ? AND started = ?", process.pgid, process.started)


def left_processes(db: sqlite3.Connection) -> list[ProcessRecord]:
    return [ProcessRecord(row["pgid"], row["started"]) for row in db.execute("SELECT pgid, started FROM processes")]

"""The process groups that tools started, so that the next server can end what a dead one left behind (P13)."""

from __future__ import annotations

import sqlite3

from kedge.store.port import Claim, LeftProcess
from kedge.store.sqlite.rows import claimed_run
from kedge.store.sqlite.tx import Tx


def record(tx: Tx, claim: Claim, process: LeftProcess) -> None:
    claimed_run(tx, claim)
    tx.execute(
        "INSERT OR REPLACE INTO processes (workspace_id, run_id, pgid, started) VALUES (?, ?, ?, ?)",
        *(claim.workspace_id, claim.run_id, process.pgid, process.started),
    )


def keep(tx: Tx, claim: Claim, process: LeftProcess) -> None:
    """It outlives its run: from now on it belongs to the workspace."""
    claimed_run(tx, claim)
    tx.execute("UPDATE processes SET run_id = '' WHERE pgid = ? AND started = ?", process.pgid, process.started)


def forget(tx: Tx, process: LeftProcess) -> None:
    tx.execute("DELETE FROM processes WHERE pgid = ? AND started = ?", process.pgid, process.started)


def left(db: sqlite3.Connection) -> list[LeftProcess]:
    return [LeftProcess(row["pgid"], row["started"]) for row in db.execute("SELECT pgid, started FROM processes")]

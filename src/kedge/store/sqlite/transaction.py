"""One transaction: its statements, and the events it appends to the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from kedge.protocol.events import Change, LogType, frame
from kedge.protocol.messages import RawMessage
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.protocol.runs import Run, RunEnd
from kedge.store.port import Committed

Payload = Run | RunEnd | RawMessage | RequestResolution | PermissionRequest | QuestionRequest


class Transaction:
    """Passed to each transaction function; `events` are published only if it is committed."""

    def __init__(self, db: sqlite3.Connection, now: float, new_id: Callable[[], str]) -> None:
        self.db = db
        self.now = now
        self.new_id = new_id
        self.events: list[Committed] = []

    def one(self, sql: str, *args: Any) -> sqlite3.Row | None:
        return self.db.execute(sql, args).fetchone()

    def all(self, sql: str, *args: Any) -> list[sqlite3.Row]:
        return self.db.execute(sql, args).fetchall()

    def execute(self, sql: str, *args: Any) -> int:
        return self.db.execute(sql, args).rowcount

    def next_seq(self, workspace_id: str) -> int:
        """Return the next seq of the workspace's log; its event must be appended in the same transaction."""
        row = self.one("UPDATE workspaces SET head = head + 1 WHERE id = ? RETURNING head", workspace_id)
        assert row is not None, f"no workspace {workspace_id}"
        return row[0]

    def append(
        self,
        type: LogType,
        change: Change,
        workspace_id: str,
        session_id: str,
        encoded: bytes,
        *,
        seq: int | None = None,
        payload: Payload | None = None,
        is_open: bool = False,
        subject: str | None = None,
        parts: int | None = None,
        body: bytes | None = None,
    ) -> int:
        """Append one event. `encoded`: the payload for clients; `body`: the bytes stored to build it again (log.py)."""
        if seq is None:
            seq = self.next_seq(workspace_id)
        self.db.execute(
            "INSERT INTO events (workspace_id, seq, at, type, change, session_id, subject, parts, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (workspace_id, seq, self.now, type, change, session_id, subject, parts, body),
        )
        wire = frame(type, change, encoded, seq)
        self.events.append(Committed(workspace_id, seq, type, change, session_id, wire, payload, is_open))
        return seq

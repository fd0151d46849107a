"""Forks: a new session with copies of another one's messages and changes of files, and no runs."""

from __future__ import annotations

import os
import sqlite3

from kedge.protocol.bounds import MAX_TITLE_CHARS
from kedge.protocol.errors import NotFound
from kedge.protocol.events import encode
from kedge.protocol.messages import replace_surrogates
from kedge.protocol.sessions import Session
from kedge.store.files_port import NewChange
from kedge.store.sqlite import changes
from kedge.store.sqlite.log import parts_of, raw_message_of
from kedge.store.sqlite.rows import append_session_event, get_session
from kedge.store.sqlite.transaction import Transaction

SUFFIX = " (fork)"
END = 2**62  # greater than every seq


def fork(tx: Transaction, workspace_id: str, session_id: str, message_id: str) -> Session:
    """Create a session with everything up to this message. Run ids in it are new and name no run (P3)."""
    get_session(tx.db, workspace_id, session_id)
    upto = tx.one("SELECT seq FROM messages WHERE id = ? AND session_id = ? AND undone = 0", message_id, session_id)
    if upto is None:
        raise NotFound("message", message_id)
    fork_id, seq = tx.new_id(), tx.next_seq(workspace_id)
    tx.execute(
        "INSERT INTO sessions (id, workspace_id, title, created_at, updated_at, last_seq, model, effort)"
        " SELECT ?, workspace_id, substr(title, 1, ?) || ?, ?, ?, ?, model, effort FROM sessions WHERE id = ?",
        *(fork_id, MAX_TITLE_CHARS - len(SUFFIX), SUFFIX, tx.now, tx.now, seq, session_id),
    )
    session = append_session_event(tx, workspace_id, fork_id, "created", seq)
    copier = _Copier(tx, workspace_id, fork_id)
    messages = tx.all(
        "SELECT * FROM messages WHERE session_id = ? AND undone = 0 AND seq <= ? AND reason IS NOT NULL ORDER BY seq",
        *(session_id, upto["seq"]),
    )
    files = tx.all(
        f"SELECT * FROM changes WHERE session_id IN {changes.FAMILY} AND undone = 0 AND unsure IS NULL AND seq < ?"
        " ORDER BY id",
        *(session_id, seq_after(tx.db, session_id, upto["seq"])),
    )
    copies = [(row["seq"], copier.copy_message, row) for row in messages] + [
        (row["seq"], copier.copy_change, row) for row in files
    ]
    for _, add, row in sorted(copies, key=lambda each: each[0]):
        add(row)
    return session


def seq_after(db: sqlite3.Connection, session_id: str, seq: int) -> int:
    """Return the seq of the next message, or a larger one than any if there is none."""
    (following,) = db.execute(
        "SELECT min(seq) FROM messages WHERE session_id = ? AND undone = 0 AND seq > ?", (session_id, seq)
    ).fetchone()
    return END if following is None else following


class _Copier:
    def __init__(self, tx: Transaction, workspace_id: str, session_id: str) -> None:
        self._tx = tx
        self._workspace_id = workspace_id
        self._session_id = session_id
        self._messages: dict[str, str] = {}
        self._runs: dict[str, str] = {}
        workspace = tx.one("SELECT path FROM workspaces WHERE id = ?", workspace_id)
        assert workspace is not None
        self._root = os.fsencode(workspace["path"]) + b"/"

    def copy_message(self, row: sqlite3.Row) -> None:
        tx, seq = self._tx, self._tx.next_seq(self._workspace_id)
        copy_id = self._messages[row["id"]] = tx.new_id()
        tx.execute(
            "INSERT INTO messages (id, workspace_id, session_id, run_id, role, model, summary, created_at, seq, reason,"
            " hidden, call_message_id, call_id, call_name) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(copy_id, self._workspace_id, self._session_id, self._map_run(row["run_id"]), row["role"], row["model"]),
            *(row["summary"], row["created_at"], seq, row["reason"], row["hidden"]),
            *(self._messages.get(row["call_message_id"]), row["call_id"], row["call_name"]),
        )
        tx.execute(
            "INSERT INTO parts (message_id, idx, body) SELECT ?, idx, body FROM parts WHERE message_id = ?",
            *(copy_id, row["id"]),
        )
        made = tx.one("SELECT * FROM messages WHERE id = ?", copy_id)
        assert made is not None
        parts = parts_of(tx.db, copy_id)
        message = raw_message_of(made, parts)
        tx.append(
            "message",
            "created",
            self._workspace_id,
            self._session_id,
            encode(message),
            seq=seq,
            payload=message,
            subject=copy_id,
            parts=len(parts),
        )

    def copy_change(self, row: sqlite3.Row) -> None:
        seq, run_id = self._tx.next_seq(self._workspace_id), self._map_run(row["run_id"])
        change = NewChange(
            path=row["path"],
            shown=replace_surrogates(os.fsdecode(row["path"].removeprefix(self._root))),
            before=row["before"],
            after=row["after"],
            added=row["added"],
            removed=row["removed"],
        )
        changes.add(self._tx, self._workspace_id, self._session_id, run_id, seq, row["version"], change)
        changes.append_file_event(self._tx, self._workspace_id, self._session_id, run_id, seq, row["version"], change)

    def _map_run(self, run_id: str) -> str:
        if run_id not in self._runs:
            self._runs[run_id] = self._tx.new_id()
        return self._runs[run_id]

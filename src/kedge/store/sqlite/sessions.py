"""Workspaces and sessions: opened, created, changed, deleted."""

from __future__ import annotations

import sqlite3

from msgspec import UNSET

from kedge.protocol.errors import Conflict, NotFound
from kedge.protocol.events import ConfigChanged, encode
from kedge.protocol.sessions import ListedSession, Session, SessionChange, Workspace
from kedge.store.port import Claim, WorkspaceState
from kedge.store.sqlite import requests, runs, undos
from kedge.store.sqlite.changes import FAMILY
from kedge.store.sqlite.log import struct_of
from kedge.store.sqlite.rows import append_session_event, claimed_run, get_session, session_of, usage_of
from kedge.store.sqlite.writer import Transaction


def open_workspace(tx: Transaction, path: str) -> WorkspaceState:
    """Return the workspace of a resolved path; create it if there is none."""
    tx.execute(
        "INSERT INTO workspaces (id, path, log_id, created_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (path) WHERE deleted = 0 DO NOTHING",
        *(tx.new_id(), path, tx.new_id(), tx.now),
    )
    return _state(tx.db, tx.get("SELECT * FROM workspaces WHERE path = ? AND deleted = 0", path))


def delete_workspace(tx: Transaction, workspace_id: str) -> None:
    """Hide the workspace from all clients and free its path; `retention` removes its rows in batches."""
    _require_workspace(tx, workspace_id)
    busy = tx.one(
        "SELECT run_id FROM runs WHERE workspace_id = ? AND state IN ('queued', 'running') LIMIT 1", workspace_id
    )
    if busy is not None:
        raise Conflict("workspace_busy", f"run {busy['run_id']} is still open; cancel it first")
    if undos.is_workspace_restoring(tx, workspace_id):
        raise Conflict("workspace_busy", "files of a session are being restored; try again in a moment")
    tx.execute("UPDATE workspaces SET deleted = 1 WHERE id = ?", workspace_id)
    # There is no event for it. Its sessions cannot be found any more; unfinished deletions are done.
    tx.execute(
        "UPDATE sessions SET deleting = 1, deleted_seq = 0 WHERE workspace_id = ? AND deleted_seq IS NULL", workspace_id
    )


def append_config_changed(tx: Transaction, workspace_id: str) -> None:
    """Append an event only: the configuration itself is not in the store."""
    _require_workspace(tx, workspace_id)
    body = encode(ConfigChanged(workspace_id))
    tx.append("config_changed", "updated", workspace_id, "", body, body=body)


def workspaces(db: sqlite3.Connection) -> list[WorkspaceState]:
    rows = db.execute("SELECT * FROM workspaces WHERE deleted = 0 ORDER BY created_at, id").fetchall()
    return [_state(db, row) for row in rows]


def create(tx: Transaction, workspace_id: str, title: str, parent_session_id: str | None) -> Session:
    _require_workspace(tx, workspace_id)
    if parent_session_id is not None:
        get_session(tx.db, workspace_id, parent_session_id)
    seq, session_id = tx.next_seq(workspace_id), tx.new_id()
    tx.execute(
        "INSERT INTO sessions (id, workspace_id, title, parent_session_id, created_at, updated_at, last_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        *(session_id, workspace_id, title, parent_session_id, tx.now, tx.now, seq),
    )
    return append_session_event(tx, workspace_id, session_id, "created", seq)


def change(tx: Transaction, workspace_id: str, session_id: str, fields: SessionChange) -> Session:
    """Change the given fields; without any, there is no event."""
    get_session(tx.db, workspace_id, session_id)
    given = {name: value for name in fields.__struct_fields__ if (value := getattr(fields, name)) is not UNSET}
    if given:
        columns = "".join(f"{name} = ?, " for name in given)
        tx.execute(f"UPDATE sessions SET {columns}updated_at = ? WHERE id = ?", *given.values(), tx.now, session_id)
        return append_session_event(tx, workspace_id, session_id, "updated")
    return session_of(tx.get("SELECT * FROM sessions WHERE id = ?", session_id))


def retitle(tx: Transaction, workspace_id: str, session_id: str, expected: str, title: str) -> bool:
    """Rename a session if its title is still `expected`; returns whether it was."""
    row = tx.one(
        "SELECT title FROM sessions WHERE id = ? AND workspace_id = ? AND deleting = 0", session_id, workspace_id
    )
    if row is None or row["title"] != expected:
        return False
    change(tx, workspace_id, session_id, SessionChange(title=title))
    return True


def begin_delete(tx: Transaction, workspace_id: str, session_id: str) -> list[str]:
    """Make the session and its children refuse prompts, and cancel their open runs; returns these."""
    get_session(tx.db, workspace_id, session_id)
    cancelled: list[str] = []
    for each in _family(tx, session_id):
        tx.execute("UPDATE sessions SET deleting = 1 WHERE id = ?", each)
        cancelled += runs.cancel_open(tx, each)
    return cancelled


def end_delete(tx: Transaction, workspace_id: str, session_id: str) -> None:
    """Hide the session from all clients, after its runs have ended. Retention removes its rows with this event."""
    for each in reversed(_family(tx, session_id)):
        row = tx.one("SELECT * FROM sessions WHERE id = ? AND deleted_seq IS NULL", each)
        if row is not None:
            seq = tx.next_seq(workspace_id)
            tx.execute("UPDATE sessions SET deleted_seq = ?, deleted_at = ? WHERE id = ?", seq, tx.now, each)
            for table in ("changes", "undos", "file_work", "unwatched", "surroundings"):  # no event refers to them
                tx.execute(f"DELETE FROM {table} WHERE session_id = ?", each)
            append_session_event(tx, workspace_id, each, "deleted", seq)


def unfinished_deletes(db: sqlite3.Connection) -> list[tuple[str, str]]:
    rows = db.execute("SELECT workspace_id, id FROM sessions WHERE deleting = 1 AND deleted_seq IS NULL").fetchall()
    return [(row["workspace_id"], row["id"]) for row in rows]


def list_sessions(db: sqlite3.Connection, workspace_id: str, query: str, limit: int) -> list[Session]:
    """Return sessions, the last used first; `query` is searched in titles and prompts."""
    rows = db.execute(
        f"SELECT * FROM sessions s WHERE workspace_id = ?1 AND {_MATCHES} ORDER BY last_seq DESC LIMIT ?3",
        (workspace_id, _make_pattern(query), limit),
    ).fetchall()
    return [session_of(row) for row in rows]


_MATCHES = (
    "s.deleted_seq IS NULL AND s.deleting = 0 AND (?2 = '%%' OR s.title LIKE ?2 ESCAPE '!'"
    " OR EXISTS (SELECT 1 FROM runs r JOIN prompts USING (workspace_id, run_id)"
    " WHERE r.session_id = s.id AND prompt LIKE ?2 ESCAPE '!'))"
)


def _make_pattern(query: str) -> str:
    return f"%{query.replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"


def list_all_sessions(db: sqlite3.Connection, query: str, limit: int) -> list[ListedSession]:
    """Return sessions of all workspaces, the last used first, without those of sub-agents."""
    rows = db.execute(
        "SELECT s.*, w.path, (SELECT m.model FROM messages m WHERE m.session_id = s.id AND m.model IS NOT NULL"
        " ORDER BY m.seq DESC LIMIT 1) AS last_model,"
        " EXISTS (SELECT 1 FROM runs r WHERE r.session_id = s.id AND r.state IN ('queued', 'running')) AS is_busy"
        " FROM sessions s JOIN workspaces w ON w.id = s.workspace_id"
        f" WHERE w.deleted = 0 AND s.parent_session_id IS NULL AND {_MATCHES}"
        " ORDER BY s.updated_at DESC LIMIT ?3",
        (None, _make_pattern(query), limit),
    ).fetchall()
    asking = requests.asking_sessions(db)
    return [
        struct_of(
            row,
            ListedSession,
            usage=usage_of(row),
            state="needs_you" if row["id"] in asking else "running" if row["is_busy"] else "idle",
        )
        for row in rows
    ]


def keep_surroundings(tx: Transaction, claim: Claim, body: bytes) -> bytes:
    """Store the surroundings of a session if it has none yet; return the stored ones, which never change."""
    claimed_run(tx, claim)
    tx.execute(
        "INSERT INTO surroundings (session_id, workspace_id, body) VALUES (?, ?, ?)"
        " ON CONFLICT (session_id) DO NOTHING",
        *(claim.session_id, claim.workspace_id, body),
    )
    return tx.get("SELECT body FROM surroundings WHERE session_id = ?", claim.session_id)["body"]


def keep_tools(tx: Transaction, claim: Claim, body: bytes) -> None:
    """Replace the tools that the session's requests contain."""
    claimed_run(tx, claim)
    tx.execute("UPDATE surroundings SET tools = ? WHERE session_id = ?", body, claim.session_id)


def tools(db: sqlite3.Connection, session_id: str) -> bytes | None:
    row = db.execute("SELECT tools FROM surroundings WHERE session_id = ?", (session_id,)).fetchone()
    return None if row is None else row["tools"]


def surroundings(db: sqlite3.Connection, session_id: str) -> bytes | None:
    row = db.execute("SELECT body FROM surroundings WHERE session_id = ?", (session_id,)).fetchone()
    return None if row is None else row["body"]


def set_note(tx: Transaction, claim: Claim, message_id: str, body: bytes) -> None:
    """Set the note of a message, in place of the one that it has."""
    claimed_run(tx, claim)
    tx.execute(
        "UPDATE messages SET note = ? WHERE id = ? AND session_id = ?",
        *(body, message_id, claim.session_id),
    )


def notes(db: sqlite3.Connection, session_id: str) -> dict[str, bytes]:
    """Return the notes of a session by their message, oldest first."""
    rows = db.execute(
        "SELECT id, note FROM messages WHERE session_id = ? AND note IS NOT NULL AND undone = 0 ORDER BY seq",
        (session_id,),
    )
    return {row["id"]: row["note"] for row in rows}


def _require_workspace(tx: Transaction, workspace_id: str) -> None:
    if tx.one("SELECT 1 FROM workspaces WHERE id = ? AND deleted = 0", workspace_id) is None:
        raise NotFound("workspace", workspace_id)


def _state(db: sqlite3.Connection, row: sqlite3.Row) -> WorkspaceState:
    workspace = Workspace(row["id"], row["path"], row["created_at"])
    return WorkspaceState(workspace, row["log_id"], row["head"], requests.pending_requests(db, row["id"]))


def _family(tx: Transaction, session_id: str) -> list[str]:
    return [row["id"] for row in tx.all(f"SELECT id FROM {FAMILY}", session_id)]

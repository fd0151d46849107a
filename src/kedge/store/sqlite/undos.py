"""Undos: messages and changes hidden from models and people, kept for a redo until the next prompt; and forks.

Files are restored between `begin` and `finish`, outside of any transaction: the row has the plan, so that the next
server can continue. `finish` is the commit: before it nothing is undone, after it everything is.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence

from kedge.protocol.bounds import MAX_TITLE_CHARS
from kedge.protocol.errors import Conflict, NotFound, SessionBusy
from kedge.protocol.files import NothingToRedo
from kedge.protocol.messages import ShellCommand, replace_surrogates, text_of
from kedge.protocol.sessions import Session
from kedge.store.port import Cut, NewChange, NewUndo, Undo
from kedge.store.sqlite import changes
from kedge.store.sqlite.changes import FAMILY
from kedge.store.sqlite.log import decode_parts, parts_of, struct_of
from kedge.store.sqlite.rows import append_message_event, append_session_event, get_session, open_runs
from kedge.store.sqlite.writer import Transaction

_UNFINISHED = "state IN ('undoing', 'redoing')"
# A session and its ancestors, if it is a sub-agent's.
ANCESTORS = (
    "(WITH RECURSIVE ancestors (id) AS (SELECT ? UNION SELECT s.parent_session_id FROM sessions s"
    " JOIN ancestors a ON s.id = a.id WHERE s.parent_session_id IS NOT NULL) SELECT id FROM ancestors)"
)


def cut_before(db: sqlite3.Connection, workspace_id: str, session_id: str, message_id: str | None) -> Cut:
    """Return the cut before a message; by default the last user message."""
    row = _find_message(db, workspace_id, session_id, message_id, "role = 'user'")
    if row is None:
        raise Conflict("nothing_to_undo", "the session has no message that could be undone")
    return Cut(seq=row["seq"], message_id=row["id"], prompt=typed_prompt(db, row))


def cut_after(db: sqlite3.Connection, workspace_id: str, session_id: str, message_id: str | None) -> Cut:
    """Return the cut after a message; by default the last finished one."""
    row = _find_message(db, workspace_id, session_id, message_id, "reason IS NOT NULL")
    if row is None:
        raise Conflict("nothing_to_fork", "the session has no message yet; start a new one")
    if row["reason"] is None:
        raise Conflict("message_unfinished", f"message {row['id']} is still being written; wait for its end")
    return Cut(seq=seq_after(db, session_id, row["seq"]), message_id=row["id"])


def _find_message(
    db: sqlite3.Connection, workspace_id: str, session_id: str, message_id: str | None, condition: str
) -> sqlite3.Row | None:
    """Return a message of the session; by default the last one that meets the condition."""
    get_session(db, workspace_id, session_id)
    only, args = (condition, ()) if message_id is None else ("id = ?", (message_id,))
    sql = f"SELECT * FROM messages WHERE session_id = ? AND undone = 0 AND {only} ORDER BY seq DESC LIMIT 1"
    row = db.execute(sql, (session_id, *args)).fetchone()
    if row is None and message_id is not None:
        raise NotFound("message", message_id)
    return row


def begin(tx: Transaction, workspace_id: str, session_id: str, undo: NewUndo) -> int:
    """Store the plan. Until `finish` or `abandon` the session accepts no prompt."""
    _check_idle(tx, workspace_id, session_id)
    row = tx.get(
        "INSERT INTO undos (workspace_id, session_id, state, cut, message_id, hides, reverts, fork_after, plan, at)"
        " VALUES (?, ?, 'undoing', ?, ?, ?, ?, ?, ?, ?) RETURNING id",
        *(workspace_id, session_id, undo.cut.seq, undo.cut.message_id, undo.hides, undo.reverts, undo.fork_after),
        *(undo.plan, tx.now),
    )
    return row["id"]


def begin_redo(tx: Transaction, workspace_id: str, session_id: str, undo_id: int) -> None:
    _check_idle(tx, workspace_id, session_id)
    undo = last(tx.db, workspace_id, session_id)
    if undo is None or undo.id != undo_id:
        raise NothingToRedo
    tx.execute("UPDATE undos SET state = 'redoing' WHERE id = ?", undo_id)


def finish(tx: Transaction, undo_id: int, plan: bytes) -> Session:
    """Hide or restore the messages and changes, after the files. Returns the session, or the fork."""
    undo = tx.one("SELECT * FROM undos WHERE id = ?", undo_id)
    if undo is None:
        raise NotFound("session", f"of undo {undo_id}")  # it was deleted meanwhile
    if undo["state"] == "redoing":
        _unhide(tx, undo)
        return _mark_rewritten(tx, undo["workspace_id"], undo["session_id"])
    _hide(tx, undo, plan)
    session = _mark_rewritten(tx, undo["workspace_id"], undo["session_id"])
    tx.execute("UPDATE undos SET seq = (SELECT head FROM workspaces WHERE id = workspace_id) WHERE id = ?", undo_id)
    if undo["fork_after"] is None:
        return session
    return fork(tx, undo["workspace_id"], undo["session_id"], undo["fork_after"])


def _hide(tx: Transaction, undo: sqlite3.Row, plan: bytes) -> None:
    tx.execute("UPDATE undos SET state = 'undone', plan = ? WHERE id = ?", plan, undo["id"])
    if undo["hides"]:
        tx.execute(
            "UPDATE messages SET undone = ? WHERE session_id = ? AND seq >= ? AND undone = 0",
            *(undo["id"], undo["session_id"], undo["cut"]),
        )
    if undo["reverts"] != "none":
        only = " AND unsure IS NULL" if undo["reverts"] == "sure" else ""
        tx.execute(
            f"UPDATE changes SET undone = ? WHERE session_id IN {FAMILY} AND seq >= ? AND undone = 0{only}",
            *(undo["id"], undo["session_id"], undo["cut"]),
        )


def _unhide(tx: Transaction, undo: sqlite3.Row) -> None:
    tx.execute("UPDATE undos SET state = 'redone' WHERE id = ?", undo["id"])
    tx.execute("UPDATE messages SET undone = 0 WHERE session_id = ? AND undone = ?", undo["session_id"], undo["id"])
    tx.execute(
        "UPDATE changes SET undone = 0 WHERE undone = ? AND undone > 0", undo["id"]
    )  # the condition of its partial index


def abandon(tx: Transaction, undo_id: int) -> None:
    """Remove an undo whose files were reverted; a redo becomes an undo again."""
    tx.execute("DELETE FROM undos WHERE id = ? AND state = 'undoing'", undo_id)
    tx.execute("UPDATE undos SET state = 'undone' WHERE id = ? AND state = 'redoing'", undo_id)


def drop(tx: Transaction, workspace_id: str, session_id: str) -> None:
    """Drop the undos of a session at a new prompt: they cannot be redone any more."""
    check_not_restoring(tx, session_id)
    if tx.execute("UPDATE undos SET state = 'dropped' WHERE session_id = ? AND state = 'undone'", session_id):
        _mark_rewritten(tx, workspace_id, session_id)


def check_not_restoring(tx: Transaction, session_id: str) -> None:
    """Raise `Conflict` while an undo of the session or of an ancestor is restoring files."""
    if _is_restoring(tx, session_id, ANCESTORS):
        raise Conflict("session_busy", "the session's files are being restored; try again in a moment")


def is_workspace_restoring(tx: Transaction, workspace_id: str) -> bool:
    return bool(tx.one(f"SELECT 1 FROM undos WHERE {_UNFINISHED} AND workspace_id = ?", workspace_id))


def _is_restoring(tx: Transaction, session_id: str, sessions: str) -> bool:
    return bool(tx.one(f"SELECT 1 FROM undos WHERE {_UNFINISHED} AND session_id IN {sessions}", session_id))


def restores_before(db: sqlite3.Connection, session_id: str, message_id: str) -> list[bytes]:
    """Return the plans of undos of files alone that happened between a message and the one before it, oldest first."""
    rows = db.execute(
        "SELECT u.plan FROM undos u JOIN messages m ON m.id = ? WHERE u.session_id = ? AND u.hides = 0"
        " AND u.reverts != 'none' AND u.state = 'dropped' AND u.seq < m.seq AND u.seq >= (SELECT COALESCE(MAX(seq), 0)"
        " FROM messages WHERE session_id = ? AND seq < m.seq AND undone = 0) ORDER BY u.id",
        (message_id, session_id, session_id),
    )
    return [row["plan"] for row in rows]


def last(db: sqlite3.Connection, workspace_id: str, session_id: str) -> Undo | None:
    """Return the undo that a redo would revert."""
    get_session(db, workspace_id, session_id)
    row = db.execute(
        "SELECT * FROM undos WHERE session_id = ? AND state = 'undone' ORDER BY id DESC LIMIT 1", (session_id,)
    ).fetchone()
    return None if row is None else struct_of(row, Undo)


def unfinished_undos(db: sqlite3.Connection) -> list[Undo]:
    rows = db.execute(f"SELECT * FROM undos WHERE {_UNFINISHED} ORDER BY id").fetchall()
    return [struct_of(row, Undo) for row in rows]


def plans(db: sqlite3.Connection) -> Sequence[tuple[int, bytes]]:
    return [(row["id"], row["plan"]) for row in db.execute("SELECT id, plan FROM undos WHERE state != 'dropped'")]


def _mark_rewritten(tx: Transaction, workspace_id: str, session_id: str) -> Session:
    tx.execute(
        "UPDATE sessions SET rewritten = rewritten + 1, updated_at = ?, undone_from = (SELECT message_id FROM undos"
        " WHERE session_id = ? AND state = 'undone' AND hides = 1 ORDER BY id DESC LIMIT 1) WHERE id = ?",
        *(tx.now, session_id, session_id),
    )
    return append_session_event(tx, workspace_id, session_id, "updated")


def _check_idle(tx: Transaction, workspace_id: str, session_id: str) -> None:
    get_session(tx.db, workspace_id, session_id)
    check_not_restoring(tx, session_id)
    if _is_restoring(tx, session_id, FAMILY):
        raise Conflict("session_busy", "the files of a sub-agent's session are being restored; try again in a moment")
    for row in tx.all(f"SELECT id FROM sessions WHERE id IN {FAMILY}", session_id):
        if runs := open_runs(tx.db, row["id"]):
            raise SessionBusy(runs[0]["run_id"])


def typed_prompt(db: sqlite3.Connection, row: sqlite3.Row) -> str | None:
    """Return the prompt as the user typed it; a command starts with `!`."""
    if row["role"] != "user":
        return None
    parts = decode_parts(parts_of(db, row["id"]))
    return next((f"!{part.command}" for part in parts if isinstance(part, ShellCommand)), text_of(parts))


SUFFIX = " (fork)"
END = 2**62  # greater than every seq


def fork(tx: Transaction, workspace_id: str, session_id: str, message_id: str) -> Session:
    """Create a session with copies of all messages and changes of files up to this message.

    Run ids in it are new and name no run (P3).
    """
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
    # The same system prompt, and so the same prefix for the provider's cache.
    tx.execute(
        "INSERT INTO surroundings (session_id, workspace_id, body, tools)"
        " SELECT ?, workspace_id, body, tools FROM surroundings WHERE session_id = ?",
        *(fork_id, session_id),
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
        workspace = tx.get("SELECT path FROM workspaces WHERE id = ?", workspace_id)
        self._root = os.fsencode(workspace["path"]) + b"/"

    def copy_message(self, row: sqlite3.Row) -> None:
        tx, seq = self._tx, self._tx.next_seq(self._workspace_id)
        copy_id = self._messages[row["id"]] = tx.new_id()
        tx.execute(
            "INSERT INTO messages (id, workspace_id, session_id, run_id, role, model, summary, created_at, seq, reason,"
            " hidden, note, call_message_id, call_id, call_name)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(copy_id, self._workspace_id, self._session_id, self._map_run(row["run_id"]), row["role"], row["model"]),
            *(row["summary"], row["created_at"], seq, row["reason"], row["hidden"], row["note"]),
            *(self._messages.get(row["call_message_id"]), row["call_id"], row["call_name"]),
        )
        tx.execute(
            "INSERT INTO parts (message_id, idx, body) SELECT ?, idx, body FROM parts WHERE message_id = ?",
            *(copy_id, row["id"]),
        )
        made = tx.get("SELECT * FROM messages WHERE id = ?", copy_id)
        append_message_event(tx, "created", made, parts_of(tx.db, copy_id), seq)

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
        ids = (self._workspace_id, self._session_id, run_id)
        changes.add(self._tx, *ids, seq, row["version"], change, has_event=True)

    def _map_run(self, run_id: str) -> str:
        if run_id not in self._runs:
            self._runs[run_id] = self._tx.new_id()
        return self._runs[run_id]

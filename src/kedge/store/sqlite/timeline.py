"""What a session's timeline is made of: its prompts, the changes of files with their calls, and its undos."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right

from kedge.protocol.messages import ToolCall
from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.store.port import PastChange, PastOfFiles, PastTurn, PastUndo, RecordedChange
from kedge.store.sqlite.changes import FAMILY
from kedge.store.sqlite.log import decode_parts, parts_of, struct_of
from kedge.store.sqlite.rows import get_session
from kedge.store.sqlite.undos import typed_prompt

MAX_TURNS = 500  # in one answer; earlier ones are counted
MAX_CHANGES = 20_000  # the last ones


def read_past_of_files(db: sqlite3.Connection, workspace_id: str, session_id: str) -> PastOfFiles:
    get_session(db, workspace_id, session_id)
    rows = db.execute(
        "SELECT m.*, u.state AS undo_state FROM messages m LEFT JOIN undos u ON u.id = m.undone"
        " WHERE m.session_id = ? AND m.role = 'user' ORDER BY m.seq DESC LIMIT ?",
        (session_id, MAX_TURNS),
    ).fetchall()
    turns = [
        PastTurn(
            row["seq"], row["id"], row["run_id"], typed_prompt(db, row) or "", row["created_at"], row["undo_state"]
        )
        for row in reversed(rows)
    ]
    first = turns[0].seq if turns else 0
    (omitted,) = db.execute(
        "SELECT count(*) FROM messages WHERE session_id = ? AND role = 'user' AND seq < ?", (session_id, first)
    ).fetchone()
    return PastOfFiles(turns, _read_changes(db, session_id, first), _read_undos(db, session_id, first), omitted)


def _read_undos(db: sqlite3.Connection, session_id: str, first: int) -> list[PastUndo]:
    # One of a fork restored files of this session; one without a seq was made before the timeline was kept.
    rows = db.execute(
        "SELECT * FROM undos WHERE session_id = ? AND seq >= ? AND state IN ('undone', 'redone', 'dropped')"
        " ORDER BY seq",
        (session_id, first),
    )
    return [
        PastUndo(row["seq"], row["message_id"], bool(row["hides"]), row["reverts"], row["state"], row["at"])
        for row in rows
    ]


def _read_changes(db: sqlite3.Connection, session_id: str, first: int) -> list[PastChange]:
    rows = db.execute(
        f"SELECT * FROM changes WHERE session_id IN {FAMILY} AND seq >= ? ORDER BY id DESC LIMIT ?",
        (session_id, first, MAX_CHANGES),
    ).fetchall()
    calls = _Calls(db)
    found: list[PastChange] = []
    for row in reversed(rows):
        call = None if row["unsure"] == "background_job" else calls.find(row)
        change = struct_of(row, RecordedChange)
        found.append(PastChange(row["seq"], change, row["undone"] > 0, *(call or (None, None, 0))))
    return found


class _Calls:
    """Finds the call that made a change: calls that may change files run one after the other."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._of_runs: dict[str, list[sqlite3.Row]] = {}
        self._found: dict[str, tuple[str, str | None, int]] = {}  # by the id of the result's message

    def find(self, change: sqlite3.Row) -> tuple[str, str | None, int] | None:
        """Return the tool, its encoded input, and the seq of the call; None if no call of the run is known."""
        results = self._list_results(change["workspace_id"], change["run_id"])
        index = bisect_right(results, change["seq"], key=lambda row: row["seq"]) - 1
        if index < 0:
            return None
        result = results[index]
        if result["id"] not in self._found:
            self._found[result["id"]] = (result["call_name"], self._read_input(result), result["seq"])
        return self._found[result["id"]]

    def _list_results(self, workspace_id: str, run_id: str) -> list[sqlite3.Row]:
        if run_id not in self._of_runs:
            rows = self._db.execute(
                "SELECT id, seq, call_name, call_message_id, call_id FROM messages"
                " WHERE workspace_id = ? AND run_id = ? AND role = 'tool' ORDER BY seq",
                (workspace_id, run_id),
            )
            self._of_runs[run_id] = [row for row in rows if not _is_read_only(row["call_name"])]
        return self._of_runs[run_id]

    def _read_input(self, result: sqlite3.Row) -> str | None:
        if result["call_message_id"] is None:
            return None
        parts = decode_parts(parts_of(self._db, result["call_message_id"]))
        return next((p.input for p in parts if isinstance(p, ToolCall) and p.id == result["call_id"]), None)


def _is_read_only(tool: str | None) -> bool:
    facts = BUILT_IN_TOOLS.get(tool or "")
    return facts is not None and facts.is_read_only

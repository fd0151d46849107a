"""What happened in a session before the history that its model sees: for the next summary, and to notice circles."""

from __future__ import annotations

import sqlite3

import msgspec

from kedge.protocol.messages import File, Image, Message, Part, ShellCommand, ToolResult
from kedge.store.port import Past
from kedge.store.sqlite.log import all_parts_of, decode_parts, message_of, parts_of

MAX_PROMPTS = 200  # more would not fit into a summary
MAX_TODO_LISTS = 10  # to search for one that is no error
MAX_SKILLS = 20  # loaded in a session
MAX_SUMMARIES = 10  # of a run


def read_past(db: sqlite3.Connection, workspace_id: str, session_id: str) -> Past:
    where = "FROM messages WHERE session_id = ? AND workspace_id = ? AND hidden = 0 AND undone = 0"
    (count,) = db.execute(f"SELECT count(*) {where} AND role = 'user'", (session_id, workspace_id)).fetchone()
    rows = db.execute(
        f"SELECT * {where} AND role = 'user' ORDER BY seq DESC LIMIT ?", (session_id, workspace_id, MAX_PROMPTS)
    ).fetchall()
    prompts = [message_of(row, _without_data(decode_parts(parts_of(db, row["id"])))) for row in reversed(rows)]
    lists = db.execute(
        f"SELECT id {where} AND role = 'tool' AND call_name = 'todos' ORDER BY seq DESC LIMIT ?",
        (session_id, workspace_id, MAX_TODO_LISTS),
    )
    results = (part for row in lists for part in decode_parts(parts_of(db, row["id"])) if isinstance(part, ToolResult))
    todos = next((result for result in results if not result.is_error), None)
    loaded = db.execute(
        f"SELECT id {where} AND role = 'tool' AND call_name = 'skill' ORDER BY seq DESC LIMIT ?",
        (session_id, workspace_id, MAX_SKILLS),
    )
    skills = (
        str(part.metadata["skill"])
        for row in loaded
        for part in decode_parts(parts_of(db, row["id"]))
        if isinstance(part, ToolResult) and part.metadata is not None and "skill" in part.metadata
    )
    return Past(prompts=prompts, left_out=count - len(prompts), todos=todos, skills=list(dict.fromkeys(skills)))


def read_summarized(db: sqlite3.Connection, workspace_id: str, run_id: str) -> list[list[Message]]:
    """Return the steps and results of a run after each of its last summaries, those after the last one last."""
    where = "FROM messages WHERE workspace_id = ? AND run_id = ? AND undone = 0 AND reason IS NOT NULL"
    starts = db.execute(
        f"SELECT seq {where} AND summary = 1 AND reason NOT IN ('interrupted', 'canceled', 'error')"
        " ORDER BY seq DESC LIMIT ?",
        (workspace_id, run_id, MAX_SUMMARIES),
    ).fetchall()
    if not starts:
        return []
    first = starts[-1]["seq"]
    rows = db.execute(
        f"SELECT * {where} AND seq > ? AND summary = 0 AND role IN ('assistant', 'tool')"
        " AND reason IS NOT 'interrupted' ORDER BY seq",
        (workspace_id, run_id, first),
    ).fetchall()
    parts = all_parts_of(db, [row["id"] for row in rows])
    ends = [start["seq"] for start in starts[-2::-1]]  # oldest first, without the first
    groups: list[list[Message]] = [[] for _ in starts]
    for row in rows:
        groups[sum(end < row["seq"] for end in ends)].append(message_of(row, decode_parts(parts.get(row["id"], []))))
    return groups


def _without_data(parts: list[Part]) -> list[Part]:
    """Return the parts without the content of attachments and the output of commands, which may be large."""
    return [
        msgspec.structs.replace(part, data=b"")
        if isinstance(part, (Image, File))
        else msgspec.structs.replace(part, output="")
        if isinstance(part, ShellCommand)
        else part
        for part in parts
    ]

"""The messages that the model may see, from the last summary on. Finished messages never change and are cached.

Without the cache each turn would read its whole session again, and prompts would get slower in long sessions.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from kedge.protocol.messages import Message
from kedge.store.sqlite.log import all_parts_of, decode_parts, message_of

# For all sessions, as stored bytes; a larger session is read again for each turn.
CACHE_BYTES = 4 * 1024 * 1024
MESSAGE_BYTES = 500  # of a cached message beside its text


class CachedHistory(NamedTuple):
    """The finished messages of a session from `start`, its last summary, up to `seq`."""

    seq: int = 0
    size_bytes: int = 0
    messages: tuple[Message, ...] = ()
    start: int = 0  # seq of the summary; 0: there is none
    rewritten: int = 0  # how often messages were undone or redone by then


class HistoryCache:
    """A least recently used cache by session."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: dict[str, CachedHistory] = {}

    def get(self, session_id: str) -> CachedHistory:
        return self._known.get(session_id, CachedHistory())

    def put(self, session_id: str, known: CachedHistory) -> None:
        self._known.pop(session_id, None)
        if known.size_bytes > self._max_bytes:
            return
        self._known[session_id] = known
        while sum(each.size_bytes for each in self._known.values()) > self._max_bytes:
            del self._known[next(iter(self._known))]


def read(
    db: sqlite3.Connection, workspace_id: str, session_id: str, known: CachedHistory
) -> tuple[list[Message], CachedHistory]:
    """Return the messages that the model may see, and the part of them to cache.

    Left out: messages before a summary, interrupted ones with the results of their calls, those of runs that were
    canceled before their start, undone ones, and unfinished summaries.
    """
    start, rewritten = _last_summary(db, session_id), _rewritten(db, session_id)
    if (start, rewritten) != (known.start, known.rewritten):
        known = CachedHistory(seq=start - 1, start=start, rewritten=rewritten)
    rows = db.execute(
        "SELECT * FROM messages WHERE session_id = ? AND workspace_id = ? AND seq > ? AND hidden = 0 AND undone = 0"
        " AND NOT (role = 'assistant' AND reason IS 'interrupted')"
        " AND (summary = 0 OR seq = ?)"
        " AND NOT EXISTS (SELECT 1 FROM messages c WHERE c.id = messages.call_message_id AND c.reason IS 'interrupted')"
        " ORDER BY seq",
        (session_id, workspace_id, known.seq, start),
    ).fetchall()
    parts = all_parts_of(db, [row["id"] for row in rows])
    messages = [message_of(row, decode_parts(parts.get(row["id"], []))) for row in rows]
    finished = next((i for i, row in enumerate(rows) if row["reason"] is None), len(rows))
    if finished:
        size = sum(len(part) for row in rows[:finished] for part in parts.get(row["id"], []))
        known = CachedHistory(
            rows[finished - 1]["seq"],
            known.size_bytes + size + finished * MESSAGE_BYTES,
            (*known.messages, *messages[:finished]),
            start,
            rewritten,
        )
        return [*known.messages, *messages[finished:]], known
    return [*known.messages, *messages], known


def _last_summary(db: sqlite3.Connection, session_id: str) -> int:
    row = db.execute(
        "SELECT seq FROM messages WHERE session_id = ? AND summary = 1 AND undone = 0 AND reason IS NOT NULL"
        " AND reason NOT IN ('interrupted', 'canceled', 'error') ORDER BY seq DESC LIMIT 1",
        (session_id,),
    ).fetchone()
    return 0 if row is None else row["seq"]


def _rewritten(db: sqlite3.Connection, session_id: str) -> int:
    row = db.execute("SELECT rewritten FROM sessions WHERE id = ?", (session_id,)).fetchone()
    return 0 if row is None else row["rewritten"]

"""Reading the log: each event is built from its row and those it refers to, byte for byte as it was sent."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Self, TypeVar

import msgspec

from kedge.protocol.events import encode, frame
from kedge.protocol.messages import MessageOf, Part, PartT, RawMessage, answer_of
from kedge.protocol.runs import Mode, OnBusy, Run, RunEnd, RunState, RunStatus, Usage, Waiting
from kedge.store.port import LogEvent, LogPage

S = TypeVar("S", bound=msgspec.Struct)

_decode_part = msgspec.json.Decoder(Part).decode
# Memory for one read: events refer to messages of any size.
PAGE_BYTES = 1024 * 1024
# Any number of ids as one SQL variable: the statement stays the same, and SQLite prepares it once.
_IDS = "(SELECT value FROM json_each(?))"


class RunChange(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a `run` event that change in the run's row."""

    state: RunState
    attempt: int
    cancel_requested: bool
    merged_into: str | None
    waiting: Waiting | None = None
    mode: Mode | None = None
    place: int | None = None
    on_busy: OnBusy | None = None  # None in events of older versions: it did not change

    @classmethod
    def of(cls, run: Run) -> Self:
        return cls(**{name: getattr(run, name) for name in cls.__struct_fields__})


_decode_run_change = msgspec.json.Decoder(RunChange).decode
_decode_end = msgspec.json.Decoder(RunEnd).decode
_decode_usage = msgspec.json.Decoder(Usage).decode


# A run's row with its prompt, for `run_of`.
RUNS = "SELECT runs.*, prompts.prompt FROM runs JOIN prompts USING (workspace_id, run_id)"
# The same for `status_of`. An undo covers all messages after the first undone one, so a run's first message decides.
RUN_STATUSES = (
    "SELECT runs.*, prompts.prompt, coalesce((SELECT messages.undone FROM messages"
    " WHERE messages.workspace_id = runs.workspace_id AND messages.run_id = runs.run_id ORDER BY messages.seq LIMIT 1"
    "), 0) AS undone FROM runs JOIN prompts USING (workspace_id, run_id)"
)


def struct_of(row: sqlite3.Row, type: type[S], **given: Any) -> S:
    """Return a struct whose fields are columns of the row, except those that are given."""
    return type(**{name: given[name] if name in given else row[name] for name in type.__struct_fields__})


def run_of(row: sqlite3.Row, change: RunChange | None = None) -> Run:
    if change is not None:
        on_busy = change.on_busy or row["on_busy"]
        return struct_of(row, Run, **{**msgspec.structs.asdict(change), "on_busy": on_busy})
    is_moved = row["state"] == "queued" and row["place"] != row["seq"]
    return struct_of(
        row,
        Run,
        cancel_requested=bool(row["cancel_requested"]),
        waiting=_waiting_of(row),
        place=row["place"] if is_moved else None,
    )


def _waiting_of(row: sqlite3.Row) -> Waiting | None:
    return None if row["wait_reason"] is None else Waiting(row["wait_reason"], row["wait_until"])


def status_of(row: sqlite3.Row) -> RunStatus:
    run = msgspec.structs.asdict(run_of(row))
    return struct_of(row, RunStatus, **run, usage=usage_of(row), undone=row["undone"] > 0)


def usage_of(row: sqlite3.Row) -> Usage:
    return _decode_usage(row["usage"]) if row["usage"] else Usage()


def message_of(row: sqlite3.Row, parts: list[PartT]) -> MessageOf[PartT]:
    message: type[MessageOf[PartT]] = MessageOf  # `MessageOf[PartT]` itself has no fields
    return struct_of(row, message, parts=parts, summary=bool(row["summary"]))


def raw_message_of(row: sqlite3.Row, parts: Iterable[bytes]) -> RawMessage:
    return message_of(row, [msgspec.Raw(part) for part in parts])


def decode_parts(parts: Iterable[bytes]) -> list[Part]:
    return [_decode_part(part) for part in parts]


def parts_of(db: sqlite3.Connection, message_id: str) -> list[bytes]:
    """Return the finished parts of a message, encoded."""
    return all_parts_of(db, [message_id]).get(message_id, [])


def all_parts_of(db: sqlite3.Connection, message_ids: Iterable[str]) -> dict[str, list[bytes]]:
    """Return the parts of many messages by id; messages without any are left out."""
    found: dict[str, list[bytes]] = {}
    for row in _select_in(
        db, f"SELECT message_id, body FROM parts WHERE message_id IN {_IDS} ORDER BY message_id, idx", message_ids
    ):
        found.setdefault(row["message_id"], []).append(row["body"])
    return found


def read_page(
    db: sqlite3.Connection, workspace_id: str, after: int, limit: int, session_id: str | None = None
) -> LogPage | None:
    """Return the next `limit` events after `after` (of one session, if given), or None if the workspace is unknown."""
    workspace = db.execute(
        "SELECT head, floor, log_id FROM workspaces WHERE id = ? AND deleted = 0", (workspace_id,)
    ).fetchone()
    if workspace is None:
        return None
    only = "" if session_id is None else " AND session_id = ?"
    args: tuple[Any, ...] = (workspace_id, after) if session_id is None else (workspace_id, after, session_id)
    found = db.execute(
        f"SELECT * FROM events WHERE workspace_id = ? AND seq > ?{only} ORDER BY seq LIMIT ?", (*args, limit)
    ).fetchall()
    rows = found[: _count_fitting(db, workspace_id, found)]
    payloads = _Payloads(db, workspace_id, rows)
    events = [
        LogEvent(row["seq"], row["session_id"], frame(row["type"], row["change"], payloads.of(row), row["seq"]))
        for row in rows
    ]
    is_cut = len(rows) < len(found) or len(found) == limit
    last = rows[-1]["seq"] if rows else after
    upto = last if is_cut else max(after, workspace["head"])
    return LogPage(events, upto, workspace["head"], workspace["floor"], workspace["log_id"])


def _count_fitting(db: sqlite3.Connection, workspace_id: str, rows: list[sqlite3.Row]) -> int:
    """Return how many of these events fit into PAGE_BYTES with the rows they refer to; at least one."""
    texts = {row["subject"] for row in rows if row["type"] in ("message", "run_complete") and row["subject"]}
    sizes = {
        row["message_id"]: row["size"]
        for row in _select_in(
            db,
            f"SELECT message_id, sum(length(body)) AS size FROM parts WHERE message_id IN {_IDS} GROUP BY message_id",
            texts,
        )
    }
    prompts = _select_in(
        db,
        f"SELECT run_id, length(prompt) AS size FROM prompts WHERE workspace_id = ? AND run_id IN {_IDS}",
        {row["subject"] for row in rows if row["type"] == "run"},
        workspace_id,
    )
    prompt_sizes = {row["run_id"]: row["size"] for row in prompts}
    total = 0
    for count, row in enumerate(rows):
        total += (prompt_sizes if row["type"] == "run" else sizes).get(row["subject"], 0) + len(row["body"] or b"")
        if total > PAGE_BYTES and count > 0:
            return count
    return len(rows)


class _Payloads:
    """The rows that a page of events refers to, each read once."""

    def __init__(self, db: sqlite3.Connection, workspace_id: str, rows: list[sqlite3.Row]) -> None:
        subjects = {type: {r["subject"] for r in rows if r["type"] == type} for type in {r["type"] for r in rows}}
        requests = subjects.get("permission_request", set()) | subjects.get("question_request", set())
        messages = subjects.get("message", set())
        runs = _select_in(
            db,
            f"{RUNS} WHERE workspace_id = ? AND run_id IN {_IDS}",
            subjects.get("run", set()),
            workspace_id,
        )
        self._runs = {row["run_id"]: row for row in runs}
        self._messages = {
            row["id"]: row for row in _select_in(db, f"SELECT * FROM messages WHERE id IN {_IDS}", messages)
        }
        self._requests = {
            row["id"]: row["body"]
            for row in _select_in(db, f"SELECT id, body FROM requests WHERE id IN {_IDS}", requests)
        }
        self._parts = all_parts_of(db, messages | (subjects.get("run_complete", set()) - {None}))

    def of(self, row: sqlite3.Row) -> bytes:
        subject, body = row["subject"], row["body"]
        match row["type"]:
            case "run":
                return encode(run_of(self._runs[subject], _decode_run_change(body)))
            case "message":
                parts = self._parts.get(subject, [])[: row["parts"]]
                return encode(raw_message_of(self._messages[subject], parts if body is None else [*parts, body]))
            case "run_complete":
                text = answer_of(decode_parts(self._parts.get(subject, [])))
                return encode(msgspec.structs.replace(_decode_end(body), text=text))
            case "permission_request" | "question_request":
                return self._requests[subject]
            case _:
                return body


def _select_in(db: sqlite3.Connection, sql: str, ids: Iterable[str], *before: str) -> Iterable[sqlite3.Row]:
    return db.execute(sql, (*before, encode(sorted(ids)).decode()))

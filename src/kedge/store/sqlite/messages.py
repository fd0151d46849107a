"""Messages: created, extended part by part, finished, and read. Each finished part is stored once and never changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from kedge.protocol.bounds import IMAGE_TYPES
from kedge.protocol.errors import NotFound
from kedge.protocol.events import AgentEvent, encode
from kedge.protocol.messages import (
    File,
    Finish,
    FinishReason,
    Image,
    Message,
    Part,
    RawMessage,
    Role,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
    with_text,
)
from kedge.protocol.runs import Attachment, Usage
from kedge.store.port import Claim, Draft, KeptCall, MessagePage
from kedge.store.sqlite.costs import add_day_cost
from kedge.store.sqlite.log import all_parts_of, decode_parts, message_of, parts_of, raw_message_of
from kedge.store.sqlite.rows import add_usage, append_message_event, claimed_run, get_session, prompt_of
from kedge.store.sqlite.writer import Transaction


def create(
    tx: Transaction, claim: Claim, role: Role, model: str | None, summary: bool, call: tuple[str, str, str] | None
) -> RawMessage:
    claimed_run(tx, claim)
    return add(tx, claim.workspace_id, claim.session_id, claim.run_id, role, model=model, summary=summary, call=call)


def add(
    tx: Transaction,
    workspace_id: str,
    session_id: str,
    run_id: str,
    role: Role,
    parts: Sequence[Part] = (),
    *,
    model: str | None = None,
    summary: bool = False,
    hidden: bool = False,
    call: tuple[str, str, str] | None = None,
    command: str | None = None,
) -> RawMessage:
    """Insert a message with its first parts. A tool message names its call: (message id, call id, tool).

    The message of a user's `command` is open until the command has ended; other user messages are finished.
    """
    seq = tx.next_seq(workspace_id)
    message_id = tx.new_id()
    reason = "end_turn" if role == "user" and command is None else _find_reason(parts)
    tx.execute(
        "INSERT INTO messages (id, workspace_id, session_id, run_id, role, model, summary, created_at, seq, reason,"
        " hidden, call_message_id, call_id, call_name) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(message_id, workspace_id, session_id, run_id, role, model, summary, tx.now, seq, reason, hidden),
        *(call or (None, None, None)),
    )
    raw = _insert_parts(tx, message_id, 0, parts)
    # The first event of a tool message names its call, and that of a command's message the command.
    first = ShellCommand(command, "", None) if command is not None else call and ToolResult(call[1], call[2], "", False)
    opening = encode(first) if first and not parts else None
    return append_message_event(tx, "created", _row(tx, message_id), raw, seq, opening)


def reopen(tx: Transaction, claim: Claim, call: tuple[str, str, str]) -> RawMessage | None:
    """Return the open message of a call that goes on after a restart, with the output so far; None if there is none."""
    claimed_run(tx, claim)
    row = tx.one(
        "SELECT * FROM messages WHERE workspace_id = ? AND run_id = ? AND call_message_id = ? AND call_id = ?"
        " AND reason IS NULL AND call_state IS NOT NULL",
        *(claim.workspace_id, claim.run_id, call[0], call[1]),
    )
    return None if row is None else raw_message_of(row, [encode(_output_so_far(tx.db, row))])


def keep_call_state(tx: Transaction, claim: Claim, message_id: str, state: bytes | None) -> None:
    """Store what the next server needs to go on with a call; None: from now on a crash interrupts it (P13)."""
    claimed_run(tx, claim)
    tx.execute("UPDATE messages SET call_state = ? WHERE id = ? AND reason IS NULL", state, message_id)


def call_state(db: sqlite3.Connection, message_id: str) -> bytes | None:
    row = db.execute("SELECT call_state FROM messages WHERE id = ?", (message_id,)).fetchone()
    return None if row is None else row["call_state"]


def kept_calls(db: sqlite3.Connection) -> list[KeptCall]:
    """Return the calls of unfinished runs that go on after a restart."""
    rows = db.execute(
        "SELECT messages.* FROM runs JOIN messages USING (workspace_id, run_id)"
        # The redundant `IN` makes SQLite use the partial index.
        " WHERE runs.state IN ('queued', 'running') AND runs.state = 'running' AND reason IS NULL"
        " AND call_state IS NOT NULL ORDER BY messages.seq"
    ).fetchall()
    return [
        KeptCall(
            row["workspace_id"],
            raw_message_of(row, [encode(part) for part in _opening_parts(db, row)]),
            _output_so_far(db, row),
        )
        for row in rows
    ]


def _output_so_far(db: sqlite3.Connection, row: sqlite3.Row) -> ToolResult:
    drafts = db.execute("SELECT text FROM drafts WHERE message_id = ? ORDER BY id", (row["id"],)).fetchall()
    text = b"".join(draft["text"] for draft in drafts).decode()
    return ToolResult(row["call_id"], row["call_name"], text, False)


def append_drafts(tx: Transaction, claim: Claim, drafts: Sequence[Draft]) -> None:
    """Store text in flight. A canceled turn may still do this, so that text that clients have seen is kept."""
    claimed_run(tx, claim, even_cancelled=True)
    for draft in drafts:
        stored = tx.one("SELECT count(*) AS parts FROM parts WHERE message_id = ?", draft.message_id)
        if stored is not None and draft.part >= stored["parts"] and _row(tx, draft.message_id)["reason"] is None:
            tx.execute(
                "INSERT INTO drafts (message_id, part, kind, head, text) VALUES (?, ?, ?, ?, ?)",
                *(draft.message_id, draft.part, draft.kind),
                *(encode(draft.head) if draft.head else None, draft.text.encode()),
            )


def finish_parts(
    tx: Transaction, claim: Claim, message_id: str, first: int, parts: Sequence[Part], usage: Usage | None
) -> None:
    """Store finished parts from index `first` on; a `Finish` among them ends the message."""
    run = claimed_run(tx, claim)
    if usage is not None:
        add_usage(tx, run, usage)
        add_day_cost(tx, usage.cost)
    if run["waiting_since"] is not None and _find_reason(parts) not in (None, "interrupted"):  # the model has answered
        tx.execute(
            "UPDATE runs SET waiting_since = NULL WHERE workspace_id = ? AND run_id = ?",
            claim.workspace_id,
            claim.run_id,
        )
    append_parts(tx, message_id, first, parts)


def append_parts(tx: Transaction, message_id: str, first: int, parts: Sequence[Part]) -> None:
    tx.execute("DELETE FROM drafts WHERE message_id = ? AND part < ?", message_id, first + len(parts))
    _insert_parts(tx, message_id, first, parts)
    reason = _find_reason(parts)
    if reason is not None:
        tx.execute("UPDATE messages SET reason = ?, call_state = NULL WHERE id = ?", reason, message_id)
    append_message_event(tx, "updated", _row(tx, message_id), parts_of(tx.db, message_id))


class EndNote(NamedTuple):
    """Why a tool call has no result of its own: for the model, and for people."""

    text: str
    summary: str
    metadata: Mapping[str, bool] = {}  # of the result, for clients and for the next attempt


def close_open(
    tx: Transaction,
    workspace_id: str,
    run_id: str,
    reason: FinishReason,
    why: str | None,
    note: EndNote,
    *,
    keeps_calls: bool = False,
) -> None:
    """Finish every open message of a run, with its text in flight. `keeps_calls`: not those of calls that can go on."""
    for row in tx.all(
        "SELECT * FROM messages WHERE workspace_id = ? AND run_id = ? AND reason IS NULL"
        " AND (? = 0 OR call_state IS NULL) ORDER BY seq",
        *(workspace_id, run_id, keeps_calls),
    ):
        stored = len(parts_of(tx.db, row["id"]))
        folded = _fold_drafts(tx, row["id"])
        if row["role"] == "tool":
            output = "".join(part.content for part in folded if isinstance(part, ToolResult))
            content = f"{output}\n{note.text}" if output else note.text
            metadata = {"summary": note.summary, "shown_chars": len(output), **note.metadata}
            append_parts(tx, row["id"], stored, [ToolResult(row["call_id"], row["call_name"], content, True, metadata)])
        elif row["role"] == "user":
            output = "".join(part.output for part in folded if isinstance(part, ShellCommand))
            content = f"{output.rstrip()}\n[{note.summary}]" if output.strip() else f"[{note.summary}]"
            append_parts(tx, row["id"], stored, [ShellCommand(prompt_of(tx.db, row), content, None)])
        else:
            append_parts(tx, row["id"], stored, [*folded, Finish(reason, why)])


def answer_open_calls(tx: Transaction, workspace_id: str, run_id: str, note: EndNote) -> None:
    """Add a result to every tool call of a run that never started, so that the session can be continued (P7)."""
    answered = {
        (row["call_message_id"], row["call_id"])
        for row in tx.all(
            "SELECT call_message_id, call_id FROM messages WHERE workspace_id = ? AND run_id = ? AND role = 'tool'",
            *(workspace_id, run_id),
        )
    }
    callers = tx.all(
        "SELECT * FROM messages WHERE workspace_id = ? AND run_id = ? AND role = 'assistant'"
        " AND reason IS NOT 'interrupted' ORDER BY seq",
        *(workspace_id, run_id),
    )
    for row in callers:
        for part in decode_parts(parts_of(tx.db, row["id"])):
            if isinstance(part, ToolCall) and (row["id"], part.id) not in answered:
                result = ToolResult(part.id, part.name, note.text, True, {"summary": note.summary})
                call = (row["id"], part.id, part.name)
                add(tx, workspace_id, row["session_id"], run_id, "tool", [result], call=call)


def steps(db: sqlite3.Connection, workspace_id: str, run_id: str) -> int:
    """Count the steps of a run, also before a summary, without failed attempts."""
    (count,) = db.execute(
        "SELECT count(*) FROM messages WHERE workspace_id = ? AND run_id = ? AND role = 'assistant' AND summary = 0"
        " AND reason IS NOT 'interrupted'",
        (workspace_id, run_id),
    ).fetchone()
    return count


def count_usage(tx: Transaction, claim: Claim, usage: Usage) -> None:
    """Add usage outside of the steps of an open run."""
    add_usage(tx, claimed_run(tx, claim), usage)
    add_day_cost(tx, usage.cost)


def append_agent_event(tx: Transaction, claim: Claim, event: AgentEvent) -> None:
    claimed_run(tx, claim)
    write_agent_event(tx, claim.workspace_id, event)


def write_agent_event(tx: Transaction, workspace_id: str, event: AgentEvent) -> None:
    body = encode(event)
    tx.append("agent_event", "created", workspace_id, event.session_id, body, body=body)


def page(db: sqlite3.Connection, workspace_id: str, session_id: str, after: str | None, limit: int) -> MessagePage:
    get_session(db, workspace_id, session_id)
    head = db.execute("SELECT head FROM workspaces WHERE id = ?", (workspace_id,)).fetchone()
    start = 0
    if after is not None:
        found = db.execute("SELECT seq FROM messages WHERE id = ? AND session_id = ?", (after, session_id)).fetchone()
        if found is None:
            raise NotFound("message", after)
        start = found["seq"]
    rows = db.execute(
        "SELECT * FROM messages WHERE session_id = ? AND seq > ? AND undone = 0 ORDER BY seq LIMIT ?",
        (session_id, start, limit),
    ).fetchall()
    parts = all_parts_of(db, [row["id"] for row in rows])
    messages = [message_of(row, decode_parts(parts.get(row["id"], [])) or _opening_parts(db, row)) for row in rows]
    return MessagePage(messages, head["head"])


def _opening_parts(db: sqlite3.Connection, row: sqlite3.Row) -> list[Part]:
    """Return the call of an open tool message, or the command of an open command's message, as events show them."""
    match row["role"]:
        case "tool":
            return [ToolResult(row["call_id"], row["call_name"], "", False)]
        case "user":
            return [ShellCommand(prompt_of(db, row), "", None)]
        case _:
            return []


def _row(tx: Transaction, message_id: str) -> sqlite3.Row:
    return tx.get("SELECT * FROM messages WHERE id = ?", message_id)


def _insert_parts(tx: Transaction, message_id: str, first: int, parts: Sequence[Part]) -> list[bytes]:
    raw = [encode(part) for part in parts]
    tx.db.executemany(
        "INSERT INTO parts (message_id, idx, body) VALUES (?, ?, ?)",
        [(message_id, first + i, body) for i, body in enumerate(raw)],
    )
    return raw


def _find_reason(parts: Sequence[Part]) -> FinishReason | None:
    """Return the finish reason if these parts end the message: a `Finish`, a tool result or a command's result."""
    for part in parts:
        match part:
            case Finish():
                return part.reason
            case ToolResult() | ShellCommand():
                return "end_turn"
            case _:
                pass
    return None


def _fold_drafts(tx: Transaction, message_id: str) -> list[Part]:
    heads: dict[int, Part] = {}
    texts: dict[int, list[str]] = {}
    for row in tx.all("SELECT * FROM drafts WHERE message_id = ? ORDER BY id", message_id):
        if row["head"] is not None:
            heads[row["part"]] = decode_parts([row["head"]])[0]
        texts.setdefault(row["part"], []).append(row["text"].decode())
    return [with_text(heads[part], "".join(texts[part])) for part in sorted(texts)]


# For all sessions, as stored bytes; a larger session is read_history again for each turn.
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
    """A least recently used cache by session. Without it each turn would read its whole session again."""

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


def read_history(
    db: sqlite3.Connection, workspace_id: str, session_id: str, known: CachedHistory
) -> tuple[list[Message], CachedHistory]:
    """Return the messages that the model may see, and the part of them to cache.

    Left out: messages before a summary, interrupted ones with the results of their calls, those of runs that were
    canceled before their start, undone ones, and unfinished summaries.
    """
    start, rewritten = _last_summary(db, session_id), _count_rewrites(db, session_id)
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


def _last_summary(db: sqlite3.Connection, session_id: str) -> int:
    row = db.execute(
        "SELECT seq FROM messages WHERE session_id = ? AND summary = 1 AND undone = 0 AND reason IS NOT NULL"
        " AND reason NOT IN ('interrupted', 'canceled', 'error') ORDER BY seq DESC LIMIT 1",
        (session_id,),
    ).fetchone()
    return 0 if row is None else row["seq"]


def _count_rewrites(db: sqlite3.Connection, session_id: str) -> int:
    row = db.execute("SELECT rewritten FROM sessions WHERE id = ?", (session_id,)).fetchone()
    return 0 if row is None else row["rewritten"]


NEVER_BEGAN = "[Cancelled before it began.]"

_decode_attachments = msgspec.msgpack.Decoder(tuple[Attachment, ...]).decode


def write_user_message(tx: Transaction, row: sqlite3.Row, *, hidden: bool = False) -> None:
    """Add the run's prompt as a message, unless it has one: when the run starts, joins, or is canceled before (P7).

    `hidden`: the model never sees it.
    """
    if row["user_message_id"] is not None:
        return
    key = (row["workspace_id"], row["run_id"])
    given = tx.get("SELECT prompt, attachments FROM prompts WHERE workspace_id = ? AND run_id = ?", *key)
    if row["kind"] == "shell":
        if hidden:
            _add_user_message(tx, row, [ShellCommand(given["prompt"], NEVER_BEGAN, None)], hidden=True)
        else:
            _add_user_message(tx, row, [], command=given["prompt"])
        return
    parts: list[Part] = [Text(given["prompt"])] if given["prompt"] else []
    if given["attachments"]:
        parts += [_make_part(attachment) for attachment in _decode_attachments(given["attachments"])]
        drop_attachments(tx, row)
    if parts:
        _add_user_message(tx, row, parts, hidden=hidden)


def _add_user_message(
    tx: Transaction, row: sqlite3.Row, parts: Sequence[Part], *, hidden: bool = False, command: str | None = None
) -> None:
    ids = (row["workspace_id"], row["session_id"], row["run_id"])
    message = add(tx, *ids, "user", parts, hidden=hidden, command=command)
    tx.execute(
        "UPDATE runs SET user_message_id = ? WHERE workspace_id = ? AND run_id = ?",
        *(message.id, row["workspace_id"], row["run_id"]),
    )


def open_command(tx: Transaction, run: sqlite3.Row) -> RawMessage | None:
    """Return the open message of a shell run, or None after a restart, since the command may have run (P13)."""
    found = tx.one(
        "SELECT messages.*, prompts.prompt FROM runs JOIN messages ON messages.id = runs.user_message_id"
        " JOIN prompts USING (workspace_id, run_id)"
        " WHERE runs.workspace_id = ? AND runs.run_id = ? AND kind = 'shell' AND reason IS NULL",
        *(run["workspace_id"], run["run_id"]),
    )
    return None if found is None else raw_message_of(found, [encode(ShellCommand(found["prompt"], "", None))])


def read_attachments(db: sqlite3.Connection, workspace_id: str, run_id: str) -> list[Attachment]:
    """Return the attachments of a run that has not started."""
    row = db.execute("SELECT attachments FROM prompts WHERE workspace_id = ? AND run_id = ?", (workspace_id, run_id))
    found = row.fetchone()
    return list(_decode_attachments(found["attachments"])) if found and found["attachments"] else []


def drop_attachments(tx: Transaction, row: sqlite3.Row) -> None:
    tx.execute(
        "UPDATE prompts SET attachments = NULL WHERE workspace_id = ? AND run_id = ? AND attachments IS NOT NULL",
        *(row["workspace_id"], row["run_id"]),
    )


def _make_part(attachment: Attachment) -> Part:
    if attachment.mime_type in IMAGE_TYPES:
        return Image(attachment.mime_type, attachment.content, attachment.file_name)
    return File(attachment.file_name, attachment.mime_type, attachment.content)

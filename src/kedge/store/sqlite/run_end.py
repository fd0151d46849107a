"""How a run ends (P2): its record is made whole, its row is closed once, and `run_complete` is its last event."""

from __future__ import annotations

import sqlite3

import msgspec

from kedge import failpoints
from kedge.protocol.bounds import MAX_ERROR_CHARS
from kedge.protocol.events import AgentEvent, encode
from kedge.protocol.messages import Finish, ShellCommand, answer_of
from kedge.protocol.runs import RunEnd, Usage
from kedge.store.port import Outcome
from kedge.store.sqlite import messages, prompts, requests
from kedge.store.sqlite.log import decode_parts, parts_of, usage_of
from kedge.store.sqlite.rows import add_usage, append_run_event, find_run, get_run, joined_runs, open_children
from kedge.store.sqlite.transaction import Transaction

CANCELLED_NOTE = "Cancelled before it finished."
FAILED_NOTE = "Not finished: the turn failed."
UNKNOWN_NOTE = "Not finished: the turn ended without a result."


def end_turn(tx: Transaction, host: sqlite3.Row, outcome: Outcome) -> None:
    """End a running turn: its sub-agents first, then the host, then those joined to it, by acceptance."""
    outcome = _bounded(outcome)
    end_children(tx, host)
    host = get_run(tx.db, host["workspace_id"], host["run_id"])  # with what its sub-agents used
    joined = joined_runs(tx, host)
    # P5: a prompt steered to this turn that has not joined by now is one of the queue, in its place.
    tx.execute("UPDATE runs SET may_join = 0 WHERE session_id = ? AND state = 'queued'", host["session_id"])
    requests.resolve_open(tx, host["workspace_id"], host["run_id"])
    message_id = _make_whole(tx, host, outcome)
    tx.execute("DELETE FROM processes WHERE workspace_id = ? AND run_id = ?", host["workspace_id"], host["run_id"])
    text = _text(tx.db, message_id)
    failpoints.hit("end.whole")
    for row in [host, *joined]:
        # Usage is the host's: a sum over runs counts nothing twice.
        _end(tx, row, outcome, message_id, text, usage_of(host) if row is host else Usage())


def end_unstarted(tx: Transaction, row: sqlite3.Row, *, keeps_messages: bool) -> None:
    """End a queued run as cancelled. Its messages are for people: the model never sees them."""
    message_id = None
    if keeps_messages:
        prompts.write_user_message(tx, row, hidden=True)
        closing = messages.add(
            tx, row["workspace_id"], row["session_id"], row["run_id"], "assistant", [Finish("canceled")], hidden=True
        )
        message_id = closing.id
    else:
        prompts.drop_attachments(tx, row)
    _end(tx, row, Outcome("cancelled"), message_id, "", Usage())


def end_of(db: sqlite3.Connection, workspace_id: str, run_id: str) -> RunEnd | None:
    """The end of a run as `run_complete` told it, from its row: it does not depend on retention."""
    row = get_run(db, workspace_id, run_id)
    if row["state"] in ("queued", "running"):
        return None
    return RunEnd(
        session_id=row["session_id"],
        run_id=run_id,
        message_id=row["message_id"],
        text=_text(db, row["message_id"]),
        usage=usage_of(row),
        error=row["error"],
        code=row["code"],
        cancelled=row["state"] == "cancelled",
    )


def end_children(tx: Transaction, host: sqlite3.Row) -> None:
    for child in open_children(tx, host):
        if child["state"] == "queued":
            end_unstarted(tx, child, keeps_messages=True)
        elif child["merged_into"] is None:
            end_turn(tx, child, Outcome("cancelled"))


def _bounded(outcome: Outcome) -> Outcome:
    """The same text everywhere (P8), and not too much of it (P17)."""
    if outcome.state != "failed":
        return msgspec.structs.replace(outcome, error=None, code=None)
    error = (outcome.error or "the run failed")[:MAX_ERROR_CHARS]
    return msgspec.structs.replace(outcome, error=error, code=outcome.code or "failed")


def _make_whole(tx: Transaction, host: sqlite3.Row, outcome: Outcome) -> str | None:
    """P7: nothing is left half written, every call has a result, and the last word says how the turn ended."""
    workspace_id, run_id = host["workspace_id"], host["run_id"]
    reason, note = "unknown", UNKNOWN_NOTE
    if outcome.state == "cancelled":
        reason, note = "canceled", CANCELLED_NOTE
    elif outcome.state == "failed":
        reason, note = "error", FAILED_NOTE
    if outcome.survivors:
        note += f" Still running, although killed: {', '.join(outcome.survivors)}."
    messages.close_open(tx, workspace_id, run_id, reason, outcome.error, note)
    messages.answer_open_calls(tx, workspace_id, run_id, note)
    last = tx.one(
        "SELECT id, reason FROM messages WHERE workspace_id = ? AND run_id = ? AND role = 'assistant' AND summary = 0"
        " AND reason IS NOT 'interrupted' ORDER BY seq DESC LIMIT 1",
        *(workspace_id, run_id),
    )
    if outcome.state == "completed" and last is None:
        return _ended_command(tx, host)
    if outcome.state == "completed" or (last is not None and last["reason"] in (reason, outcome.code)):
        return None if last is None else last["id"]  # the answer, or one that says itself how it was cut short
    closing = Finish(reason, outcome.error)
    return messages.add(tx, workspace_id, host["session_id"], run_id, "assistant", [closing]).id


def _ended_command(tx: Transaction, host: sqlite3.Row) -> str | None:
    """The message of a person's command that came to its end: no assistant says more about it."""
    if host["kind"] != "shell" or host["user_message_id"] is None:
        return None
    parts = decode_parts(parts_of(tx.db, host["user_message_id"]))
    has_ended = any(isinstance(part, ShellCommand) and part.exit_code is not None for part in parts)
    return host["user_message_id"] if has_ended else None


def _text(db: sqlite3.Connection, message_id: str | None) -> str:
    return "" if message_id is None else answer_of(decode_parts(parts_of(db, message_id)))


def _end(tx: Transaction, row: sqlite3.Row, outcome: Outcome, message_id: str | None, text: str, usage: Usage) -> None:
    workspace_id, session_id, run_id = row["workspace_id"], row["session_id"], row["run_id"]
    is_cancelled, error, code = outcome.state == "cancelled", outcome.error, outcome.code
    changed = tx.execute(
        "UPDATE runs SET state = ?, message_id = ?, error = ?, code = ?, usage = ?,"
        " cancel_requested = cancel_requested OR ?"
        " WHERE workspace_id = ? AND run_id = ? AND state IN ('queued', 'running')",
        *(outcome.state, message_id, error, code, encode(usage), is_cancelled, workspace_id, run_id),
    )
    assert changed == 1, f"run {run_id} would end twice"
    parent = row["parent_run_id"] and find_run(tx.db, workspace_id, row["parent_run_id"])
    if parent and parent["state"] == "running":
        # In the transaction of the one end: counted once, whatever crashes. A sub-agent ends before its parent (P5).
        add_usage(tx, parent, usage)
    if error is not None:
        event = AgentEvent(type="error", run_id=run_id, session_id=session_id, error=error, code=code)
        messages.write_agent_event(tx, workspace_id, event)
    append_run_event(tx, workspace_id, run_id, "updated")
    end = RunEnd(
        session_id=session_id,
        run_id=run_id,
        message_id=message_id,
        text=text,
        usage=usage,
        error=error,
        code=code,
        cancelled=is_cancelled,
    )
    # The text is in the message already; the log refers to it.
    stored = encode(msgspec.structs.replace(end, text=""))
    tx.append(
        "run_complete", "created", workspace_id, session_id, encode(end), told=end, subject=message_id, body=stored
    )

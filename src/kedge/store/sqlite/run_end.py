"""The end of a run (P2): its record is completed, its row closed once, and `run_complete` is its last event."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

import msgspec

from kedge import failpoints
from kedge.protocol.bounds import MAX_ERROR_CHARS
from kedge.protocol.events import AgentEvent, encode
from kedge.protocol.messages import Finish, ShellCommand, answer_of
from kedge.protocol.runs import RunEnd, Usage
from kedge.store.port import Outcome
from kedge.store.sqlite import messages, requests
from kedge.store.sqlite.log import decode_parts, parts_of, usage_of
from kedge.store.sqlite.rows import add_usage, append_run_event, find_run, get_run, joined_runs, open_children
from kedge.store.sqlite.writer import Transaction


class _EndNotes(NamedTuple):
    """For calls that were running at the end of their run, and for those that had not started."""

    running: messages.EndNote
    not_started: messages.EndNote


_CANCELLED = _EndNotes(
    messages.EndNote(
        "Interrupted: the run was canceled while this call was running. It may have had effects.",
        "Canceled before it finished.",
    ),
    messages.EndNote("Not started: the run was canceled.", "Not started: the run was canceled."),
)
_FAILED = _EndNotes(
    messages.EndNote("Not finished: the turn failed.", "Not finished: the run failed."),
    messages.EndNote("Not started: the turn failed.", "Not started: the run failed."),
)
_ENDED = _EndNotes(
    messages.EndNote("Not finished: the turn ended without a result.", "Not finished."),
    messages.EndNote("Not started: the turn ended before this call.", "Not started."),
)


def end_turn(tx: Transaction, host: sqlite3.Row, outcome: Outcome) -> None:
    """End a running turn: its sub-agents first, then the run itself (`host`), then those joined to it in order."""
    outcome = _limit_error(outcome)
    end_children(tx, host)
    host = get_run(tx.db, host["workspace_id"], host["run_id"])  # with the usage of its sub-agents
    joined = joined_runs(tx, host)
    # A steered run that has not joined by now stays in the queue, in its order (P5).
    tx.execute("UPDATE runs SET may_join = 0 WHERE session_id = ? AND state = 'queued'", host["session_id"])
    requests.resolve_open(tx, host["workspace_id"], host["run_id"])
    message_id = _complete_record(tx, host, outcome)
    tx.execute("DELETE FROM processes WHERE workspace_id = ? AND run_id = ?", host["workspace_id"], host["run_id"])
    text = _read_answer(tx.db, message_id)
    failpoints.hit("end.whole")
    for row in [host, *joined]:
        # Joined runs have no usage of their own, so that a sum over runs counts nothing twice.
        _end(tx, row, outcome, message_id, text, usage_of(host) if row is host else Usage())


def end_unstarted(tx: Transaction, row: sqlite3.Row, *, keeps_messages: bool) -> None:
    """End a queued run as canceled. The model never sees its messages; people do."""
    message_id = None
    if keeps_messages:
        messages.write_user_message(tx, row, hidden=True)
        closing = messages.add(
            tx, row["workspace_id"], row["session_id"], row["run_id"], "assistant", [Finish("canceled")], hidden=True
        )
        message_id = closing.id
    else:
        messages.drop_attachments(tx, row)
    _end(tx, row, Outcome("cancelled"), message_id, "", Usage())


def end_of(db: sqlite3.Connection, workspace_id: str, run_id: str) -> RunEnd | None:
    """Return the end of a run as in its `run_complete` event, but from its row: retention does not remove it."""
    row = get_run(db, workspace_id, run_id)
    if row["state"] in ("queued", "running"):
        return None
    return RunEnd(
        session_id=row["session_id"],
        run_id=run_id,
        message_id=row["message_id"],
        text=_read_answer(db, row["message_id"]),
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


def _limit_error(outcome: Outcome) -> Outcome:
    """Limit the error text (P17), before it is used everywhere (P8)."""
    if outcome.state != "failed":
        return msgspec.structs.replace(outcome, error=None, code=None)
    error = (outcome.error or "the run failed")[:MAX_ERROR_CHARS]
    return msgspec.structs.replace(outcome, error=error, code=outcome.code or "failed")


def _complete_record(tx: Transaction, host: sqlite3.Row, outcome: Outcome) -> str | None:
    """Finish open messages, answer open calls, and return the id of the run's last message (P7)."""
    workspace_id, run_id = host["workspace_id"], host["run_id"]
    reason, notes = "unknown", _ENDED
    if outcome.state == "cancelled":
        reason, notes = "canceled", _CANCELLED
    elif outcome.state == "failed":
        reason, notes = "error", _FAILED
    running = notes.running
    if outcome.survivors:
        survivors = f" Still running, although killed: {', '.join(outcome.survivors)}."
        running = messages.EndNote(running.text + survivors, running.summary + survivors)
    messages.close_open(tx, workspace_id, run_id, reason, outcome.error, running)
    messages.answer_open_calls(tx, workspace_id, run_id, notes.not_started)
    last = tx.one(
        "SELECT id, reason FROM messages WHERE workspace_id = ? AND run_id = ? AND role = 'assistant' AND summary = 0"
        " AND reason IS NOT 'interrupted' ORDER BY seq DESC LIMIT 1",
        *(workspace_id, run_id),
    )
    if outcome.state == "completed" and last is None:
        return _find_ended_command(tx, host)
    if outcome.state == "completed" or (last is not None and last["reason"] in (reason, outcome.code)):
        return None if last is None else last["id"]  # the answer, or a message with the right finish reason
    closing = Finish(reason, outcome.error)
    return messages.add(tx, workspace_id, host["session_id"], run_id, "assistant", [closing]).id


def _find_ended_command(tx: Transaction, host: sqlite3.Row) -> str | None:
    """Return the message of a shell run whose command has ended: it needs no assistant message."""
    if host["kind"] != "shell" or host["user_message_id"] is None:
        return None
    parts = decode_parts(parts_of(tx.db, host["user_message_id"]))
    has_ended = any(isinstance(part, ShellCommand) and part.exit_code is not None for part in parts)
    return host["user_message_id"] if has_ended else None


def _read_answer(db: sqlite3.Connection, message_id: str | None) -> str:
    return "" if message_id is None else answer_of(decode_parts(parts_of(db, message_id)))


def _end(tx: Transaction, row: sqlite3.Row, outcome: Outcome, message_id: str | None, text: str, usage: Usage) -> None:
    workspace_id, session_id, run_id = row["workspace_id"], row["session_id"], row["run_id"]
    is_cancelled, error, code = outcome.state == "cancelled", outcome.error, outcome.code
    changed = tx.execute(
        "UPDATE runs SET state = ?, message_id = ?, error = ?, code = ?, usage = ?,"
        " wait_reason = NULL, wait_until = NULL, cancel_requested = cancel_requested OR ?, ended_at = ?"
        " WHERE workspace_id = ? AND run_id = ? AND state IN ('queued', 'running')",
        *(outcome.state, message_id, error, code, encode(usage), is_cancelled, tx.now, workspace_id, run_id),
    )
    assert changed == 1, f"run {run_id} would end twice"
    parent = row["parent_run_id"] and find_run(tx.db, workspace_id, row["parent_run_id"])
    if parent and parent["state"] == "running":
        # In the same transaction, so that it is counted once. A sub-agent ends before its parent (P5).
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
    # The log refers to the message for the text.
    stored = encode(msgspec.structs.replace(end, text=""))
    tx.append(
        "run_complete", "created", workspace_id, session_id, encode(end), payload=end, subject=message_id, body=stored
    )

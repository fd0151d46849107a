"""User messages: a prompt becomes one, once, when its run starts, joins, or is canceled before (P7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from kedge.protocol.events import encode
from kedge.protocol.images import IMAGE_TYPES
from kedge.protocol.messages import File, Image, Part, RawMessage, ShellCommand, Text
from kedge.protocol.runs import Attachment
from kedge.store.sqlite import messages
from kedge.store.sqlite.log import raw_message_of
from kedge.store.sqlite.transaction import Transaction

NEVER_BEGAN = "[Cancelled before it began.]"

_decode_attachments = msgspec.msgpack.Decoder(tuple[Attachment, ...]).decode


def write_user_message(tx: Transaction, row: sqlite3.Row, *, hidden: bool = False) -> None:
    """Add the run's prompt as a message, unless it has one. `hidden`: the model never sees it."""
    if row["user_message_id"] is not None:
        return
    key = (row["workspace_id"], row["run_id"])
    given = tx.one("SELECT prompt, attachments FROM prompts WHERE workspace_id = ? AND run_id = ?", *key)
    assert given is not None, f"run {row['run_id']} has no prompt"
    if row["kind"] == "shell":
        _write_command(tx, row, given["prompt"], hidden=hidden)
        return
    parts: list[Part] = [Text(given["prompt"])] if given["prompt"] else []
    if given["attachments"]:
        parts += [_make_part(attachment) for attachment in _decode_attachments(given["attachments"])]
        drop_attachments(tx, row)
    if parts:
        _add_user_message(tx, row, parts, hidden=hidden)


def _write_command(tx: Transaction, row: sqlite3.Row, command: str, *, hidden: bool) -> None:
    """Add an open message until the command has ended; if it never started (`hidden`), a finished one."""
    if hidden:
        _add_user_message(tx, row, [ShellCommand(command, NEVER_BEGAN, None)], hidden=True)
    else:
        _add_user_message(tx, row, [], command=command)


def _add_user_message(
    tx: Transaction, row: sqlite3.Row, parts: Sequence[Part], *, hidden: bool = False, command: str | None = None
) -> None:
    ids = (row["workspace_id"], row["session_id"], row["run_id"])
    message = messages.add(tx, *ids, "user", parts, hidden=hidden, command=command)
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


def drop_attachments(tx: Transaction, row: sqlite3.Row) -> None:
    tx.execute(
        "UPDATE prompts SET attachments = NULL WHERE workspace_id = ? AND run_id = ? AND attachments IS NOT NULL",
        *(row["workspace_id"], row["run_id"]),
    )


def _make_part(attachment: Attachment) -> Part:
    if attachment.mime_type in IMAGE_TYPES:
        return Image(attachment.mime_type, attachment.content)
    return File(attachment.file_name, attachment.mime_type, attachment.content)

"""Requests to a person (P14): stored once for each tool call, answered once."""

from __future__ import annotations

import hashlib
import sqlite3

import msgspec

from kedge.protocol.errors import Invalid, NotFound
from kedge.protocol.events import LogType, encode
from kedge.protocol.requests import (
    BY_SERVER,
    Answer,
    AnswerReceipt,
    PermissionRequest,
    QuestionRequest,
    RequestKind,
    RequestResolution,
)
from kedge.store.port import Claim
from kedge.store.sqlite.rows import FAMILY, claimed_run, get_run, get_session
from kedge.store.sqlite.writer import Transaction

Request = PermissionRequest | QuestionRequest

_REQUEST_EVENTS: dict[RequestKind, LogType] = {"permission": "permission_request", "question": "question_request"}
_RESOLUTION_EVENTS: dict[RequestKind, LogType] = {
    "permission": "permission_notification",
    "question": "question_notification",
}
# Created at import: creating a decoder in several threads at once is not safe (see `config.load`).
_decode_answer = msgspec.json.Decoder(Answer).decode
_decode_permission = msgspec.json.Decoder(PermissionRequest).decode
_decode_question = msgspec.json.Decoder(QuestionRequest).decode


def _without_reasons(request: Request) -> Request:
    """Remove the reasons: after a restart they may differ (another PATH) for the same call."""
    if not isinstance(request, PermissionRequest):
        return request
    reasons = ("label", "notes", "rules", "always_rules")
    params = {name: value for name, value in request.params.items() if name not in reasons}
    return msgspec.structs.replace(request, params=params)


def ask(
    tx: Transaction, claim: Claim, kind: RequestKind, message_id: str, request: Request, answer: Answer | None
) -> tuple[str, Answer | None]:
    """Store the request, or find the one of the same call from before a restart. Returns its id and its answer, if any.

    With an `answer` the request is resolved at once, so that clients see that it was refused without asking.
    """
    asker = claimed_run(tx, claim)
    digest = hashlib.sha256(encode(_without_reasons(request))).digest()
    known = tx.one(
        "SELECT id, answer FROM requests WHERE workspace_id = ? AND asker_run_id = ? AND message_id = ?"
        " AND tool_call_id = ? AND kind = ? AND digest = ?",
        *(claim.workspace_id, claim.run_id, message_id, request.tool_call_id, kind, digest),
    )
    if known is not None:
        return known["id"], None if known["answer"] is None else _decode_answer(known["answer"])
    shown_on = asker
    while shown_on["parent_run_id"] is not None:  # P5: a sub-agent's requests show on the parent
        shown_on = get_run(tx.db, claim.workspace_id, shown_on["parent_run_id"])
    seq, request_id = tx.next_seq(claim.workspace_id), tx.new_id()
    request = msgspec.structs.replace(
        request, id=request_id, session_id=shown_on["session_id"], run_id=shown_on["run_id"]
    )
    body = encode(request)
    tx.execute(
        "INSERT INTO requests (id, workspace_id, kind, asker_run_id, message_id, tool_call_id, seq, digest, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(request_id, claim.workspace_id, kind, claim.run_id, message_id, request.tool_call_id, seq, digest, body),
    )
    tx.append(
        *(_REQUEST_EVENTS[kind], "created", claim.workspace_id, request.session_id, body),
        seq=seq,
        payload=request,
        is_open=True,
        subject=request_id,
    )
    if answer is not None:
        _resolve(tx, tx.get("SELECT * FROM requests WHERE id = ?", request_id), answer)
    return request_id, answer


def give_answer(tx: Transaction, workspace_id: str, kind: RequestKind, request_id: str, given: Answer) -> AnswerReceipt:
    row = tx.one(
        "SELECT * FROM requests WHERE id = ? AND workspace_id = ? AND kind = ?", request_id, workspace_id, kind
    )
    if row is None:
        raise NotFound("request", request_id)
    if row["answer"] is not None:
        first = _decode_answer(row["answer"])
        return AnswerReceipt(resolved=False, by=first.by, action=first.action)
    if kind == "question" and given.answers is not None:
        asked = len(_decode_question(row["body"]).questions)
        if len(given.answers) != asked:
            counts = f"questions: {asked}, answers: {len(given.answers)}"
            raise Invalid("invalid_answers", f"{counts}; send one answer for each question")
    _resolve(tx, row, given)
    return AnswerReceipt(resolved=True, by=given.by, action=given.action)


def resolve_open(tx: Transaction, workspace_id: str, run_id: str, call: tuple[str, str] | None = None) -> None:
    """Resolve the open requests of a run that has ended, or of one call (message id, call id) that has its result.

    A call can go on with an open request if a rule that was written meanwhile allows it after a restart.
    """
    for row in tx.all(
        "SELECT * FROM requests WHERE workspace_id = ?1 AND asker_run_id = ?2 AND answer IS NULL"
        " AND (?3 IS NULL OR (message_id = ?3 AND tool_call_id = ?4)) ORDER BY seq",
        *(workspace_id, run_id, *(call or (None, None))),
    ):
        _resolve(tx, row, Answer(action="cancel", by=BY_SERVER))


def pending_requests(db: sqlite3.Connection, workspace_id: str, kind: RequestKind | None = None) -> list[Request]:
    rows = db.execute(
        "SELECT kind, body FROM requests WHERE workspace_id = ?1 AND answer IS NULL AND (?2 IS NULL OR kind = ?2)"
        " ORDER BY seq",
        (workspace_id, kind),
    ).fetchall()
    return [_decode(row["kind"], row["body"]) for row in rows]


def revoke_grant(tx: Transaction, workspace_id: str, session_id: str, request_id: str) -> None:
    """Take back what was allowed for a session: later runs ask again. The answer itself stays as it was (P14)."""
    get_session(tx.db, workspace_id, session_id)
    if request_id not in {grant.id for grant in grants(tx.db, workspace_id, session_id)}:
        raise NotFound("grant", request_id)
    tx.execute(
        "UPDATE requests SET answer = CAST(json_set(CAST(answer AS TEXT), '$.revoked', json('true')) AS BLOB)"
        " WHERE id = ? AND workspace_id = ?",
        *(request_id, workspace_id),
    )


def asking_sessions(db: sqlite3.Connection) -> set[str]:
    """Return the sessions of all workspaces on which a request to a person is shown."""
    rows = db.execute("SELECT kind, body FROM requests WHERE answer IS NULL").fetchall()
    return {_decode(row["kind"], row["body"]).session_id for row in rows}


def grants(db: sqlite3.Connection, workspace_id: str, session_id: str) -> list[PermissionRequest]:
    """What was allowed for the session, oldest first: asked by its own runs, or by those of a sub-agent, which show on
    it (P5). A sub-agent may do what its parent may."""
    rows = db.execute(
        f"{FAMILY} SELECT r.body FROM family JOIN runs ON runs.session_id = family.id"
        " JOIN requests r ON r.workspace_id = ?1 AND r.asker_run_id = runs.run_id"
        " WHERE r.kind = 'permission' AND json_extract(CAST(r.answer AS TEXT), '$.action') = 'allow_session'"
        " AND json_extract(CAST(r.answer AS TEXT), '$.revoked') IS NULL"
        " ORDER BY r.seq",
        (workspace_id, session_id),
    ).fetchall()
    return [_decode_permission(row["body"]) for row in rows]


def _decode(kind: RequestKind, body: bytes) -> Request:
    return _decode_permission(body) if kind == "permission" else _decode_question(body)


def _resolve(tx: Transaction, row: sqlite3.Row, given: Answer) -> None:
    kind: RequestKind = row["kind"]
    tx.execute("UPDATE requests SET answer = ? WHERE id = ?", encode(given), row["id"])
    request = _decode(kind, row["body"])
    resolution = RequestResolution(
        id=request.id,
        session_id=request.session_id,
        run_id=request.run_id,
        tool_call_id=request.tool_call_id,
        action=given.action,
        by=given.by,
        answers=given.answers,
        reason=given.reason,
    )
    body = encode(resolution)
    event, session_id = _RESOLUTION_EVENTS[kind], resolution.session_id
    tx.append(event, "created", row["workspace_id"], session_id, body, payload=resolution, body=body)

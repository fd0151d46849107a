"""What is left when a soak is over: the log by stream, by pages and from the database, and what else tells."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections import Counter
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from kedge.protocol.api import LogAnswer
from kedge.protocol.events import Connected, Event
from kedge.protocol.messages import text_in
from kedge.store.sqlite.store import SqliteStore
from tests.soak.api import WorkspaceApi
from tests.soak.readers import envelope_of
from tests.soak.record import Machine, Record, digest_of
from tests.soak.server import SoakServer
from tests.support.invariants import final_messages
from tests.support.reader import cut_frames

PAGE = 1000


async def is_quiet(api: WorkspaceApi) -> bool:
    """Whether nothing is open any more. Requests that were left are refused on the way."""
    for kind, no in (("permission", "deny"), ("question", "cancel")):
        answer = await api.other(f"list {kind}s", "GET", f"{api.path}/{kind}s")
        for request in answer.body[f"{kind}s"] if answer.status == 200 else ():
            await api.reply(kind, request["id"], no, "the last one")
    answer = await api.other("agent", "GET", f"{api.path}/agent")
    return answer.status == 200 and not answer.body["is_busy"]


async def by_wire(server: SoakServer, api: WorkspaceApi) -> None:
    record, path = api.record, api.path
    record.log = await _streamed(server, record, path)
    await _paged(api)
    answer = await api.other("sessions", "GET", f"{path}/sessions?limit={PAGE}")
    final = record.final
    final.sessions = [session["id"] for session in answer.body["sessions"]]
    for session_id in final.sessions:
        status = await api.other("status", "GET", f"{path}/agent/sessions/{session_id}")
        if status.body["is_busy"]:
            final.busy.append(session_id)
        if page := await api.page(session_id):
            final.pages.append(page)
    for kind in ("permissions", "questions"):
        answer = await api.other(kind, "GET", f"{path}/{kind}")
        final.pending += [request["id"] for request in answer.body[kind]]
    answer = await api.other("runs", "GET", f"{path}/runs?limit={PAGE}")
    final.runs = {run["run_id"]: run["state"] for run in answer.body["runs"]}


async def _streamed(server: SoakServer, record: Record, path: str) -> list[Event]:
    log: list[Event] = []
    half = b""
    stream = server.wire.stream(f"{path}/events?{urlencode({'after': 0})}")
    async with contextlib.aclosing(stream):
        async for piece in stream:
            frames, half = cut_frames(half + piece)
            for frame in frames:
                if isinstance(frame.event.payload, Connected):
                    record.log_id = frame.event.payload.log_id
                if frame.event.type == "caught_up":
                    return log
                if frame.event.seq is not None:
                    log.append(frame.event)
                    record.digests.append(digest_of(envelope_of(frame.raw)))
    raise AssertionError("the stream ended before it had caught up")


async def _paged(api: WorkspaceApi) -> None:
    after = 0
    while True:
        raw = await api.server.wire.raw(f"{api.path}/log?after={after}&limit={PAGE}")
        answer = msgspec.json.decode(raw, type=LogAnswer)
        api.record.paged.extend(digest_of(bytes(event)) for event in answer.events)
        after += len(answer.events)
        if not answer.events or after >= answer.head:
            return


async def from_database(data_dir: Path, record: Record) -> None:
    """With the store's own reader, when no server is there any more."""
    store = SqliteStore.open(data_dir)
    try:
        after = 0
        while (page := await store.read_log(record.workspace_id, after, PAGE)).events:
            record.stored.extend(digest_of(envelope_of(event.frame)) for event in page.events)
            after = page.events[-1].seq
    finally:
        await store.close()
    with contextlib.closing(sqlite3.connect(data_dir / "kedge.db")) as db:
        rows = db.execute("SELECT run_id, state, attempt FROM runs WHERE workspace_id = ?", (record.workspace_id,))
        record.final.stored_runs = {run_id: (state, attempt) for run_id, state, attempt in rows}


def marks(record: Record, name: str) -> None:
    record.marks = Counter((Path(record.path) / name).read_text().split())


def disk(data_dir: Path, machine: Machine, records: list[Record]) -> None:
    sizes = {path: path.stat().st_size for path in data_dir.rglob("*") if path.is_file()}
    by_name = {prefix: sum(n for p, n in sizes.items() if p.name.startswith(prefix)) for prefix in NAMES}
    machine.database_bytes, machine.versions_bytes, machine.server_log_bytes = by_name.values()
    machine.content_bytes = sum(content_bytes(record) for record in records)
    machine.events = sum(len(record.log) for record in records)
    with contextlib.closing(sqlite3.connect(data_dir / "kedge.db")) as db:
        machine.is_database_sound = db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    for path in data_dir.glob("server.log*"):
        machine.tracebacks += tracebacks(path.read_text())


def tracebacks(log: str) -> list[str]:
    """What was logged with a traceback, whole: it cannot be looked up any more."""
    entries = _ENTRY.split(log)
    return [entry[-STACKS_CHARS:] for entry in entries if "\nTraceback" in entry]


_ENTRY = re.compile(r"^(?=\d{4}-\d\d-\d\d )", re.MULTILINE)


def crashes(said: Path) -> list[str]:
    """The stacks of a server whose interpreter crashed, as far as they help."""
    _, found, stacks = said.read_text(errors="replace").partition("Fatal Python error")
    return [f"{found}{stacks[:STACKS_CHARS]}"] if found else []


STACKS_CHARS = 4_000
NAMES = ("kedge.db", "versions.db", "server.log")


def content_bytes(record: Record) -> int:
    """What was said, each thing once: prompts, and what messages hold."""
    messages = final_messages(record.log).values()
    said = sum(len(text_in(part).encode()) for message in messages for part in message.parts)
    prompts = {sent.run_id: len(sent.body.prompt.encode()) for sent in record.sent}
    return said + sum(prompts.values())

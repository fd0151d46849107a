"""`SqliteStore`: named transactions go to the single writer, reads to a pool of connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from kedge.protocol.errors import NotFound, StoreUnavailable
from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import Message, Part, RawMessage, Role
from kedge.protocol.requests import Answer, AnswerReceipt, PermissionRequest, QuestionRequest, RequestKind
from kedge.protocol.runs import (
    Mode,
    QueuedPrompt,
    Receipt,
    Run,
    RunEnd,
    RunOptions,
    RunState,
    RunStatus,
    Submission,
    Usage,
    Waiting,
)
from kedge.protocol.sessions import ListedSession, Session, SessionChange, SessionDetails, SessionStatus
from kedge.store.port import (
    Claim,
    Committed,
    CostGrant,
    DayCost,
    Draft,
    KeptCall,
    LogPage,
    MessagePage,
    OnCommit,
    Outcome,
    Past,
    ProcessRecord,
    Retention,
    SessionCost,
    Started,
    WorkspaceState,
)
from kedge.store.sqlite import (
    costs,
    database,
    log,
    messages,
    past,
    queue,
    requests,
    retention,
    rows,
    run_end,
    runs,
    sessions,
)
from kedge.store.sqlite.database import random_id
from kedge.store.sqlite.file_records import SqliteFileRecords
from kedge.store.sqlite.writer import Checkpoints, Executor, ReaderPool, Transaction, Writer, explain

logger = logging.getLogger(__name__)

READERS = 4  # reads at once; more only compete for the interpreter


class SqliteStore:
    """Implements `store.port.Store`. Open it with `SqliteStore.open(directory)`."""

    def __init__(
        self,
        directory: Path,
        lock: int,
        db: sqlite3.Connection,
        write_executor: Executor,
        read_executor: Executor,
        now: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        path = directory / database.DATABASE
        self._lock = lock
        self._db = db
        self._write_executor = write_executor
        self._read_executor = read_executor
        self._now = now
        self._readers = ReaderPool(path, read_executor)
        self._checkpoints = Checkpoints(path, db, write_executor, read_executor)
        self._is_closing = False
        self._histories = messages.HistoryCache()
        self.on_commit: OnCommit = lambda _: None
        self._writer = Writer(db, write_executor, self._publish, now, new_id)
        self.files = SqliteFileRecords(self._writer, self._readers)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        synchronous: database.Synchronous = "NORMAL",
        write_executor: Executor | None = None,
        read_executor: Executor | None = None,
        now: Callable[[], float] = time.time,
        new_id: Callable[[], str] = random_id,
        schema: Sequence[database.Migration] | None = None,
    ) -> SqliteStore:
        lock = database.take_lock(directory)
        try:
            db = database.open_database(directory, schema or database.load_migrations(), synchronous, new_id)
        except BaseException:
            os.close(lock)
            raise
        return cls(
            directory,
            lock,
            db,
            write_executor or ThreadPoolExecutor(1, thread_name_prefix="kedge-writer"),
            read_executor or ThreadPoolExecutor(READERS, thread_name_prefix="kedge-reader"),
            now,
            new_id,
        )

    # workspaces and sessions

    async def open_workspace(self, path: str) -> WorkspaceState:
        return await self._writer.write("open_workspace", sessions.open_workspace, path)

    async def workspaces(self) -> list[WorkspaceState]:
        return await self._readers.read(sessions.workspaces)

    async def delete_workspace(self, workspace_id: str) -> None:
        await self._writer.write("delete_workspace", sessions.delete_workspace, workspace_id)
        with contextlib.suppress(StoreUnavailable):  # it is deleted: the next retention removes the remaining rows
            while await self._writer.write("remove", retention.remove_workspace, workspace_id):
                pass

    async def create_session(self, workspace_id: str, title: str, parent_session_id: str | None = None) -> Session:
        return await self._writer.write("create_session", sessions.create, workspace_id, title, parent_session_id)

    async def change_session(self, workspace_id: str, session_id: str, change: SessionChange) -> Session:
        return await self._writer.write("change_session", sessions.change, workspace_id, session_id, change)

    async def retitle_session(self, workspace_id: str, session_id: str, expected: str, title: str) -> bool:
        return await self._writer.write("retitle", sessions.retitle, workspace_id, session_id, expected, title)

    async def session(self, workspace_id: str, session_id: str) -> SessionDetails:
        return await self._readers.read(rows.get_session, workspace_id, session_id)

    async def sessions(self, workspace_id: str, query: str = "", limit: int = 1000) -> list[Session]:
        return await self._readers.read(sessions.list_sessions, workspace_id, query, limit)

    async def all_sessions(self, query: str = "", limit: int = 1000) -> list[ListedSession]:
        return await self._readers.read(sessions.list_all_sessions, query, limit)

    async def session_status(self, workspace_id: str, session_id: str) -> SessionStatus:
        return await self._readers.read(runs.status, workspace_id, session_id)

    async def begin_delete_session(self, workspace_id: str, session_id: str) -> list[str]:
        return await self._writer.write("begin_delete", sessions.begin_delete, workspace_id, session_id)

    async def end_delete_session(self, workspace_id: str, session_id: str) -> None:
        await self._writer.write("end_delete", sessions.end_delete, workspace_id, session_id)

    async def unfinished_deletes(self) -> list[tuple[str, str]]:
        return await self._readers.read(sessions.unfinished_deletes)

    # runs

    async def accept(self, workspace_id: str, run_id: str, submission: Submission) -> Receipt:
        return await self._writer.write("accept", runs.accept, workspace_id, run_id, submission)

    async def start(self, workspace_id: str, session_id: str) -> Started | None:
        return await self._writer.write("start", runs.start, workspace_id, session_id)

    async def join(self, claim: Claim) -> list[Run]:
        return await self._writer.write("join", queue.join, claim)

    async def set_waiting(self, claim: Claim, waiting: Waiting | None) -> None:
        await self._writer.write("set_waiting", runs.set_waiting, claim, waiting)

    async def waiting_since(self, workspace_id: str, run_id: str) -> float | None:
        return await self._readers.read(runs.waiting_since, workspace_id, run_id)

    async def cancel_session(self, workspace_id: str, session_id: str) -> list[str]:
        return await self._writer.write("cancel", runs.cancel_session, workspace_id, session_id)

    async def cancel_run(self, workspace_id: str, run_id: str) -> Run:
        return await self._writer.write("cancel", runs.cancel_run, workspace_id, run_id)

    async def drop_queued(self, workspace_id: str, session_id: str, run_id: str | None) -> list[str]:
        return await self._writer.write("drop", queue.drop, workspace_id, session_id, run_id)

    async def queued_prompt(self, workspace_id: str, session_id: str, run_id: str) -> QueuedPrompt:
        return await self._readers.read(queue.read_queued, workspace_id, session_id, run_id)

    async def move_queued(self, workspace_id: str, session_id: str, run_id: str, before: str | None) -> list[Run]:
        return await self._writer.write("move", queue.move, workspace_id, session_id, run_id, before)

    async def promote_queued(
        self, workspace_id: str, session_id: str, run_id: str, on_busy: Literal["steer", "interrupt"]
    ) -> Run:
        return await self._writer.write("promote", queue.promote, workspace_id, session_id, run_id, on_busy)

    async def switch_mode(self, workspace_id: str, run_id: str, mode: Mode) -> Run:
        return await self._writer.write("switch_mode", runs.switch_mode, workspace_id, run_id, mode)

    async def options_of(self, workspace_id: str, run_id: str) -> RunOptions:
        return await self._readers.read(runs.options_of, workspace_id, run_id)

    async def finish(self, claim: Claim, outcome: Outcome) -> Run:
        return await self._writer.write("finish", runs.finish, claim, outcome)

    async def suspend(self, claim: Claim) -> None:
        await self._writer.write("suspend", runs.suspend, claim.workspace_id, claim.run_id, claim.epoch)

    async def recover(self) -> None:
        await self._writer.write("recover", runs.recover)

    async def open_sessions(self) -> list[tuple[str, str]]:
        return await self._readers.read(runs.open_sessions)

    async def run(self, workspace_id: str, run_id: str) -> RunStatus:
        return await self._readers.read(rows.run_status, workspace_id, run_id)

    async def run_end(self, workspace_id: str, run_id: str) -> RunEnd | None:
        return await self._readers.read(run_end.end_of, workspace_id, run_id)

    async def runs(
        self,
        workspace_id: str,
        session_id: str | None = None,
        state: RunState | None = None,
        limit: int = 1000,
        prefix: str = "",
    ) -> list[RunStatus]:
        return await self._readers.read(runs.list_runs, workspace_id, session_id, state, limit, prefix)

    # messages of a turn

    async def create_message(
        self,
        claim: Claim,
        role: Role,
        *,
        model: str | None = None,
        summary: bool = False,
        call: tuple[str, str, str] | None = None,
    ) -> RawMessage:
        return await self._writer.write("create_message", _create_message, claim, role, model, summary, call)

    async def keep_call_state(self, claim: Claim, message_id: str, state: bytes | None) -> None:
        await self._writer.write("keep_call_state", messages.keep_call_state, claim, message_id, state)

    async def call_state(self, message_id: str) -> bytes | None:
        return await self._readers.read(messages.call_state, message_id)

    async def kept_calls(self) -> list[KeptCall]:
        return await self._readers.read(messages.kept_calls)

    async def append_drafts(self, claim: Claim, drafts: Sequence[Draft]) -> None:
        await self._writer.write("draft", messages.append_drafts, claim, drafts)

    async def finish_parts(
        self, claim: Claim, message_id: str, first: int, parts: Sequence[Part], usage: Usage | None = None
    ) -> None:
        await self._writer.write("checkpoint", messages.finish_parts, claim, message_id, first, parts, usage)

    async def messages(
        self, workspace_id: str, session_id: str, after: str | None = None, limit: int = 1000
    ) -> MessagePage:
        return await self._readers.read(messages.page, workspace_id, session_id, after, limit)

    async def history(self, workspace_id: str, session_id: str) -> list[Message]:
        found, known = await self._readers.read(
            messages.read_history, workspace_id, session_id, self._histories.get(session_id)
        )
        self._histories.put(session_id, known)
        return found

    async def past(self, workspace_id: str, session_id: str) -> Past:
        return await self._readers.read(past.read_past, workspace_id, session_id)

    async def summarized(self, workspace_id: str, run_id: str) -> list[list[Message]]:
        return await self._readers.read(past.read_summarized, workspace_id, run_id)

    async def steps(self, workspace_id: str, run_id: str) -> int:
        return await self._readers.read(messages.steps, workspace_id, run_id)

    async def count_usage(self, claim: Claim, usage: Usage) -> None:
        await self._writer.write("count_usage", messages.count_usage, claim, usage)

    async def append_agent_event(self, claim: Claim, event: AgentEvent) -> None:
        await self._writer.write("agent_event", messages.append_agent_event, claim, event)

    # surroundings and notes that requests to the model contain

    async def keep_surroundings(self, claim: Claim, body: bytes) -> bytes:
        return await self._writer.write("keep_surroundings", sessions.keep_surroundings, claim, body)

    async def surroundings(self, session_id: str) -> bytes | None:
        return await self._readers.read(sessions.surroundings, session_id)

    async def keep_tools(self, claim: Claim, body: bytes) -> None:
        await self._writer.write("keep_tools", sessions.keep_tools, claim, body)

    async def tools(self, session_id: str) -> bytes | None:
        return await self._readers.read(sessions.tools, session_id)

    async def set_note(self, claim: Claim, message_id: str, body: bytes) -> None:
        await self._writer.write("set_note", sessions.set_note, claim, message_id, body)

    async def notes(self, session_id: str) -> dict[str, bytes]:
        return await self._readers.read(sessions.notes, session_id)

    # requests to a person

    async def ask(
        self,
        claim: Claim,
        kind: RequestKind,
        message_id: str,
        request: PermissionRequest | QuestionRequest,
        answer: Answer | None = None,
    ) -> tuple[str, Answer | None]:
        return await self._writer.write("ask", requests.ask, claim, kind, message_id, request, answer)

    async def answer(self, workspace_id: str, kind: RequestKind, request_id: str, answer: Answer) -> AnswerReceipt:
        return await self._writer.write("answer", requests.give_answer, workspace_id, kind, request_id, answer)

    async def pending_requests(self, workspace_id: str, kind: RequestKind) -> list[PermissionRequest | QuestionRequest]:
        return await self._readers.read(requests.pending_requests, workspace_id, kind)

    async def revoke_grant(self, workspace_id: str, session_id: str, request_id: str) -> None:
        await self._writer.write("revoke_grant", requests.revoke_grant, workspace_id, session_id, request_id)

    async def grants(self, workspace_id: str, session_id: str) -> list[PermissionRequest]:
        return await self._readers.read(requests.grants, workspace_id, session_id)

    # limits on cost

    async def session_cost(self, workspace_id: str, session_id: str) -> SessionCost:
        return await self._readers.read(costs.session_cost, workspace_id, session_id)

    async def cost_grants(self, workspace_id: str, session_id: str, tool: str) -> list[CostGrant]:
        return await self._readers.read(costs.cost_grants, workspace_id, session_id, tool)

    async def day_cost(self) -> DayCost:
        return await self._readers.read(costs.day_cost, self._now())

    async def allow_day_cost(self, day: str, until: float) -> None:
        await self._writer.write("allow_day_cost", costs.allow_day_cost, day, until)

    # processes of tools

    async def record_process(self, claim: Claim, process: ProcessRecord) -> None:
        await self._writer.write("record_process", runs.record_process, claim, process)

    async def keep_process(self, claim: Claim, process: ProcessRecord) -> None:
        await self._writer.write("keep_process", runs.keep_process, claim, process)

    async def record_workspace_process(self, workspace_id: str, process: ProcessRecord) -> None:
        await self._writer.write("record_workspace_process", runs.record_workspace_process, workspace_id, process)

    async def forget_process(self, process: ProcessRecord) -> None:
        await self._writer.write("forget_process", runs.forget_process, process)

    async def left_processes(self) -> list[ProcessRecord]:
        return await self._readers.read(runs.left_processes)

    # the log

    async def append_config_changed(self, workspace_id: str) -> None:
        await self._writer.write("config_changed", sessions.append_config_changed, workspace_id)

    async def read_log(self, workspace_id: str, after: int, limit: int, session_id: str | None = None) -> LogPage:
        page = await self._readers.read(log.read_page, workspace_id, after, limit, session_id)
        if page is None:
            raise NotFound("workspace", workspace_id)
        return page

    async def retain(self, policy: Retention) -> int:
        floors = await self._readers.read(retention.find_floors, policy, self._now())
        removed = 0
        while True:
            batch = await self._writer.write("retain", retention.retain, floors, policy)
            if not any(batch):
                return removed
            removed += batch.events

    # the file

    async def size_bytes(self) -> int:
        return self._checkpoints.size_bytes

    async def checkpoint(self) -> None:
        """Move the whole write-ahead log into the database and empty it."""
        await self._writer.drain()
        await self._checkpoints.move_all()

    async def close(self) -> None:
        """Finish accepted transactions and reads, refuse new ones, and close. A second call does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        self._writer.close()
        await self._writer.drain()
        await self._checkpoints.wait()
        if isinstance(self._read_executor, ThreadPoolExecutor):
            await asyncio.to_thread(self._read_executor.shutdown)  # waits for running reads, which are short
        try:
            await asyncio.wrap_future(self._write_executor.submit(database.note_close, self._db))
        except sqlite3.Error as error:
            logger.warning("the store could not be closed cleanly: %s", explain(error))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close everything at once, as a crash would: nothing more is written."""
        self._writer.close()
        self._db.close()
        self._readers.close()
        for executor in (self._write_executor, self._read_executor):
            if isinstance(executor, ThreadPoolExecutor):
                executor.shutdown(wait=False)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _publish(self, events: Sequence[Committed]) -> None:
        if events:
            self.on_commit(events)
        self._checkpoints.begin_if_due()


def _create_message(
    tx: Transaction, claim: Claim, role: Role, model: str | None, summary: bool, call: tuple[str, str, str] | None
) -> RawMessage:
    if call is not None:
        if (known := messages.reopen(tx, claim, call)) is not None:
            return known
        requests.resolve_open(tx, claim.workspace_id, claim.run_id, call[:2])
    return messages.create(tx, claim, role, model, summary, call)

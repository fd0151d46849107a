"""Transactions and their single writer: transactions that wait while a group is being committed become the next group.

Each transaction is a savepoint in its group, so that one that fails does not affect the others. If the disk fails a
group, each transaction is tried alone: a large one that does not fit does not fail the small ones. `ReaderPool` reads.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from kedge import failpoints
from kedge.protocol.errors import StoreUnavailable
from kedge.protocol.events import Change, LogType, frame
from kedge.protocol.messages import RawMessage
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.protocol.runs import Run, RunEnd
from kedge.store.port import Committed, OnCommit
from kedge.store.sqlite import database

Payload = Run | RunEnd | RawMessage | RequestResolution | PermissionRequest | QuestionRequest


class Transaction:
    """Passed to each transaction function; `events` are published only if it is committed."""

    def __init__(self, db: sqlite3.Connection, now: float, new_id: Callable[[], str]) -> None:
        self.db = db
        self.now = now
        self.new_id = new_id
        self.events: list[Committed] = []

    def one(self, sql: str, *args: Any) -> sqlite3.Row | None:
        return self.db.execute(sql, args).fetchone()

    def get(self, sql: str, *args: Any) -> sqlite3.Row:
        """As `one`, for a row that exists."""
        row = self.one(sql, *args)
        assert row is not None, sql
        return row

    def all(self, sql: str, *args: Any) -> list[sqlite3.Row]:
        return self.db.execute(sql, args).fetchall()

    def execute(self, sql: str, *args: Any) -> int:
        return self.db.execute(sql, args).rowcount

    def next_seq(self, workspace_id: str) -> int:
        """Return the next seq of the workspace's log; its event must be appended in the same transaction."""
        return self.get("UPDATE workspaces SET head = head + 1 WHERE id = ? RETURNING head", workspace_id)[0]

    def append(
        self,
        type: LogType,
        change: Change,
        workspace_id: str,
        session_id: str,
        encoded: bytes,
        *,
        seq: int | None = None,
        payload: Payload | None = None,
        is_open: bool = False,
        subject: str | None = None,
        parts: int | None = None,
        body: bytes | None = None,
    ) -> int:
        """Append one event. `encoded`: the payload for clients; `body`: the bytes stored to build it again (log.py)."""
        if seq is None:
            seq = self.next_seq(workspace_id)
        self.db.execute(
            "INSERT INTO events (workspace_id, seq, at, type, change, session_id, subject, parts, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (workspace_id, seq, self.now, type, change, session_id, subject, parts, body),
        )
        wire = frame(type, change, encoded, seq)
        self.events.append(Committed(workspace_id, seq, type, change, session_id, wire, payload, is_open))
        return seq


P = ParamSpec("P")
T = TypeVar("T")


class Executor(Protocol):
    """Runs blocking work: threads in a server, the simulator's loop in a simulation."""

    def submit(self, fn: Callable[..., T], /, *args: Any) -> Future[T]: ...


class Job(NamedTuple):
    name: str
    fn: Callable[[Transaction], Any]
    done: asyncio.Future[Any]


class Done(NamedTuple):
    result: Any
    error: BaseException | None
    events: list[Committed]


class Writer:
    def __init__(
        self,
        db: sqlite3.Connection,
        executor: Executor,
        on_commit: OnCommit,
        now: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self.on_commit = on_commit
        self._db = db
        self._executor = executor
        self._now = now
        self._new_id = new_id
        self._waiting: list[Job] = []
        self._is_writing = False
        self._is_closed = False
        self._idle: asyncio.Future[None] | None = None

    def write(
        self, name: str, fn: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run `fn(tx, …)` in the next group. The transaction happens even if the returned future is canceled."""
        if self._is_closed:
            raise StoreUnavailable("the store is closed")

        def run(tx: Transaction) -> T:
            return fn(tx, *args, **kwargs)

        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(Job(name, run, done))
        if not self._is_writing:
            self._start_group()
        return done

    def close(self) -> None:
        """Refuse new transactions; those accepted before are still written (`drain`)."""
        self._is_closed = True

    async def drain(self) -> None:
        while self._is_writing:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _start_group(self) -> None:
        jobs, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        try:
            group = self._executor.submit(self._run_group, jobs)
        except RuntimeError as error:  # the store was abandoned, or no thread can be started
            self._resolve(jobs, [Done(None, StoreUnavailable(f"nothing can be written ({error})"), [])] * len(jobs))
            return
        self._is_writing = True
        group.add_done_callback(lambda done: loop.call_soon_threadsafe(self._group_done, jobs, done))

    def _group_done(self, jobs: list[Job], group: Future[list[Done]]) -> None:
        """Publish the events, resolve the callers' futures, and start the next group, whatever fails here."""
        try:
            error = group.exception()
            outcomes = group.result() if error is None else [Done(None, error, []) for _ in jobs]
            try:
                self.on_commit([event for outcome in outcomes for event in outcome.events])
            finally:
                self._resolve(jobs, outcomes)
        finally:
            self._is_writing = False
            if self._waiting:
                self._start_group()
            if not self._is_writing and self._idle is not None:
                self._idle.set_result(None)
                self._idle = None

    def _resolve(self, jobs: list[Job], outcomes: list[Done]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome.error is None:
                failpoints.hit(job.name, "published")
            if job.done.cancelled():
                continue
            if outcome.error is None:
                job.done.set_result(outcome.result)
            else:
                job.done.set_exception(_make_raisable(outcome.error))

    # The rest runs in the writer's thread.

    def _run_group(self, jobs: list[Job]) -> list[Done]:
        try:
            outcomes = self._transaction(jobs)
        except sqlite3.Error as error:
            if len(jobs) > 1:
                return [outcome for job in jobs for outcome in self._run_group([job])]
            return [Done(None, StoreUnavailable(explain(error)), [])]
        except BaseException as error:  # noqa: BLE001 - a bug, or no memory: callers must not wait forever
            return [Done(None, error, []) for _ in jobs]
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome.error is None:
                failpoints.hit(job.name, "committed")
        return outcomes

    def _transaction(self, jobs: list[Job]) -> list[Done]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            outcomes = [self._savepoint(job) for job in jobs]
            failpoints.hit("group.commit")
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        return outcomes

    def _savepoint(self, job: Job) -> Done:
        tx = Transaction(self._db, self._now(), self._new_id)
        self._db.execute("SAVEPOINT job")
        try:
            failpoints.hit(job.name, "begin")
            result = job.fn(tx)
            failpoints.hit(job.name, "done")
        except Exception as error:  # passed on to the caller
            if is_disk_error(error):
                raise  # the whole group may be lost
            self._db.execute("ROLLBACK TO job")
            self._db.execute("RELEASE job")
            return Done(None, error, [])
        self._db.execute("RELEASE job")
        return Done(result, None, tx.events)


def _make_raisable(error: BaseException) -> Exception:
    """Return an error that a future can raise: it takes no StopIteration, and SystemExit would end the loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"a transaction raised {error!r}")


def is_disk_error(error: Exception) -> bool:
    """Whether the disk or the file failed. Other errors are a bug in one statement and affect no other."""
    if type(error) not in (sqlite3.OperationalError, sqlite3.DatabaseError):
        return False
    return getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR


def explain(error: sqlite3.Error) -> str:
    """Return one line for a person: what failed, and what to do."""
    name: str = getattr(error, "sqlite_errorname", "")
    match "_".join(name.split("_")[:2]):  # the group of codes: SQLITE_IOERR_WRITE is an SQLITE_IOERR
        case "SQLITE_FULL":
            return "the disk is full; free some space and try again"
        case "SQLITE_IOERR":
            return f"the disk failed ({name}); check it and its free space, and try again"
        case "SQLITE_READONLY" | "SQLITE_PERM" | "SQLITE_CANTOPEN":
            return f"the data directory cannot be used ({error}); check its permissions and its free space"
        case "SQLITE_CORRUPT" | "SQLITE_NOTADB":
            return f"the database is damaged ({error}); restore a backup"
        case _:
            return f"the database failed ({name or type(error).__name__}: {error}); try again, and check the disk"


class Checkpoints:
    """A reader's thread copies most of the log, the writer's thread the rest, between two commits."""

    def __init__(self, path: Path, db: sqlite3.Connection, write_executor: Executor, read_executor: Executor) -> None:
        self._path = path
        self._wal = path.with_name(f"{path.name}-wal")
        self._db = db
        self._write_executor = write_executor
        self._read_executor = read_executor
        self._running: Future[None] | None = None
        self._seen_bytes = 0  # size of the log when the last checkpoint began
        self._is_bulk_moved = False

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self._path, self._wal) if path.exists())

    def begin_if_due(self) -> None:
        """Called after each commit."""
        if self._running is not None and not self._running.done():
            return
        if self._is_bulk_moved:
            self._is_bulk_moved = False
            self._running = self._write_executor.submit(self._move_rest)
            return
        try:
            size = self._wal.stat().st_size
        except FileNotFoundError:
            return
        has_grown = size < self._seen_bytes or size >= self._seen_bytes + database.WAL_BYTES // 4
        if size > database.WAL_BYTES and has_grown:
            self._seen_bytes = size
            self._running = self._read_executor.submit(self._move_bulk)

    async def wait(self) -> None:
        if self._running is not None:  # a failed one is repeated later
            await asyncio.gather(asyncio.wrap_future(self._running), return_exceptions=True)

    async def move_all(self) -> None:
        """Move everything and empty the log. Call it only while nothing is being written."""
        await self.wait()  # SQLite does nothing if another checkpoint runs
        await asyncio.wrap_future(self._write_executor.submit(self._truncate))

    # The rest runs in the executors' threads.

    def _move_bulk(self) -> None:
        """Copy finished pages while commits continue."""
        try:
            with closing(database.connect(self._path, "NORMAL")) as db:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, OSError):
            return  # a full disk, for example: the writer reports it; a later commit tries again
        self._is_bulk_moved = True

    def _move_rest(self) -> None:
        """Copy the rest between two commits. Only after a complete copy does SQLite reuse the log: otherwise it
        would grow under a steady load."""
        try:
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error:
            pass  # as above

    def _truncate(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


class ReaderPool:
    """Each read uses one snapshot and waits for no commit."""

    def __init__(self, path: Path, executor: Executor) -> None:
        self._path = path
        self._executor = executor
        self._free: deque[sqlite3.Connection] = deque()
        self._all: list[sqlite3.Connection] = []

    async def read(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        def read(db: sqlite3.Connection) -> T:
            return fn(db, *args, **kwargs)

        try:
            reading: Future[T] = self._executor.submit(self._read_in_snapshot, read)
        except RuntimeError as error:  # the store is closed, or no thread can be started
            raise StoreUnavailable(f"nothing can be read ({error})") from error
        return await asyncio.wrap_future(reading)

    def close(self) -> None:
        for reader in self._all:
            reader.close()

    # The rest runs in the executor's threads.

    def _read_in_snapshot(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        try:
            db = self._take()
            try:
                db.execute("BEGIN")
                return fn(db)
            finally:
                if db.in_transaction:
                    db.execute("COMMIT")
                self._free.append(db)
        except sqlite3.Error as error:
            raise StoreUnavailable(explain(error)) from error

    def _take(self) -> sqlite3.Connection:
        try:
            return self._free.pop()
        except IndexError:
            db = database.connect_reader(self._path)
            self._all.append(db)
            return db

"""The system under test: a real engine on a real SQLite file, that can crash, stop, and come back, all by one seed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Generator
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

from kedge.engine.engine import Engine
from kedge.engine.turn import Turn
from kedge.feed import feeds
from kedge.protocol.errors import NotFound, StoreUnavailable
from kedge.protocol.events import decode_event
from kedge.protocol.messages import Message, Part, finish_of
from kedge.protocol.runs import Run, RunKind
from kedge.store.sqlite import database, log, messages, runs, undos
from kedge.store.sqlite.store import SqliteStore
from kedge.store.sqlite.writer import Done
from tests.sim.disk import Disk, DiskConnection
from tests.sim.loop import SimExecutor, SimLoop, SimTask
from tests.sim.model import EPOCH, Model
from tests.sim.reader import Reader
from tests.sim.turns import Scripts, SimTurn

MAX_TURNS = 3  # few, so that sessions wait for each other
MAX_OPEN_RUNS = 8


class Violation(Exception):
    """The contract was broken; the trace says how."""


class World:
    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = Random(seed)
        self.loop = SimLoop()
        self.loop.set_exception_handler(self._loop_failed)
        self.trace: list[str] = []
        self.model = Model(self.loop.time)
        self.scripts = Scripts(self.rng)
        self.readers: list[Reader] = []
        self.workspace_id = ""
        self.disk = Disk()
        self.fuse = 0  # commits until a crash
        self.dies_in_an_undo = False
        self.dies_waiting = self.rng.choice((0.0, 0.3))  # how often, when a run begins to wait
        self.when_half_undone: Callable[[list[str]], None] | None = None  # called once, with the sessions
        self._killed: asyncio.Future[None] = self.loop.create_future()
        self._directory = directory
        self._failure: BaseException | None = None
        self._ring_bytes = self.rng.choice((300, 2_000, 20_000))
        self._driver: asyncio.Task[Any] | None = None
        self._audit: sqlite3.Connection | None = None
        self._slow = self.rng.choice((0.002, 0.02, 0.2))

    def run(self, play: Callable[[World], Any]) -> None:
        """Play on this world's loop until the end; raises `Violation`."""
        with self._small_bounds(), self._listening():
            try:
                self._driver = self.loop.create_task(play(self))
                self.loop.run_until_complete(self._driver)
                self.check()
            except Exception as error:  # noqa: BLE001 - whatever the play raises is a finding
                if not isinstance(error, Violation):
                    self._fail(error)
                self.check()
            finally:
                self._close()

    # ids, clocks, and what is written down

    def new_id(self) -> str:
        return f"{self.rng.getrandbits(48):012x}"

    def now(self) -> float:
        return EPOCH + self.loop.time()

    def say(self, text: str) -> None:
        self.trace.append(f"{self.loop.time():10.4f}  {text}")

    def check(self) -> None:
        if self._failure is None:
            try:
                self.model.check_deadlines()
            except AssertionError as error:
                self._fail(error)
        if self._failure is not None:
            raise Violation(str(self._failure)) from self._failure

    # the server

    async def boot(self) -> None:
        """Open the file and start an engine; one that the disk does not let start is tried again."""
        while True:
            self._open()
            try:
                await self.engine.start()
            except StoreUnavailable as error:
                self.say(f"the server cannot start: {error}")
                await self.crash()
                await asyncio.sleep(0.5)
                continue
            break
        self.say("the server is up")
        late = [run.run_id for run in self.model.open_runs() if run.cancel_requested]
        assert not late, f"{late} were cancelled before the restart, and are open after it"
        if not self.workspace_id:
            self.workspace_id = (await self.engine.open_workspace(self._directory)).id
        for reader in self.readers:
            self.start_reader(reader)

    def _open(self) -> None:
        self.model.booted()
        self._killed = self.loop.create_future()
        self.fuse = 0
        self.dies_in_an_undo = False
        self.when_half_undone = None
        self._writes = SimExecutor(self.loop, self._delay, lanes=1, on_ran=self._group_ran)
        self._reads = SimExecutor(self.loop, self._delay, lanes=4, before=self._before_read)
        self._threads = self.loop.threads = SimExecutor(self.loop, self._delay, lanes=4)
        self.store = SqliteStore.open(
            self._directory,
            write_executor=self._writes,
            read_executor=self._reads,
            now=self.now,
            new_id=self.new_id,
        )
        self.store._writer._db = DiskConnection(self.store._db, self.disk)  # type: ignore[assignment]
        turn = SimTurn(self.rng, self.model.returned.add, self._wrote_late, self._read)
        turns: dict[RunKind, Turn] = {"prompt": turn, "shell": turn, "agent": turn, "summarize": turn.summarize}
        self.engine = Engine(
            self.store, turns, new_id=self.new_id, max_turns=MAX_TURNS, ring_bytes=self._ring_bytes, now=self.now
        )
        if self._audit is None:
            self._audit = database.connect_reader(self._directory / database.DATABASE)
        self.compare_with_file()

    @property
    def has_crashed(self) -> bool:
        return self._killed.done()

    async def sleep(self, seconds: float) -> None:
        """Let things happen for a while, or until a crash."""
        await asyncio.wait({self._killed}, timeout=seconds)

    def kill(self) -> None:
        """The instant of a crash: from here on nothing reaches the file, and nothing comes from it."""
        if not self._killed.done():
            self._killed.set_result(None)
        if self.disk.is_failing:
            self.model.trouble_at = self.loop.time()
        self._writes.die()
        self._reads.die()
        self._threads.die()

    async def crash(self) -> None:
        self.say("crash")
        self.kill()
        self.model.died("crash")
        self.store.on_commit = _nobody_listens
        await self._end_tasks()
        self.store.abandon()

    async def stopped(self) -> None:
        """After an orderly shutdown: whoever still waits for the server is told nothing more."""
        self.say("the server has stopped")
        self.kill()
        self.model.died("orderly")
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        """Their unwinding can do nothing: the store is dead. Turns that ignore cancellation are left as ghosts."""
        for _ in range(10):
            for task in self.others():
                task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def others(self) -> list[SimTask]:
        return [task for task in self.loop.tasks() if task is not self._driver]

    # clients

    def start_reader(self, reader: Reader) -> None:
        self.spawn(reader.follow(self.engine, self.workspace_id))

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        task.add_done_callback(self._client_done)
        return task

    def _client_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # the file, seen from outside

    def floor(self) -> int:
        assert self._audit is not None
        row = self._audit.execute("SELECT floor FROM workspaces WHERE id = ?", (self.workspace_id,)).fetchone()
        return 0 if row is None else row[0]

    def half_deleted(self) -> list[str]:
        assert self._audit is not None
        rows = self._audit.execute("SELECT id FROM sessions WHERE deleting = 1 AND deleted_seq IS NULL").fetchall()
        return [row[0] for row in rows]

    def half_undone(self) -> list[str]:
        assert self._audit is not None
        return [undo.session_id for undo in undos.unfinished_undos(self._audit)]

    def compare_with_file(self) -> None:
        """What was committed is in the file, byte for byte, and nothing else is; what was undone nobody is shown."""
        if not self.workspace_id:
            return
        assert self._audit is not None
        for session_id in self.model.sessions.keys() - self.model.deleted:
            try:
                page = messages.page(self._audit, self.workspace_id, session_id, None, 10_000)
            except NotFound:
                continue  # it is being deleted
            shown, wanted = [message.id for message in page.messages], self.model.rewinds.visible(session_id)
            assert shown == wanted, f"{session_id} shows {shown}, not {wanted}"
        upto, found = self.floor(), list[bytes]()
        while (page := log.read_page(self._audit, self.workspace_id, upto, 10_000)) and upto < page.head:
            found += [event.frame for event in page.events]
            upto = page.upto
        assert upto == len(self.model.log), f"the file's head is {upto}, not {len(self.model.log)}"
        assert found == self.model.frames[self.floor() :], "the file tells another story"

    def _before_read(self) -> None:
        if self.disk.is_unreadable:
            self.model.trouble_at = self.loop.time()
            raise StoreUnavailable("disk I/O error")

    def _group_ran(self, result: object) -> None:
        """A group was committed, and is not told yet."""
        if not isinstance(result, list):
            return
        group = cast("list[object]", result)
        try:
            for done in group:
                if isinstance(done, Done):
                    for event in done.events:
                        self.say(f"    {event.seq:4} {_line(event.frame)}")
                        self.model.committed(decode_event(_data(event.frame)), event.frame)
                    self.model.rewinds.transaction_over()
                    if isinstance(done.error, StoreUnavailable):
                        self.model.trouble_at = self.loop.time()
        except AssertionError as error:
            self._fail(error)
        if self.fuse > 0:
            self.fuse -= 1
            if self.fuse == 0:
                self.say("killed right after the commit")
                self.kill()
        elif self._has_new_wait(group) and self.rng.random() < self.dies_waiting:
            self.say("killed while a run waits")
            self.kill()
        elif self.dies_in_an_undo and self.half_undone():
            self.say("killed in the middle of an undo")
            self.kill()
        elif self.when_half_undone is not None and (restoring := self.half_undone()):
            self.loop.call_soon(self.when_half_undone, restoring)
            self.when_half_undone = None

    def _has_new_wait(self, group: list[object]) -> bool:
        events = [event for done in group if isinstance(done, Done) for event in done.events]
        return any(isinstance(event.payload, Run) and event.payload.waiting is not None for event in events)

    # when something is wrong

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self.say(f"VIOLATION: {type(error).__name__}: {error}")

    def _read(self, session_id: str, history: list[Message]) -> None:
        """What a turn was given to read."""
        hidden = {message.id for message in history} - set(self.model.rewinds.visible(session_id))
        if hidden:
            self._fail(AssertionError(f"a turn in {session_id} reads what was undone: {sorted(hidden)}"))

    def _wrote_late(self, run_id: str) -> None:
        self._fail(AssertionError(f"the turn of {run_id} could write after it was told to stop"))

    def _loop_failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, asyncio.CancelledError):
            self._fail(error or AssertionError(context["message"]))

    def _logged(self, record: logging.LogRecord) -> bool:
        """An error that the engine only logs is one all the same, unless a script asked for it."""
        error = record.exc_info[1] if record.exc_info else None
        is_scripted = isinstance(error, SystemExit) or type(error) is RuntimeError
        if record.levelno >= logging.ERROR and not is_scripted:
            self._fail(error or AssertionError(record.getMessage()))
        return False

    # the frame around it

    def _delay(self) -> float:
        return self.rng.choice((0, 0, 0.0001, 0.001, self.rng.random() * self._slow))

    @contextlib.contextmanager
    def _small_bounds(self) -> Generator[None]:
        """Everything that has a bound meets it soon."""
        with (
            patch.object(feeds, "CHUNK_BYTES", self.rng.choice((200, 2_000))),
            patch.object(feeds, "PAGE_EVENTS", self.rng.choice((1, 3, 50))),
            patch.object(log, "PAGE_BYTES", self.rng.choice((200, 5_000))),
            patch.object(runs, "MAX_OPEN_RUNS", MAX_OPEN_RUNS),
        ):
            yield

    @contextlib.contextmanager
    def _listening(self) -> Generator[None]:
        logger = logging.getLogger("kedge")
        handler = logging.Handler()  # its filter listens and lets nothing through
        handler.addFilter(self._logged)
        was = logger.propagate
        logger.propagate = False
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = was

    def _close(self) -> None:
        self.loop.set_exception_handler(_nobody_listens)
        self.kill()
        self.store.abandon()
        if self._audit is not None:
            self._audit.close()
        for _ in range(100):
            tasks = self.loop.tasks()
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def _nobody_listens(*_: object) -> None:
    pass


def _data(frame: bytes) -> bytes:
    return frame.partition(b"data: ")[2].rstrip(b"\n")


def _line(frame: bytes) -> str:
    """An event, short enough for a trace."""
    event = decode_event(_data(frame))
    names = (
        "run_id",
        "id",
        "state",
        "role",
        "attempt",
        "cancel_requested",
        "waiting",
        "merged_into",
        "on_busy",
        "text",
        "error",
        "undone_from",
        "title",
    )
    values = [(name, getattr(event.payload, name, None)) for name in names]
    known = [f"{name}={value}" for name, value in values if value not in (None, "", False)]
    parts: list[Part] = getattr(event.payload, "parts", [])
    finish = finish_of(parts)
    return " ".join([event.type, event.change or "", *known, *([finish.reason] if finish else [])])

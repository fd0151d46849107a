"""`Kedge`: an engine on a real store that a test can drive, restart and crash, watched by a client all the time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kedge import failpoints
from kedge.engine.engine import Engine
from kedge.engine.scripted import Gates, ScriptedTurn
from kedge.engine.turn import Turn
from kedge.files.versions import Versions
from kedge.protocol.events import Event
from kedge.protocol.messages import Message, ToolResult
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from kedge.protocol.runs import Receipt, Run, RunEnd, RunKind, RunState, Submission
from kedge.store.port import Store
from tests.support.invariants import Log, check_log, check_same_story, run_events
from tests.support.reader import LIMIT_S, Frame, Reader, split_frames
from tests.support.stores import StoreKind

KINDS: tuple[RunKind, ...] = ("prompt", "shell", "summarize", "agent")


class Clock:
    """The wall clock of the store, which a test can set; it orders nothing (P18)."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


class Kedge:
    """Use as `async with Kedge(…) as kedge`. At its end the whole log is checked against the invariants."""

    store: Store
    engine: Engine
    gates: Gates
    workspace_id: str

    def __init__(
        self, store_kind: StoreKind, directory: Path, *, term_s: float = 0.3, kill_s: float = 0.3, max_turns: int = 100
    ) -> None:
        self.clock = Clock()
        self.watcher = Reader()
        self.turns: dict[RunKind, Turn] = {}
        self.data = directory / "data"
        self._kind = store_kind
        self._path = directory / "workspace"
        self._settings: dict[str, Any] = {"term_s": term_s, "kill_s": kill_s, "max_turns": max_turns}
        self._ids = itertools.count(1)
        self._watching: asyncio.Task[None] | None = None
        self._is_up = False

    async def __aenter__(self) -> Kedge:
        self._path.mkdir(exist_ok=True)
        await self.start()
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        failpoints.disarm()
        if self._is_up:
            logged = await self.log_frames()
            await self.shutdown(grace_s=0)
            if error is None:
                check_same_story(self.watcher.log_frames[: len(logged)], logged)
        if error is None:
            check_log(self.watcher.log)

    # its life

    async def start(self) -> None:
        """A new server on the same data. What a test puts into `turns`, at any time, comes before the scripted turn."""
        assert not self._is_up
        self.gates = Gates()
        scripted: Turn = ScriptedTurn(self.gates)
        self.store = self.open_store()
        turns = ChainMap(self.turns, dict.fromkeys(KINDS, scripted))
        versions = Versions(self.data)
        self.engine = Engine(
            self.store, turns, new_id=self._new_id, versions=versions, now=self.clock, **self._settings
        )
        async with asyncio.timeout(LIMIT_S):
            await self.engine.start()
            self.workspace_id = (await self.engine.open_workspace(self._path)).id
        self._watching = asyncio.create_task(self.read(self.watcher))
        self._is_up = True

    def open_store(self) -> Store:
        return self._kind.open(self.data, self.clock)

    async def shutdown(self, grace_s: float = 5.0) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self.engine.stop(grace_s)
            await self._stop_watching()
            await self.store.close()

    async def restart(self, grace_s: float = 0) -> None:
        await self.shutdown(grace_s)
        await self.start()

    async def crash(self) -> None:
        """The server is gone, with every task of it, and the calls of its clients; nothing is cleaned up."""
        self._kind.crash(self.store)
        self.engine.runs.is_stopping = True  # whatever still stirs starts nothing
        self.engine.feeds.close()
        self.engine.file_recorder.versions.close()
        await self._stop_watching()
        for _ in range(10):
            if not (left := asyncio.all_tasks() - {asyncio.current_task()}):
                return
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1)

    async def crash_and_start(self) -> None:
        await self.crash()
        await self.start()

    # what a client does

    async def session(self, title: str = "") -> str:
        return (await self.engine.create_session(self.workspace_id, title)).id

    async def send(
        self,
        session_id: str,
        prompt: str,
        run_id: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Receipt:
        submission = Submission(session_id=session_id, prompt=prompt, **fields)
        return await self.engine.runs.accept(self.workspace_id, submission, run_id=run_id, env=env)

    async def cancel(self, session_id: str) -> list[str]:
        return await self.engine.store.cancel_session(self.workspace_id, session_id)

    async def cancel_run(self, run_id: str) -> Run:
        return await self.engine.store.cancel_run(self.workspace_id, run_id)

    async def permissions(self) -> list[PermissionRequest | QuestionRequest]:
        return await self.store.pending_requests(self.workspace_id, "permission")

    async def read(self, reader: Reader, *, session_id: str | None = None) -> None:
        """Let a reader come (back) with its cursor, and follow until the stream ends."""
        await reader.follow(
            self.engine.subscribe(self.workspace_id, after=reader.cursor, log_id=reader.log_id, session_id=session_id)
        )

    # what a test waits for

    async def end(self, run_id: str) -> RunEnd:
        async with asyncio.timeout(LIMIT_S):
            return await self.engine.runs.wait_end(self.workspace_id, run_id)

    async def ends(self, *run_ids: str) -> list[RunEnd]:
        return [await self.end(run_id) for run_id in run_ids]

    async def reached(self, gate: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self.gates.reached(gate)

    async def seen(self, matches: Callable[[Event], bool]) -> Event:
        """Until an event that matches was committed and shown."""
        return await self.watcher.event(matches)

    async def seen_run(self, run_id: str, state: RunState, *, attempt: int | None = None) -> Run:
        def matches(event: Event) -> bool:
            run = event.payload
            return (
                isinstance(run, Run) and (run.run_id, run.state) == (run_id, state) and attempt in (None, run.attempt)
            )

        run = (await self.seen(matches)).payload
        assert isinstance(run, Run)
        return run

    async def asked(self) -> PermissionRequest | QuestionRequest:
        """The next request to a person that is pending."""
        answered = {getattr(e.payload, "id", "") for e in self.watcher.log if e.type.endswith("_notification")}
        event = await self.seen(lambda e: e.type.endswith("_request") and getattr(e.payload, "id", "") not in answered)
        assert isinstance(event.payload, PermissionRequest | QuestionRequest)
        return event.payload

    # what is stored

    async def run(self, run_id: str) -> Run:
        return await self.store.run(self.workspace_id, run_id)

    async def messages(self, session_id: str) -> list[Message]:
        return (await self.store.messages(self.workspace_id, session_id)).messages

    async def results(self, session_id: str) -> list[ToolResult]:
        return [p for m in await self.messages(session_id) for p in m.parts if isinstance(p, ToolResult)]

    async def history(self, session_id: str) -> list[Message]:
        """What the model may see."""
        return await self.store.history(self.workspace_id, session_id)

    async def log(self) -> list[Event]:
        return [frame.event for frame in await self._log()]

    async def log_frames(self) -> list[bytes]:
        return [frame.raw for frame in await self._log()]

    async def stored_bytes(self) -> int:
        return await self._kind.stored_bytes(self.store)

    async def _log(self) -> list[Frame]:
        frames: list[Frame] = []
        after = 0
        while True:
            page = await self.store.read_log(self.workspace_id, after, 500)
            frames += [frame for event in page.events for frame in split_frames(event.frame)]
            if page.upto == page.head:
                return frames
            after = page.upto

    async def _stop_watching(self) -> None:
        self._is_up = False
        assert self._watching is not None
        async with asyncio.timeout(LIMIT_S):
            await self._watching  # the stream ends by itself, and with it the reading

    def _new_id(self) -> str:
        return f"run-{next(self._ids)}"


def states(log: Log) -> list[tuple[str, str]]:
    """The changes of state of all runs, in the order of the log."""
    changes = [(run.run_id, run.state) for _, run in run_events(log)]
    return [(run_id, str(state)) for run_id, state in dict.fromkeys(changes)]


def place_of(log: Log, payload_type: type[msgspec.Struct], **fields: object) -> int:
    """The seq of the first event of the log whose payload has these fields."""
    for event in log:
        payload = event.payload
        if isinstance(payload, payload_type) and all(getattr(payload, k) == v for k, v in fields.items()):
            assert event.seq is not None
            return event.seq
    raise AssertionError(f"no {payload_type.__name__} with {fields} in the log")
